"""The filter-set of a source: which messages the client wants, and where a copy begins. Pure.

| filter                              | its value                                             |
|-------------------------------------|-------------------------------------------------------|
| `apache.org:selector-filter:string` | a JMS selector: docs/filters.md has the language      |
| `amqp:sql-filter`                   | the same                                              |
| `apache.org:no-local-filter:list`   | any: no messages that this client published           |
| `holdfast:tags`                     | tags, separated by commas                             |
| `rabbitmq:stream-offset-spec`       | `first`, `last`, `next`, an offset, or a timestamp    |

The descriptor of a filter's value gives the type of the filter; if the value is not described, the
filter's key gives the type. The answer to an attach contains only the filters that the broker
applies, so the answer leaves out filters of other types.
"""

from collections.abc import Callable, Mapping
from enum import Enum
from typing import Any

import msgspec

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.wire.conditions import INVALID_FIELD, LinkFailed
from holdfast.amqp.wire.types import Described, Timestamp
from holdfast.consumequeue.errors import LimitReached


class End(Enum):
    """The places of a queue at which a copy may begin without an offset or a time."""

    FIRST = "first"
    LAST = "last"
    """The last message of the queue."""
    NEXT = "next"
    """The next message that is published."""


class Start(msgspec.Struct, frozen=True):
    """Where a copy begins. At most one of `offset` and `timestamp_ms` is set; then `end` has no
    meaning."""

    end: End = End.NEXT
    offset: int | None = None
    timestamp_ms: int | None = None


NEXT = Start()


class Filters(msgspec.Struct, frozen=True):
    """The filters of a source that are known. `in_force` is the filter-set of the answer."""

    selector: str | None = None
    tags: str | None = None
    start: Start | None = None
    is_no_local: bool = False
    in_force: Mapping[str, Any] = msgspec.field(default_factory=dict)


class FilterBudget:
    """The characters of the filters that links keep, of all clients and of each client."""

    def __init__(self) -> None:
        self._total = 0
        self._by_client: dict[str, int] = {}

    def take(self, client: str, characters: int, config: AmqpConfig) -> None:
        """Count a filter. Raises LimitReached if there would be more characters than allowed."""
        used = self._by_client.get(client, 0) + characters
        for name, count, most in (
            ("max_filter_characters", self._total + characters, config.max_filter_characters),
            ("max_client_filter_characters", used, config.max_client_filter_characters),
        ):
            if characters and count > most:
                raise LimitReached(f"amqp.{name}", most)
        if characters:
            self._total += characters
            self._by_client[client] = used

    def give_back(self, client: str, characters: int) -> None:
        """Subtract a filter that was counted."""
        if characters:
            self._total -= characters
            self._by_client[client] -= characters
            if not self._by_client[client]:
                del self._by_client[client]


_SELECTOR, _TAGS, _START, _NO_LOCAL = "selector", "tags", "start", "no-local"
_KINDS: dict[object, str] = {
    0x0000_468C_0000_0004: _SELECTOR,
    "apache.org:selector-filter:string": _SELECTOR,
    "jms-selector": _SELECTOR,
    0x120: _SELECTOR,
    "amqp:sql-filter": _SELECTOR,
    "sql-filter": _SELECTOR,
    0x0000_468C_0000_0003: _NO_LOCAL,
    "apache.org:no-local-filter:list": _NO_LOCAL,
    "holdfast:tags": _TAGS,
    "rabbitmq:stream-offset-spec": _START,
}


def read_filters(given: Mapping[str, Any] | None, *, is_copied: bool) -> Filters:
    """Return the known filters of a filter-set. A start is known only for a copied source.

    Raises LinkFailed (amqp:invalid-field) if the value of a known filter has a wrong type, or if
    there are two filters of one kind.
    """
    values: dict[str, Any] = {}
    in_force: dict[str, Any] = {}
    for key, each in (given or {}).items():
        described = isinstance(each, Described)
        kind = _KINDS.get(each.descriptor if described else key)
        if kind is None or (kind == _START and not is_copied):
            continue
        value = each.value if described else each
        if kind in values:
            raise LinkFailed(INVALID_FIELD, f"there are two filters of the kind {kind}")
        values[kind] = _READERS[kind](key, value)
        in_force[key] = each
    return Filters(
        values.get(_SELECTOR), values.get(_TAGS), values.get(_START), _NO_LOCAL in values, in_force
    )


def _text(key: str, value: Any) -> str:
    if not isinstance(value, str) or not value.strip():
        raise LinkFailed(INVALID_FIELD, f"the value of the filter {key} is not a text")
    return value


def _start(key: str, value: Any) -> Start:
    if isinstance(value, Timestamp):
        if value >= 0:
            return Start(timestamp_ms=int(value))
    elif isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return Start(offset=int(value))
    elif isinstance(value, str) and value in {each.value for each in End}:
        return Start(End(value))
    raise LinkFailed(
        INVALID_FIELD,
        f"the value of the filter {key} is not first, last, next, an offset or a timestamp",
    )


_READERS: dict[str, Callable[[str, Any], Any]] = {
    _SELECTOR: _text,
    _TAGS: _text,
    _START: _start,
    _NO_LOCAL: lambda key, value: True,
}
