"""What a member asks for and what it is answered. Pure."""

from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.standing import Receipt

#: Requests whose answers are kept, a group, and messages in them (as many as may be leased at
#: once): beyond either the oldest is forgotten.
MAX_REPEATS = 4096
MAX_REPEATED = 100_000


@dataclass(frozen=True, slots=True)
class Ask:
    """One request for messages. None: the group's own, or no limit."""

    member: str
    credit: int
    max_bytes: int = 1 << 62
    topics: frozenset[int] | None = None
    filter: object | None = None
    lease_ms: int | None = None
    settled: bool = False
    attempt_id: str | None = None


class Pick(NamedTuple):
    """One message that is delivered. `receipt` None: it was settled as it was sent."""

    queue: QueueKey
    offset: int
    attempt: int
    redelivered: bool
    receipt: Receipt | None


@dataclass(slots=True)
class Reply:
    """What a request for messages gives now.

    Empty, active and not a notice: nothing is to be had, so it may wait. `commit_first`: what
    `take_writes` gives now has to be durable before this is sent. `needs`: the source had to be
    read there before more could be told.
    """

    picks: list[Pick] = field(default_factory=list)
    available: int = 0
    is_active: bool = True
    is_notice: bool = False
    commit_first: bool = False
    needs: tuple[QueueKey, int] | None = None
    #: Of the messages picked.
    size_bytes: int = 0

    @property
    def is_answer(self) -> bool:
        """Whether there is something to send, so that it need not wait."""
        return bool(self.picks) or self.is_notice


class Repeats:
    """Answers by (member, attempt id), for a while: a lost one can be given again."""

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        #: The oldest first.
        self._answers: dict[tuple[str, str], tuple[int, list[Pick]]] = {}
        self._message_count = 0

    def note(self, member: str, attempt_id: str, picks: list[Pick], now_ms: int) -> None:
        """Keep an answer as it is now, in place of one that was noted before."""
        self._drop((member, attempt_id))
        self._answers[member, attempt_id] = now_ms + self._kept_ms, list(picks)
        self._message_count += len(picks)
        self._forget(now_ms)

    def find(self, member: str, attempt_id: str, now_ms: int) -> list[Pick]:
        """Return what was answered before; nothing for a request that is new."""
        self._forget(now_ms)
        return self._answers.get((member, attempt_id), (0, []))[1]

    def _forget(self, now_ms: int) -> None:
        while self._answers:
            first = next(iter(self._answers))
            is_full = len(self._answers) > MAX_REPEATS or self._message_count > MAX_REPEATED
            if self._answers[first][0] > now_ms and not is_full:
                return
            self._drop(first)

    def _drop(self, request: tuple[str, str]) -> None:
        _, picks = self._answers.pop(request, (0, []))
        self._message_count -= len(picks)
