"""Which publishes go together into the next request. Pure: no clock, no loop, no locks.

A Lane belongs to one topic at one durability. Nothing waits for company: what comes while no
request is under way leaves at once, what comes meanwhile leaves when that one has ended, or as soon
as it fills a request: all of it together, as far as one request goes. A second request beside the
first, for what does not fill one, would only make both smaller (docs/adr/0015).
"""

from collections import deque
from dataclasses import dataclass
from typing import Any

#: What one request takes. The broker works on text above 128 KiB in a thread, in turns.
MAX_TOGETHER = 1000
MAX_TOGETHER_BYTES = 120 * 1024


@dataclass(eq=False, slots=True)
class Waiting:
    """A message whose caller waits by `outcome`; `request` has taken it. Both are the shell's."""

    encoded: bytes
    asked_at_s: float
    outcome: Any = None
    request: Any = None


class Lane:
    """What waits, in the order in which it came, and how many requests are under way."""

    def __init__(self, topic: str, durability: str | None) -> None:
        self.topic = topic
        self.durability = durability
        self._waiting: deque[Waiting] = deque()
        self._waiting_bytes = 0
        self._under_way = 0
        #: A request has begun and not taken its messages yet.
        self._is_beginning = False

    @property
    def key(self) -> tuple[str, str | None]:
        """Where it leads."""
        return self.topic, self.durability

    @property
    def is_empty(self) -> bool:
        """Whether nothing waits and nothing is under way."""
        return not self._waiting and not self._under_way

    @property
    def _is_full(self) -> bool:
        """Whether another message would not go with those that wait."""
        return len(self._waiting) >= MAX_TOGETHER or self._waiting_bytes >= MAX_TOGETHER_BYTES

    def join(self, message: Waiting) -> None:
        """Let a message wait, behind all others."""
        self._waiting.append(message)
        self._waiting_bytes += len(message.encoded)

    def leave(self, message: Waiting) -> None:
        """Let go of a message that waits."""
        self._waiting.remove(message)
        self._waiting_bytes -= len(message.encoded)

    def leave_all(self) -> list[Waiting]:
        """Let go of all that wait, and return them."""
        messages = list(self._waiting)
        self._waiting.clear()
        self._waiting_bytes = 0
        return messages

    def begins(self) -> bool:
        """Return whether another request begins now. If so, it is to `take` in a while, and to
        say when it has `ended`."""
        if not self._waiting or self._is_beginning or (self._under_way and not self._is_full):
            return False
        self._is_beginning = True
        self._under_way += 1
        return True

    def take(self) -> list[Waiting]:
        """Return the messages of the request that began; none when all were let go of."""
        self._is_beginning = False
        taken: list[Waiting] = []
        room_bytes = MAX_TOGETHER_BYTES
        while self._waiting and len(taken) < MAX_TOGETHER:
            room_bytes -= len(self._waiting[0].encoded)
            if taken and room_bytes < 0:
                break
            taken.append(self._waiting.popleft())
        self._waiting_bytes -= sum([len(message.encoded) for message in taken])
        return taken

    def ended(self) -> None:
        """Take note that a request has ended, or that nothing is to wait for it any more."""
        self._under_way -= 1
