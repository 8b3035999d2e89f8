"""Options as Spark hands them over, all of them text, made into values. Pure.

Spark ignores what nobody asks for; here an option that is unknown, or that contradicts another, is
refused, because one silently ignored is how a job comes to read the wrong rows.
"""

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from holdfast.spark.columns import nearest
from holdfast.spark.errors import InvalidOption
from holdfast.spark.kafka_options import refusal

_SIZE = re.compile(r"(\d+) *([kmg]?)(?:i?b)?", re.IGNORECASE | re.ASCII)
_SIZE_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_DURATION = re.compile(r"(\d+) *(ms|s|m|h)", re.IGNORECASE | re.ASCII)
_DURATION_UNITS_MS = {"ms": 1, "s": 1000, "m": 60_000, "h": 3_600_000}


class GivenOptions:
    """The options given, by documented name, with the parsers that several of them share.

    `known` are the options of this kind of job, name -> what it does; `elsewhere` those of another
    kind, name -> why it is refused here. Every parser raises InvalidOption, which names the option.
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
                raise _unknown(name, [*known, *elsewhere])
            self._given[by_fold[name.lower()]] = value

    def text(self, name: str) -> str | None:
        """Return an option's text, None when it is not given; given empty is refused."""
        value = self._given.get(name)
        if value is not None and not value.strip():
            raise InvalidOption(name, "is given, but empty")
        return None if value is None else value.strip()

    def exactly_one(self, *names: str) -> str:
        """Return which one of `names` is given."""
        found = [name for name in names if name in self._given]
        if len(found) != 1:
            given = " and ".join(found) or "none of them"
            raise InvalidOption(
                names[0], f"give exactly one of {', '.join(names)}; given is {given}"
            )
        return found[0]

    def at_most_one(self, *names: str) -> None:
        """Refuse two of `names` at once."""
        found = [name for name in names if name in self._given]
        if len(found) > 1:
            raise InvalidOption(found[0], f"and {found[1]!r} contradict each other; leave one out")

    def one_of(self, name: str, allowed: tuple[str, ...], default: str) -> str:
        """Return one of a few words, in lower case."""
        value = (self.text(name) or default).lower()
        if value not in allowed:
            raise InvalidOption(name, f"{value!r} is none of {', '.join(allowed)}")
        return value

    def flag(self, name: str, default: bool) -> bool:
        """Return true or false."""
        return self.one_of(name, ("true", "false"), str(default).lower()) == "true"

    def number(self, name: str, *, minimum: int) -> int | None:
        """Return a whole number from `minimum` up, None when it is not given."""
        value = self.text(name)
        if value is None:
            return None
        if not (value.isascii() and value.isdecimal()) or int(value) < minimum:
            raise InvalidOption(name, f"{value!r} is no whole number from {minimum} up")
        return int(value)

    def count(self, name: str) -> int | None:
        """Return a whole number from 1 up, None when it is not given."""
        return self.number(name, minimum=1)

    def size(self, name: str, default: int, *, maximum: int | None = None) -> int:
        """Return a size in bytes, which may be written as 64m."""
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
        """Return a time span, written as 90s, 15m or the like, in milliseconds."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidOption(name, f"{value!r} is no time span such as 500ms, 90s, 15m or 1h")
        return int(match[1]) * _DURATION_UNITS_MS[match[2].lower()]

    def json(self, name: str) -> dict[str, Any]:
        """Return a JSON object, empty when the option is not given."""
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
    """Return the distinct words of a comma list, in order; none for an empty text."""
    words = [word.strip() for word in text.split(",")] if text else []
    if "" in words:
        raise InvalidOption(name, f"{text!r} has an empty name in it")
    return list(dict.fromkeys(words))


def _unknown(name: str, known: Sequence[str]) -> InvalidOption:
    if (why := refusal(name)) is not None:
        return InvalidOption(name, why)
    return InvalidOption(name, f"is unknown{nearest(name, known)}")
