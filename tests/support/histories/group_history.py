"""The group checker: compare the deliveries and settlements of a group with the topic's content.

Every call has two times of one clock, in seconds: when the request was sent and when the answer
arrived. Its effect in the broker happened in between. The checker refuses only a history that no
order of events can explain:

    unknown      a delivered message is not in the topic
    risen        a message was redelivered after it was settled and the settlement was confirmed;
                 this rule also applies if its last lease would still be in force
    too-early    a message was redelivered during a lease, and no member had returned the message
    divided      two members had leases of one key at the same time (keyed groups)
    overtaken    a message was delivered, or confirmed as settled, before an earlier one of its key
                 (keyed groups)
    lost         a message was never settled
    letters      a rejected message has no dead letter, a dead letter has no reject, or a message
                 has two dead letters without a seek in between

During the run an operator may seek the group back in a queue. Messages from that offset on may, and
must, be redelivered, and all their earlier leases end.
"""

from collections import Counter
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations, product
from threading import Lock

from tests.support.histories.history import HistoryViolation, Record, group_by

Place = tuple[int, int]
"""(queue, offset) in the only topic of the group."""

#: Tolerance for the difference of the two clocks and for the broker's rounding to milliseconds.
SLACK_S = 0.05

NEVER = float("inf")

SETTLES = ("ack", "reject")
RETURNS = ("nack", "release", "reject", "leave")


@dataclass(frozen=True, slots=True)
class Delivery:
    """A message as a member received it. `lease_s` is the requested lease."""

    member: str
    message: Record
    attempt: int
    redelivered: bool
    receipt: str
    sent_at: float
    answered_at: float
    lease_s: float

    @property
    def place(self) -> Place:
        return self.message.queue, self.message.offset

    @property
    def lease_end(self) -> float:
        """The earliest time at which the lease can have expired."""
        return self.sent_at + self.lease_s - SLACK_S


@dataclass(frozen=True, slots=True)
class SettleCall:
    """One settlement of a message by a member.

    If no answer came, `answered_at` is infinite and `status` is empty.
    """

    verb: str
    place: Place
    receipt: str
    sent_at: float
    answered_at: float
    status: str

    @property
    def may_settle(self) -> bool:
        """Whether the broker may have settled the message because of this call."""
        return self.verb in SETTLES and self.status in ("done", "")

    @property
    def has_settled(self) -> bool:
        """Whether the broker confirmed that the message is settled."""
        return self.verb in SETTLES and self.status == "done"

    @property
    def may_return(self) -> bool:
        """Whether the broker may have returned the message to the group because of this call."""
        return self.verb in RETURNS and self.status in ("done", "")


@dataclass(frozen=True, slots=True)
class Seek:
    """A seek of the group to an offset of a queue. `answered_at` is infinite if no answer came."""

    queue: int
    offset: int
    sent_at: float
    answered_at: float = NEVER

    def may_be_between(self, before_s: float, after_s: float) -> bool:
        """Return whether the seek may have happened between two calls: after the first call was
        sent, and before the second call was answered."""
        return self.answered_at > before_s and self.sent_at < after_s

    def is_at_or_before(self, place: Place) -> bool:
        """Return whether the message is redelivered after this seek."""
        return self.queue == place[0] and self.offset <= place[1]


@dataclass(slots=True)
class GroupHistory:
    """The events of one group. Many threads record them."""

    deliveries: list[Delivery] = field(default_factory=list)
    settle_calls: list[SettleCall] = field(default_factory=list)
    settled: set[Place] = field(default_factory=set)
    """The messages whose acknowledgement or rejection was confirmed."""
    seeks: list[Seek] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def record_deliveries(self, deliveries: Iterable[Delivery]) -> None:
        with self._lock:
            self.deliveries += deliveries

    def record_seek(self, seek: Seek) -> None:
        """Record a seek that was made or is about to be made."""
        with self._lock:
            self.seeks.append(seek)

    def record_settle_calls(self, calls: Iterable[SettleCall]) -> None:
        """Record settlements of a member, with or without an answer."""
        with self._lock:
            for call in calls:
                self.settle_calls.append(call)
                if call.has_settled:
                    self.settled.add(call.place)


def check_group(
    history: GroupHistory,
    final: Collection[Record],
    *,
    keyed: bool = False,
    drained: bool = True,
) -> None:
    """Raise HistoryViolation unless a correct broker can cause this history.

    `drained`: all of `final`, the whole topic, had to be settled.
    """
    stored = {(message.queue, message.offset): message for message in final}
    for each in history.deliveries:
        if stored.get(each.place) != each.message:
            raise HistoryViolation("unknown", f"{each} is not what is stored")
    calls = group_by(history.settle_calls, lambda call: call.place)
    by_place = group_by(history.deliveries, lambda each: each.place)
    seeks = group_by(history.seeks, lambda seek: seek.queue)
    # Check all messages for "risen" first. A broker that forgets settlements forgets the leases
    # too, and the order of the checks must not decide which rule is reported.
    for place, deliveries in by_place.items():
        _check_settled(deliveries, calls[place], seeks[place[0]])
    leases = _Leases(history, keyed=keyed)
    for place, deliveries in by_place.items():
        _check_leases(deliveries, leases, seeks[place[0]])
    if keyed:
        places_by_key = group_by(
            [place for place in sorted(stored) if stored[place].key is not None],
            lambda place: stored[place].key,
        )
        for key, places in places_by_key.items():
            _check_order(f"key {key!r}", places, by_place, calls)
            _check_owner(f"key {key!r}", [d for place in places for d in by_place[place]], leases)
    for place, message in stored.items() if drained else ():
        answered = (each for each in history.seeks if each.answered_at < NEVER)
        last = max((each.sent_at for each in answered if each.is_at_or_before(place)), default=0)
        if not any(call.may_settle and call.answered_at > last for call in calls[place]):
            raise HistoryViolation("lost", f"no member settled {message}")


