"""A member's request for messages: its limits, its reply, and how it waits. Pure.

A waiting request that is answered is removed. The next request of its member is added at the end,
so the members take turns. Available messages are offered to one waiting request after another. A
request that gets nothing keeps its place in the order until its deadline.
"""

from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from itertools import islice
from typing import NamedTuple, Protocol

import msgspec

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.cursor.leases import Deadlines

#: Larger than the number of messages in any reply.
UNLIMITED = 1 << 62
#: A loop over the waiters first copies this many of them. It copies the others only if it
#: continues.
FEW = 16
#: A group stores at most this many answers, so that it can send them again. If there are more, the
#: client with the most answers loses its oldest answer.
MAX_ANSWERS = 4096
#: These answers may contain at most this many messages together. If there are more, the client
#: with the most messages loses its oldest answer.
MAX_ANSWERED_MESSAGES = 100_000


class UnitLimit(msgspec.Struct, frozen=True):
    """The most messages of one queue, or of one key in a keyed group, that a reply may have."""

    topic: str
    max_messages: int
    queue: int | None = None
    key: str | None = None


class Limits(msgspec.Struct, frozen=True, eq=False):
    """The limits of one request. A key of `keys` is (topic id, number of the key in `Head.key`).
    Two `Limits` are equal only if they are the same object."""

    queues: Mapping[QueueKey, int] = msgspec.field(default_factory=dict)
    keys: Mapping[tuple[int, int], int] = msgspec.field(default_factory=dict)


class Room:
    """The part of the limits that is left while one reply is filled. If `returned_only` is true,
    the reply may have only returned messages (members.py explains them)."""

    def __init__(self, limits: Limits) -> None:
        self.returned_only = False
        self._queues = dict(limits.queues)
        self._keys = dict(limits.keys)
        self._aside: dict[tuple[QueueKey, int], Callable[[int], None]] = {}

    def of_queue(self, queue: QueueKey) -> int:
        """Return how many more messages of a queue the reply may have."""
        return self._queues.get(queue, UNLIMITED)

    def has_key(self, topic_id: int, number: int) -> bool:
        """Return whether the reply may have another message of a key."""
        return self._keys.get((topic_id, number), 1) > 0

    def take(self, queue: QueueKey, number: int) -> None:
        """Count a message of a queue and key that was added to the reply."""
        if queue in self._queues:
            self._queues[queue] -= 1
        key = queue[0], number
        if key in self._keys:
            self._keys[key] -= 1

    def set_aside(self, queue: QueueKey, number: int, offer_again: Callable[[int], None]) -> None:
        """Record a key of a queue that has no room left. The queue's selection does not offer the
        key until `put_back` calls `offer_again`, so the key is checked only once per reply."""
        self._aside[queue, number] = offer_again

    def put_back(self) -> None:
        """Offer again all keys that were put aside."""
        for (_, number), offer_again in self._aside.items():
            offer_again(number)
        self._aside.clear()


class MayReceive(Hashable, Protocol):
    """Returns whether a request may get messages of a topic. Equal objects permit the same
    topics."""

    def __call__(self, topic_id: int, /) -> bool: ...


class MayConsume(Hashable, Protocol):
    """Returns whether a request may get messages of a topic. Equal objects permit the same
    topics."""

    def __call__(self, topic: str, /) -> bool: ...


