"""Parse Spark's options, which are all text, into values. Pure.

Spark itself ignores unknown options. Here an unknown or contradictory option is refused, because a
job with a silently ignored option may read the wrong rows.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.columns import suggest_name
from holdfast.spark.options.kafka import explain_refusal

_SIZE = re.compile(r"(\d+) *([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION = re.compile(r"(\d+) *(ms|s|m|h)", re.IGNORECASE | re.ASCII)
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class OptionParser:
    """The options that the user gave, and one method for each kind of value to parse.

    `known` are the options of this kind of job: name -> what it does. `elsewhere` are the options
    of another kind of job: name -> why it is refused here. Every method raises InvalidOption for a
    value that it does not accept.
    """

    def __init__(
        self,
        given: Mapping[str, str],
        known: Mapping[str, str],
        *,
        elsewhere: Mapping[str, str] = {},
    ) -> None:
        by_fold = {name.lower(): name for name in known}
        refused = {name.lower(): (name, why) for name, why in elsewhere.items()}
        self._given: dict[str, str] = {}
        for name, value in given.items():
            if name.lower() in refused:
                raise InvalidOption(*refused[name.lower()])
            if name.lower() not in by_fold:
                raise _unknown_option(name, [*known, *elsewhere])
            self._given[by_fold[name.lower()]] = value

    def text(self, name: str) -> str | None:
        """Return an option's text without surrounding blanks, or None if the option is not given.
        An empty text is refused."""
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise InvalidOption(name, "is given, but empty")
        return None if value is None else value.strip()

    def exactly_one(self, *names: str) -> str:
        """Return which of the options `names` is given. Exactly one of them must be given."""
        found = [name for name in names if name in self._given]
        if len(found) != 1:
            given = " and ".join(found) or "none of them"
            raise InvalidOption(
                names[0], f"give exactly one of {', '.join(names)}; given is {given}"
            )
        return found[0]

    def at_most_one(self, *names: str) -> None:
        """Refuse the options if more than one of `names` is given."""
        found = [name for name in names if name in self._given]
        if len(found) > 1:
            raise InvalidOption(found[0], f"and {found[1]!r} contradict each other; leave one out")

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return the option's word in lower case, which must be one of `allowed`. Return `default`
        if the option is not given."""
        value = (self.text(name) or default).lower()
        if value not in allowed:
            raise InvalidOption(name, f"{value!r} is none of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return the option's value, true or false; `default` if the option is not given."""
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, *, minimum: int) -> int | None:
        """Return an integer of at least `minimum`, or None if the option is not given."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal()) or int(value) < minimum:
            raise InvalidOption(name, f"{value!r} is no whole number from {minimum} up")
        return int(value)

    def count(self, name: str) -> int | None:
        """Return an integer of at least 1, or None if the option is not given."""
        return self.number(name, minimum=1)

    def size(self, name: str, default: int, *, maximum: int | None = None) -> int:
        """Return a size in bytes; `default` if the option is not given. The user may write 64m for
        64 MiB."""
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value)
        size = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
        if size < 1 or (maximum is not None and size > maximum):
            limit = "" if maximum is None else f" up to {maximum}"
            raise InvalidOption(name, f"{value!r} is no size in bytes (such as 64m){limit}")
        return size

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration in milliseconds; `default` if the option is not given. The user writes
        it with a unit, such as 90s or 15m."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidOption(name, f"{value!r} is no time span such as 500ms, 90s, 15m or 1h")
        return int(match[1]) * _DURATION_UNITS_MS[match[2].lower()]

    def json(self, name: str) -> dict[str, Any]:
        """Return the option's JSON object as a dict. The dict is empty if the option is not
        given."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidOption(name, f"not JSON: {error}") from error
        if not isinstance(value, dict) or not value:
            raise InvalidOption(name, f"{text!r} is no JSON object with something in it")
        return value


def parse_list(name: str, text: str) -> list[str]:
    """Return the distinct words of a list with commas, in order. For an empty text, return an empty
    list."""
    words = [word.strip() for word in text.split(",")] if text else []
    if "" in words:
        raise InvalidOption(name, f"{text!r} has an empty name in it")
    return list(dict.fromkeys(words))


def _unknown_option(name: str, known: Sequence[str]) -> InvalidOption:
    if (why := explain_refusal(name)) is not None:
        return InvalidOption(name, why)
    return InvalidOption(name, f"is unknown{suggest_name(name, known)}")
