"""The group checker: compare the deliveries and settlements of a group with the topic's content.

Every call has two times of one clock, in seconds: when the request was sent and when the answer was
there. Its effect in the broker happened in between. The checker refuses only a history that no
order of events can explain:

    unknown      a delivered message is not in the topic
    risen        a message was redelivered after it was settled and the settlement was confirmed;
                 this rule also applies if its last lease would still be in force
    too-early    a message was redelivered during a lease, and nobody had given the message back
    divided      two members held messages of one key at the same time (keyed groups)
    overtaken    a message was delivered, or confirmed as settled, before an earlier one of its key
                 (keyed groups)
    lost         a message was never settled
    letters      a rejected message has no dead letter, a dead letter has no reject, or a message
                 has two dead letters without a seek in between

During the run an operator may seek the group back in a queue. Messages from that offset on may, and
must, be redelivered, and all their earlier leases end.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations, product
from threading import Lock

from tests.support.history import Found, HistoryViolation

Place = tuple[int, int]
"""(queue, offset) in the only topic of the group."""

#: Tolerance for the difference of the two clocks and for the broker's rounding to milliseconds.
SLACK_S = 0.05

NEVER = float("inf")

SETTLES = ("ack", "reject")
GIVES_BACK = ("nack", "release", "reject", "leave")


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a member received it. `lease_s` is the requested lease."""

    member: str
    found: Found
    attempt: int
    redelivered: bool
    receipt: str
    sent_at: float
    had_at: float
    lease_s: float

    @property
    def place(self) -> Place:
        return self.found.queue, self.found.offset

    @property
    def lease_end(self) -> float:
        """The earliest time at which the lease can have expired."""
        return self.sent_at + self.lease_s - SLACK_S


@dataclass(frozen=True, slots=True)
class Said:
    """One settlement of a message by a member.

    If no answer came, `had_at` is infinite and `status` is empty.
    """

    verb: str
    place: Place
    receipt: str
    sent_at: float
    had_at: float
    status: str

    @property
    def may_count(self) -> bool:
        """Return whether the broker may have applied the settlement."""
        return self.status in ("done", "")


@dataclass(frozen=True, slots=True)
class Sought:
    """A seek of the group to an offset of a queue. `had_at` is infinite if no answer came."""

    queue: int
    offset: int
    sent_at: float
    had_at: float = NEVER

    def may_be_between(self, before_s: float, after_s: float) -> bool:
        """Return whether the seek may have happened between two calls.

        That is after the first call was sent, and before the second call was answered.
        """
        return self.had_at > before_s and self.sent_at < after_s


@dataclass(slots=True)
class GroupHistory:
    """The events of one group. Many threads record them."""

    deliveries: list[Delivered] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    settled: set[Place] = field(default_factory=set)
    """The messages whose acknowledgement or rejection was confirmed."""
    seeks: list[Sought] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def delivered(self, deliveries: Iterable[Delivered]) -> None:
        """Record deliveries to a member."""
        with self._lock:
            self.deliveries += deliveries

    def sought(self, seek: Sought) -> None:
        """Record a seek that was made or is about to be made."""
        with self._lock:
            self.seeks.append(seek)

    def told(self, said: Iterable[Said]) -> None:
        """Record settlements of a member, with or without an answer."""
        with self._lock:
            for each in said:
                self.said.append(each)
                if each.verb in SETTLES and each.status == "done":
                    self.settled.add(each.place)


def check_group(
    history: GroupHistory, final: Collection[Found], *, keyed: bool = False, drained: bool = True
) -> None:
    """Raise HistoryViolation unless a correct broker can cause this history.

    `drained`: all of `final`, the whole topic, had to be settled.
    """
    there = {(found.queue, found.offset): found for found in final}
    for each in history.deliveries:
        if there.get(each.place) != each.found:
            raise HistoryViolation("unknown", f"{each} is not what is stored")
    said: dict[Place, list[Said]] = defaultdict(list)
    for words in history.said:
        said[words.place].append(words)
    by_place: dict[Place, list[Delivered]] = defaultdict(list)
    for each in history.deliveries:
        by_place[each.place].append(each)
    seeks: dict[int, list[Sought]] = defaultdict(list)
    for seek in history.seeks:
        seeks[seek.queue].append(seek)
    # Check all messages for "risen" first. A broker that forgets settlements forgets the leases
    # too, and the order of the checks must not decide which rule is reported.
    for place, deliveries in by_place.items():
        _check_settled(deliveries, said[place], seeks[place[0]])
    leases = _Leases(history, keyed=keyed)
    for place, deliveries in by_place.items():
        _check_leases(deliveries, leases, seeks[place[0]])
    if keyed:
        _check_keys(final, by_place, said, leases)
    if drained:
        for place, found in there.items():
            last = max(
                (seek.sent_at for seek in history.seeks if _is_back_to(seek, place)), default=0
            )
            if not any(
                words.verb in SETTLES and words.may_count and words.had_at > last
                for words in said[place]
            ):
                raise HistoryViolation("lost", f"nobody settled {found}")