class ReceiveRequest(msgspec.Struct, frozen=True):
    """One request of a member for messages. If a field is None, the group's own value applies, or
    there is no limit.

    A caller of GroupService gives names and texts: `topic_names`, `filter_text`, `no_local`,
    `unit_limits` and `may_consume`. From these the service sets `topics`, `filter`, `limits` and
    `may_receive`, which the group uses.
    """

    member: str
    max_messages: int = 32
    max_bytes: int = UNLIMITED
    topics: frozenset[int] | None = None
    filter: object | None = None
    lease_ms: int | None = None
    settled: bool = False
    """If true, messages are settled when they are sent; the member gets no receipts."""
    attempt_id: str | None = None
    """A later request with the same id gets the same answer again."""
    limits: Limits | None = None
    client: str = ""
    """The client's address, "" if unknown. A client's waiting requests and stored answers are
    limited."""
    bound: bool = False
    """If true, the leases are bound: they have no deadline, and end when they are settled, when the
    member leaves, or with the broker's process. The member stays in the group until it leaves.
    `lease_ms` and `attempt_id` are ignored."""
    receipt_values: bool = False
    """If true, deliveries have their receipts as `Receipt` values, not as signed texts."""
    may_receive: MayReceive | None = None
    """Called when messages are chosen, not before, because a group may get more topics while a
    request waits. If it is None, messages of every topic of the group are permitted."""
    wait_s: float = 0.0
    """How long to wait for the first message; `math.inf` means without limit."""
    browse: bool = False
    """If true, no message is leased, and the request never waits. A member's next browse continues
    after the messages that this member was shown. After an empty answer, the next browse begins at
    the floors again."""
    include_leased: bool = False
    """If true, a browse also shows messages that may not be leased now because they are leased, or
    may be leased since before a restart."""
    topic_names: Sequence[str] | None = None
    filter_text: str | None = None
    no_local: str | None = None
    """Leave out the messages that this session published. They stay available."""
    unit_limits: Sequence[UnitLimit] = ()
    may_consume: MayConsume | None = None

    def takes(self, topic_id: int) -> bool:
        """Return whether a topic is requested and permitted."""
        if self.topics is not None and topic_id not in self.topics:
            return False
        return self.may_receive is None or self.may_receive(topic_id)


class SelectedMessage(msgspec.Struct, frozen=True, gc=False):
    """One message of a reply. `receipt` is None if the message was settled when it was sent.
    `failures` is the number of earlier deliveries that failed."""

    queue: QueueKey
    offset: int
    attempt: int
    redelivered: bool
    receipt: Receipt | None
    failures: int = 0


class Reply(msgspec.Struct):
    """The reply to a request for messages, while it is being filled and afterwards.

    If it has no messages although `is_active` is true and `is_notice` is false, nothing is
    available, and the request may wait.
    """

    messages: list[SelectedMessage] = msgspec.field(default_factory=list)
    available: int = 0
    is_active: bool = True
    is_notice: bool = False
    #: If true, the rows that `take_writes` returns now must be durable before the reply is sent.
    commit_first: bool = False
    #: The queue and offset that must be fetched before more messages can be added.
    needs: tuple[QueueKey, int] | None = None
    #: If true, the reply stopped at the limit of one event loop iteration: there may be more
    #: messages.
    is_cut: bool = False
    #: The size of the selected messages.
    size_bytes: int = 0
    #: The part of the request's limits that is left, once the reply is being filled; None if there
    #: are no limits.
    room: Room | None = None

    @property
    def is_answer(self) -> bool:
        """Whether there is something to send; if not, the request may wait."""
        return bool(self.messages) or self.is_notice


class Waiter(msgspec.Struct, eq=False):
    """One held request. `ticket` is the caller's handle to answer it."""

    request: ReceiveRequest
    ticket: object
    number: int


class Waiters:
    """The held requests of one group, in the order in which they are served."""

    def __init__(self) -> None:
        self._waiters: dict[int, Waiter] = {}
        self.deadlines: Deadlines[int] = Deadlines()
        """The deadlines of the requests, by their numbers. Only this class may change them."""
        self._last_number = 0
        #: member -> how many of its requests wait.
        self._counts: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._waiters)

    def count_of(self, member: str) -> int:
        """Return how many requests of a member wait."""
        return self._counts.get(member, 0)

    def __iter__(self) -> Iterator[Waiter]:
        """Yield all waiters in order. Waiters may be removed meanwhile. Yielding the first FEW is
        fast even if there are many; usually one of the first takes the messages."""
        first = list(islice(self._waiters.values(), FEW))
        yield from first
        if len(first) == FEW:
            last = first[-1].number
            yield from [waiter for waiter in self._waiters.values() if waiter.number > last]

    def add(self, request: ReceiveRequest, ticket: object, deadline_ms: int | None) -> Waiter:
        """Add a request at the end of the order. If `deadline_ms` is None, it has no deadline."""
        number = self._last_number = self._last_number + 1
        waiter = self._waiters[number] = Waiter(request, ticket, number)
        self._counts[request.member] = self._counts.get(request.member, 0) + 1
        if deadline_ms is not None:
            self.deadlines.set(number, deadline_ms)
        return waiter

    def remove(self, waiter: Waiter) -> bool:
        """Remove a request. Return False if it had been removed before."""
        if waiter.number in self.deadlines.by_key:
            self.deadlines.set(waiter.number, None)
        return self._pop(waiter.number) is not None

    def take_due(self, now_ms: int) -> list[Waiter]:
        """Remove and return the requests whose deadline has passed, sorted by deadline."""
        numbers = self.deadlines.take_due(now_ms, len(self._waiters))
        return [each for each in map(self._pop, numbers) if each is not None]

    def _pop(self, number: int) -> Waiter | None:
        waiter = self._waiters.pop(number, None)
        if waiter is not None:
            member = waiter.request.member
            self._counts[member] -= 1
            if not self._counts[member]:
                del self._counts[member]
        return waiter


