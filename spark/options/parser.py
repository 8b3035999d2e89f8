"""Parse Spark's options, which are all text, into values. Pure.

Spark itself ignores unknown options. Here an unknown or contradictory option is refused, because a
job with a silently ignored option may read the wrong rows. An option of Spark's Kafka connector
that has no meaning here is refused with an explanation.
"""

import json
import re
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, TypeVar

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.columns import suggest_name

_Default = TypeVar("_Default", int, None)

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

    def number(
        self, name: str, default: _Default, *, minimum: int = 0, maximum: int | None = None
    ) -> int | _Default:
        """Return an integer from `minimum` to `maximum`; `default` if the option is not given."""
        value = self.text(name)
        if value is None:
            return default
        if not (value.isascii() and value.isdecimal()) or int(value) < minimum:
            raise InvalidOption(name, f"{value!r} is not an integer of at least {minimum}")
        if maximum is not None and int(value) > maximum:
            raise InvalidOption(name, f"{value} is more than {maximum}")
        return int(value)

    def size(self, name: str, default: int, *, maximum: int | None = None) -> int:
        """Return a size in bytes, such as 64m for 64 MiB; `default` if the option is not given."""
        value = self.text(name)
        if value is None:
            return default
        match = _SIZE.fullmatch(value)
        size = int(match[1]) * _SIZE_UNITS[match[2].lower()] if match else 0
        if size < 1 or (maximum is not None and size > maximum):
            limit = "" if maximum is None else f" up to {maximum}"
            raise InvalidOption(name, f"{value!r} is not a size in bytes (such as 64m){limit}")
        return size

    def duration_ms(self, name: str, default: int) -> int:
        """Return a duration such as 90s in milliseconds; `default` if the option is not given."""
        value = self.text(name)
        if value is None:
            return default
        match = _DURATION.fullmatch(value)
        if match is None:
            raise InvalidOption(name, f"{value!r} is not a duration such as 500ms, 90s, 15m or 1h")
        return int(match[1]) * _DURATION_UNITS_MS[match[2].lower()]

    def json(self, name: str) -> dict[str, Any]:
        """Return the option's JSON object; an empty dict if the option is not given."""
        text = self.text(name)
        if text is None:
            return {}
        try:
            value = json.loads(text)
        except ValueError as error:
            raise InvalidOption(name, f"is not JSON: {error}") from error
        if not isinstance(value, dict) or not value:
            raise InvalidOption(name, f"{text!r} is not a JSON object, or is empty")
        return value

    def words(self, name: str) -> tuple[str, ...]:
        """Return the distinct words of a list with commas, in order; none if it is not given."""
        text = self.text(name)
        words = [] if text is None else [word.strip() for word in text.split(",")]
        if "" in words:
            raise InvalidOption(name, f"{text!r} contains an empty name")
        return tuple(dict.fromkeys(words))

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
            raise InvalidOption(found[0], f"contradicts the option {found[1]!r}; omit one of them")


def _unknown_option(name: str, known: Sequence[str]) -> InvalidOption:
    folded = name.lower()
    for pattern, refusal in _KAFKA_REFUSALS:
        if fnmatchcase(folded, pattern):
            return InvalidOption(name, refusal)
    return InvalidOption(name, f"is unknown{suggest_name(name, known)}")


_ACCESS = (
    "configures Kafka's security; omit it. Here the option token gives access, and an address that "
    "begins with https:// gives encryption (options caFile, certFile, keyFile)"
)
_NO_GROUP = (
    "has no meaning here, because a read joins no group; omit it. To store how far a job has read, "
    "use holdfast.spark.bind(group=...), or the option groupId of a stream"
)
_RETRIES = (
    "has no meaning here; omit it. A request to an unavailable or busy broker is retried for up to "
    "a minute"
)
_FORMAT = "has no meaning here; omit it. Keys and values are binary: CAST them in Spark"
_FETCH = "has no meaning here; omit it. Use fetchMaxBytes for the bytes of one request"

#: Pattern of a Kafka option's name, in lower case -> the refusal. The first match counts.
_KAFKA_REFUSALS = (
    ("kafkaconsumer.polltimeoutms", _RETRIES),
    ("fetchoffset.*", _RETRIES),
    ("groupidprefix", _NO_GROUP),
    ("kafka.group.*", _NO_GROUP),
    ("maxrecordsperpartition", "has no meaning here; use maxBytesPerPartition to limit tasks"),
    ("kafka.security.*", _ACCESS),
    ("kafka.sasl.*", _ACCESS),
    ("kafka.ssl.*", _ACCESS),
    ("kafka.auto.offset.reset", "has no meaning here; use startingOffsets for the start"),
    ("kafka.*auto.commit*", "has no meaning here; omit it. A read commits nothing"),
    ("kafka.*deserializer*", _FORMAT),
    ("kafka.*serializer*", _FORMAT),
    ("kafka.isolation.level", "has no meaning here; omit it. There are no transactions"),
    ("kafka.fetch.*", _FETCH),
    ("kafka.max.partition.fetch.bytes", _FETCH),
    ("kafka.max.poll.records", _FETCH),
    ("kafka.*timeout.ms", _RETRIES),
    ("kafka.*backoff*", _RETRIES),
    ("kafka.retries", _RETRIES),
    ("kafka.*", "configures Kafka's client, which is not used here; omit it"),
)