def check_letters(history: GroupHistory, letters: Collection[Place]) -> None:
    """Raise HistoryViolation unless the dead letters match the rejected messages.

    `letters` has the source message of each dead letter. A rejected message has one dead letter,
    and may have one more for each seek back to it.
    """
    rejects = [words for words in history.said if words.verb == "reject" and words.may_count]
    rejected = Counter(words.place for words in rejects)
    for place, count in Counter(letters).items():
        times_back = sum(
            seek.queue == place[0] and seek.offset <= place[1] for seek in history.seeks
        )
        if count > 1 and count > min(rejected[place], 1 + times_back):
            raise HistoryViolation(
                "letters",
                f"{place} is there {count} times: rejected {rejected[place]} times, "
                f"sent back to {times_back} times",
            )
    if missing := {words.place for words in rejects if words.status} - set(letters):
        raise HistoryViolation("letters", f"those of {missing} are not there")
    if invented := set(letters) - {words.place for words in rejects}:
        raise HistoryViolation("letters", f"nobody rejected {invented}")


def _is_back_to(seek: Sought, place: Place) -> bool:
    """Return whether this seek was answered and allows a redelivery of the message."""
    return seek.had_at < NEVER and seek.queue == place[0] and seek.offset <= place[1]


class _Leases:
    """The earliest ends of leases.

    In a keyed group, when a lease of a key ends or its message is given back, the later leases of
    that key end too.
    """

    def __init__(self, history: GroupHistory, *, keyed: bool) -> None:
        self._said: dict[str, list[Said]] = defaultdict(list)
        for words in history.said:
            self._said[words.receipt].append(words)
        self._of_key: dict[tuple[str, str], list[Delivered]] = defaultdict(list)
        for each in history.deliveries:
            if keyed and each.found.key is not None:
                self._of_key[each.member, each.found.key].append(each)

    def given_back(self, delivery: Delivered) -> float:
        """Return the earliest time at which any member can have received the message again."""
        key = delivery.member, delivery.found.key or ""
        earlier = [
            each
            for each in self._of_key.get(key, [])
            if each.place < delivery.place and each.sent_at < delivery.had_at
        ]
        ends = [self._end(each) for each in earlier if not self.is_settled(each)]
        return min([self._end(delivery), *ends])

    def over(self, delivery: Delivered) -> float:
        """Return the earliest time at which its lease can have ended, including by settlement."""
        said = [
            words.sent_at
            for words in self._said[delivery.receipt]
            if words.verb in SETTLES and words.may_count
        ]
        return min([self.given_back(delivery), *said])

    def is_settled(self, delivery: Delivered) -> bool:
        """Return whether the broker confirmed to the member that the message is settled."""
        return any(
            words.verb in SETTLES and words.status == "done"
            for words in self._said[delivery.receipt]
        )

    def _end(self, delivery: Delivered) -> float:
        said = [
            words.sent_at
            for words in self._said[delivery.receipt]
            if words.verb in GIVES_BACK and words.may_count
        ]
        return min([delivery.lease_end, *said])


def _check_leases(deliveries: list[Delivered], leases: _Leases, seeks: list[Sought]) -> None:
    for one, other in combinations(deliveries, 2):
        first, second = sorted((one, other), key=lambda each: each.sent_at)
        if any(seek.may_be_between(first.sent_at, second.had_at) for seek in seeks):
            continue
        # Whichever delivery was first, the second one was made during the first one's lease.
        if other.had_at < leases.given_back(one) and one.had_at < leases.given_back(other):
            raise HistoryViolation("too-early", f"{one} and {other}")


def _check_settled(deliveries: list[Delivered], said: list[Said], seeks: list[Sought]) -> None:
    confirmed = [words for words in said if words.verb in SETTLES and words.status == "done"]
    for words, each in product(confirmed, deliveries):
        if each.sent_at <= words.had_at or any(
            seek.offset <= each.place[1] and seek.may_be_between(words.sent_at, each.had_at)
            for seek in seeks
        ):
            continue
        ago_s = each.sent_at - words.had_at
        raise HistoryViolation("risen", f"{each}, settled {ago_s:.3f} s before")


def _check_keys(
    final: Collection[Found],
    by_place: dict[Place, list[Delivered]],
    said: dict[Place, list[Said]],
    leases: _Leases,
) -> None:
    keys: dict[str, list[Place]] = defaultdict(list)
    for found in final:
        if found.key is not None:
            keys[found.key].append((found.queue, found.offset))
    for key, places in keys.items():
        places.sort()
        _check_order(key, places, by_place, said)
        _check_owner(key, [each for place in places for each in by_place[place]], leases)


def _check_order(
    key: str,
    places: list[Place],
    by_place: dict[Place, list[Delivered]],
    said: dict[Place, list[Said]],
) -> None:
    """Check the order of the messages of a key.

    The first delivery and the first possible settlement of a message must not come after those of
    the next message.
    """
    delivered_from = settled_from = 0.0
    for place in places:
        deliveries = by_place[place]
        had = min([each.had_at for each in deliveries], default=NEVER)
        if had < delivered_from:
            raise HistoryViolation("overtaken", f"{place} of key {key!r} was delivered too early")
        sent = min([each.sent_at for each in deliveries], default=NEVER)
        delivered_from = max(delivered_from, sent)
        words = [each for each in said[place] if each.verb in SETTLES]
        done = min([each.had_at for each in words if each.status == "done"], default=NEVER)
        if done < settled_from:
            raise HistoryViolation("overtaken", f"{place} of key {key!r} was settled too early")
        tried = min([each.sent_at for each in words if each.may_count], default=NEVER)
        settled_from = max(settled_from, tried)


def _check_owner(key: str, deliveries: list[Delivered], leases: _Leases) -> None:
    for one, other in combinations(sorted(deliveries, key=lambda each: each.had_at), 2):
        if one.member == other.member or other.sent_at <= one.had_at:
            continue
        if other.had_at < leases.over(one):
            raise HistoryViolation("divided", f"key {key!r}: {one} and {other}")