class _Answer(NamedTuple):
    until_ms: int
    messages: list[SelectedMessage]
    client: str


class _Share(msgspec.Struct):
    """The stored answers of one client: the requests that they answer, the oldest first, and how
    many messages the answers contain together."""

    requests: dict[tuple[str, str], None] = msgspec.field(default_factory=dict)
    message_count: int = 0


class AnswerCache:
    """Recent answers by (member, attempt id), so that a lost answer can be sent again.

    If there are too many answers, the client with the most answers loses its oldest one.
    """

    def __init__(self, kept_ms: int) -> None:
        self._kept_ms = kept_ms
        #: The oldest first.
        self._answers: dict[tuple[str, str], _Answer] = {}
        self.shares: dict[str, _Share] = {}
        self.message_count = 0

    def store(
        self,
        member: str,
        attempt_id: str,
        messages: list[SelectedMessage],
        now_ms: int,
        client: str = "",
    ) -> None:
        """Store an answer. It replaces an earlier answer to the same attempt id."""
        self._drop((member, attempt_id))
        self._keep((member, attempt_id), _Answer(now_ms + self._kept_ms, list(messages), client))
        self._forget(now_ms)

    def restore(
        self, member: str, attempt_id: str, messages: Sequence[SelectedMessage], answered_ms: int
    ) -> None:
        """Add messages to a stored answer from before a restart; create the answer if these are its
        first messages. After a restart it is not known which client got the answer."""
        before = self._drop((member, attempt_id))
        messages = [*before, *messages]
        self._keep((member, attempt_id), _Answer(answered_ms + self._kept_ms, messages, ""))

    def find(self, member: str, attempt_id: str, now_ms: int) -> list[SelectedMessage]:
        """Return the messages of the earlier answer; an empty list if there is none."""
        self._forget(now_ms)
        answer = self._answers.get((member, attempt_id))
        return answer.messages if answer is not None and answer.until_ms > now_ms else []

    def _forget(self, now_ms: int) -> None:
        while self._answers:
            first = next(iter(self._answers))
            if self._answers[first].until_ms > now_ms:
                break
            self._drop(first)
        while len(self._answers) > MAX_ANSWERS:
            self._drop_oldest(lambda share: len(share.requests))
        while self.message_count > MAX_ANSWERED_MESSAGES:
            self._drop_oldest(lambda share: share.message_count)

    def _drop_oldest(self, size: Callable[[_Share], int]) -> None:
        self._drop(next(iter(max(self.shares.values(), key=size).requests)))

    def _keep(self, request: tuple[str, str], answer: _Answer) -> None:
        self._answers[request] = answer
        share = self.shares.setdefault(answer.client, _Share())
        share.requests[request] = None
        share.message_count += len(answer.messages)
        self.message_count += len(answer.messages)

    def _drop(self, request: tuple[str, str]) -> list[SelectedMessage]:
        """Remove an answer and return its messages."""
        answer = self._answers.pop(request, None)
        if answer is None:
            return []
        share = self.shares[answer.client]
        del share.requests[request]
        share.message_count -= len(answer.messages)
        if not share.requests:
            del self.shares[answer.client]
        self.message_count -= len(answer.messages)
        return answer.messages
