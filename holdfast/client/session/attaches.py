"""The attach frames of links: which node a link sends to or receives from. Pure."""

from collections.abc import Callable
from typing import Literal
from urllib.parse import quote

from holdfast.amqp.wire.performatives import Attach, Source, Target

Start = Literal["first", "last", "next"]

_SETTLED, _UNSETTLED = 1, 0
#: The broker confirms every outcome, once it is stored.
_SETTLES_SECOND = 1
_START = "rabbitmq:stream-offset-spec"


def sender_attach(name: str, topic: str, *, settled: bool) -> Callable[[int], Attach]:
    """Return a function that makes the attach of a sender to `topic` for a handle."""
    mode = _SETTLED if settled else _UNSETTLED
    destination = Target(f"/topics/{quote(topic, safe='')}")
    return lambda handle: Attach(
        name, handle, False, mode, source=Source(), target=destination, initial_delivery_count=0
    )


def receiver_attach(
    name: str, *, group: str | None, topic: str | None, start: Start | int, settled: bool
) -> Callable[[int], Attach]:
    """Return a function that makes the attach of a receiver for a handle. `start` counts only for
    a topic. Raises ValueError unless either `group` or `topic` is given."""
    if (group is None) == (topic is None):
        raise ValueError("a receiver needs either a group or a topic")
    mode = _SETTLED if settled else _UNSETTLED
    kind, node = ("groups", group) if topic is None else ("topics", topic)
    filters = None if topic is None else {_START: start}
    source = Source(f"/{kind}/{quote(str(node), safe='')}", filter=filters)
    return lambda handle: Attach(
        name, handle, True, mode, _SETTLES_SECOND, source=source, target=Target()
    )
