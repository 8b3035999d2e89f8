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
    """Return a function that makes the attach of a sender for a handle. `topic` is the name of a
    topic, or the address of a temporary queue."""
    mode = _SETTLED if settled else _UNSETTLED
    destination = Target(topic if topic.startswith("/temp/") else _path("topics", topic))
    return lambda handle: Attach(
        name, handle, False, mode, source=Source(), target=destination, initial_delivery_count=0
    )


def receiver_attach(
    name: str,
    *,
    group: str | None = None,
    topic: str | None = None,
    dynamic: bool = False,
    start: Start | int,
    settled: bool,
) -> Callable[[int], Attach]:
    """Return a function that makes the attach of a receiver for a handle. `start` counts only for
    a topic. With `dynamic` the broker makes a temporary queue. Raises ValueError unless one of
    `group`, `topic` and `dynamic` is given."""
    if (group is not None) + (topic is not None) + dynamic != 1:
        raise ValueError("a receiver needs one of group, topic and dynamic")
    mode = _SETTLED if settled else _UNSETTLED
    if topic is not None:
        source = Source(_path("topics", topic), filter={_START: start})
    elif group is not None:
        source = Source(_path("groups", group))
    else:
        source = Source(dynamic=True)
    return lambda handle: Attach(
        name, handle, True, mode, _SETTLES_SECOND, source=source, target=Target()
    )


def _path(kind: str, name: str) -> str:
    return f"/{kind}/{quote(name, safe='')}"
