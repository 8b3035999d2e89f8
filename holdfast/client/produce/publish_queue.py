"""Which publishes share the next request. Pure: no clock, no loop, no locks.

A PublishQueue belongs to one topic and one set of options. While no request is in flight, a message
is sent immediately: it never waits only to be sent together with others. Messages that arrive
during a request are sent together when that request ends, or earlier if they fill a request. A
second concurrent request that is not full would only make both requests smaller (docs/adr/0015).
"""

from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

#: The limits of one request. The broker decodes requests of more than 128 KiB in threads, and only
#: a few of these at a time.
MAX_SHARED_MESSAGES = 1000
MAX_SHARED_REQUEST_BYTES = 120 * 1024


class PublishOptions(NamedTuple):
    """The options that all messages of a publish request share. If `durability` is None, the
    topic's setting applies."""

    durability: str | None = None
    mandatory: bool = False

    @property
    def params(self) -> dict[str, str] | None:
        """The query of the request; None if it has none."""
        params = {} if self.durability is None else {"durability": self.durability}
        return (params | {"mandatory": "true"} if self.mandatory else params) or None


@dataclass(eq=False, slots=True)
class PendingPublish:
    """A message. Its caller awaits `outcome`. `request` is the request that contains the message;
    it is None while the message waits. The PublishQueue's owner sets `outcome` and `request`."""

    encoded: bytes
    asked_at_s: float
    outcome: Any = None
    request: Any = None


class PublishQueue:
    """The waiting messages in order of arrival, and the number of requests in flight."""

    def __init__(self, topic: str, options: PublishOptions) -> None:
        self.topic = topic
        self.options = options
        self.key = topic, options
        self._waiting: deque[PendingPublish] = deque()
        self._waiting_bytes = 0
        self._in_flight = 0
        #: Whether a request was started that has not taken its messages yet.
        self._is_starting = False

    @property
    def is_empty(self) -> bool:
        """Whether no message waits and no request is in flight."""
        return not self._waiting and not self._in_flight

    @property
    def _is_full(self) -> bool:
        """Whether the waiting messages fill a request."""
        return (
            len(self._waiting) >= MAX_SHARED_MESSAGES
            or self._waiting_bytes >= MAX_SHARED_REQUEST_BYTES
        )

    def add(self, message: PendingPublish) -> None:
        self._waiting.append(message)
        self._waiting_bytes += len(message.encoded)

    def remove(self, message: PendingPublish) -> None:
        self._waiting.remove(message)
        self._waiting_bytes -= len(message.encoded)

    def clear(self) -> list[PendingPublish]:
        """Remove and return all waiting messages."""
        messages = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return messages

    def start_request(self) -> bool:
        """Return whether another request must be started now, and record it as started. The caller
        must then start it, call `take_messages` for it, and later `finish_request`."""
        if not self._waiting or self._is_starting or (self._in_flight and not self._is_full):
            return False
        self._is_starting = True
        self._in_flight += 1
        return True

    def take_messages(self) -> list[PendingPublish]:
        """Remove and return the messages for the request that was started. The list is empty if
        all waiting messages have been removed."""
        self._is_starting = False
        taken: list[PendingPublish] = []
        room_bytes = MAX_SHARED_REQUEST_BYTES
        while self._waiting and len(taken) < MAX_SHARED_MESSAGES:
            room_bytes -= len(self._waiting[0].encoded)
            if taken and room_bytes < 0:
                break
            taken.append(self._waiting.popleft())
        self._waiting_bytes -= sum([len(message.encoded) for message in taken])
        return taken

    def finish_request(self) -> None:
        """Record that a request has ended, or that the next request may start before it ends."""
        self._in_flight -= 1