def check_letters(history: GroupHistory, letters: Collection[Place]) -> None:
    """Raise HistoryViolation unless the dead letters match the rejected messages.

    `letters` has the source message of each dead letter. A rejected message has one dead letter,
    and may have one more for each seek back to it.
    """
    calls = [call for call in history.settle_calls if call.verb == "reject" and call.may_settle]
    rejected = Counter(call.place for call in calls)
    for place, count in Counter(letters).items():
        times_back = sum(seek.is_at_or_before(place) for seek in history.seeks)
        if count > 1 and count > min(rejected[place], 1 + times_back):
            raise HistoryViolation(
                "letters",
                f"{place} is there {count} times: rejected {rejected[place]} times, "
                f"sent back to {times_back} times",
            )
    if missing := {call.place for call in calls if call.status} - set(letters):
        raise HistoryViolation("letters", f"the dead letters of {missing} are missing")
    if invented := set(letters) - set(rejected):
        raise HistoryViolation("letters", f"no member rejected {invented}")


class _Leases:
    """The earliest ends of leases.

    In a keyed group, when a lease of a key ends or its message is returned, the later leases of
    that key end too.
    """

    def __init__(self, history: GroupHistory, *, keyed: bool) -> None:
        self._calls = group_by(history.settle_calls, lambda call: call.receipt)
        self._of_key = group_by(
            [each for each in history.deliveries if keyed and each.message.key is not None],
            lambda each: (each.member, each.message.key),
        )

    def earliest_return(self, delivery: Delivery) -> float:
        """Return the earliest time at which any member can have received the message again."""
        earlier = [
            each
            for each in self._of_key.get((delivery.member, delivery.message.key), [])
            if each.place < delivery.place and each.sent_at < delivery.answered_at
        ]
        ends = [self._end(each) for each in earlier if not self._is_settled(each)]
        return min([self._end(delivery), *ends])

    def earliest_end(self, delivery: Delivery) -> float:
        """Return the earliest time at which its lease can have ended, including by settlement."""
        calls = self._calls[delivery.receipt]
        settled_at = [call.sent_at for call in calls if call.may_settle]
        return min([self.earliest_return(delivery), *settled_at])

    def _is_settled(self, delivery: Delivery) -> bool:
        return any(call.has_settled for call in self._calls[delivery.receipt])

    def _end(self, delivery: Delivery) -> float:
        calls = self._calls[delivery.receipt]
        return min([delivery.lease_end, *(call.sent_at for call in calls if call.may_return)])


def _check_leases(deliveries: list[Delivery], leases: _Leases, seeks: list[Seek]) -> None:
    def is_too_early(first: Delivery, second: Delivery) -> bool:
        return second.answered_at < leases.earliest_return(first) and not any(
            seek.may_be_between(first.sent_at, second.answered_at) for seek in seeks
        )

    for one, other in combinations(deliveries, 2):
        # Either may have been first: a request that was sent earlier may have waited longer.
        if is_too_early(one, other) and is_too_early(other, one):
            raise HistoryViolation("too-early", f"{one} and {other}")


def _check_settled(deliveries: list[Delivery], calls: list[SettleCall], seeks: list[Seek]) -> None:
    confirmed = [call for call in calls if call.has_settled]
    for call, each in product(confirmed, deliveries):
        if each.sent_at > call.answered_at and not any(
            seek.offset <= each.place[1] and seek.may_be_between(call.sent_at, each.answered_at)
            for seek in seeks
        ):
            ago_s = each.sent_at - call.answered_at
            raise HistoryViolation("risen", f"{each}, settled {ago_s:.3f} s before")


def _check_order(
    key: str,
    places: list[Place],
    by_place: dict[Place, list[Delivery]],
    calls: dict[Place, list[SettleCall]],
) -> None:
    """Check the order of the messages of a key.

    The first delivery and the first possible settlement of a message must not come after those of
    the next message.
    """
    delivered_from = settled_from = 0.0
    for place in places:
        deliveries = by_place[place]
        if min([each.answered_at for each in deliveries], default=NEVER) < delivered_from:
            raise HistoryViolation("overtaken", f"{place} of {key} was delivered too early")
        sent_at = min([each.sent_at for each in deliveries], default=NEVER)
        delivered_from = max(delivered_from, sent_at)
        done = [call.answered_at for call in calls[place] if call.has_settled]
        if min(done, default=NEVER) < settled_from:
            raise HistoryViolation("overtaken", f"{place} of {key} was settled too early")
        tried = [call.sent_at for call in calls[place] if call.may_settle]
        settled_from = max(settled_from, min(tried, default=NEVER))


def _check_owner(key: str, deliveries: list[Delivery], leases: _Leases) -> None:
    for one, other in combinations(sorted(deliveries, key=lambda each: each.answered_at), 2):
        if one.member == other.member or other.sent_at <= one.answered_at:
            continue
        if other.answered_at < leases.earliest_end(one):
            raise HistoryViolation("divided", f"{key}: {one} and {other}")
