"""The group checker: what members of a group with leases were delivered and what they said of it,
against what the topic holds.

Every call has two times of one clock, in seconds: when it was sent and when its answer was there;
what it did at the broker it did in between. Only what no order of events can explain is refused:

    unknown      a message was delivered that the topic does not hold
    too-early    it was delivered again while a lease was in force and nobody had given it back
    risen        it was delivered again after it was settled and that had been confirmed
    divided      two members held messages of one key at once (keyed groups)
    overtaken    a message was delivered, or confirmed as settled, before an earlier one of its key
                 (keyed groups)
    lost         nobody ever settled it
    letters      what was rejected is not among the dead letters, or twice, or without a reject

An operator may send the group back in a queue meanwhile: what lies from there on may, and must, be
delivered again, and no lease of before holds.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from itertools import combinations, product
from threading import Lock

from tests.support.history import Found, HistoryViolation

Place = tuple[int, int]
"""(queue, offset) of the group's only topic."""

#: What the two clocks, and the broker's whole milliseconds, may differ by.
SLACK_S = 0.05

NEVER = float("inf")

SETTLES = ("ack", "reject")
GIVES_BACK = ("nack", "release", "reject", "leave")


@dataclass(frozen=True, slots=True)
class Delivered:
    """A message as a member got it. `lease_s` is what was asked for."""

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
        """The earliest time at which its lease can have ended by itself."""
        return self.sent_at + self.lease_s - SLACK_S


@dataclass(frozen=True, slots=True)
class Said:
    """What a member said of a message. `had_at` is infinite where no answer came; `status` then
    is empty."""

    verb: str
    place: Place
    receipt: str
    sent_at: float
    had_at: float
    status: str

    @property
    def may_count(self) -> bool:
        """Say whether the broker may have done it."""
        return self.status in ("done", "")


@dataclass(frozen=True, slots=True)
class Sought:
    """The group was sent back to an offset of a queue. `had_at` is infinite without an answer."""

    queue: int
    offset: int
    sent_at: float
    had_at: float = NEVER

    def may_be_between(self, before_s: float, after_s: float) -> bool:
        """Say whether it may have happened between two calls: after the one was sent, and before
        the other's answer was there."""
        return self.had_at > before_s and self.sent_at < after_s


@dataclass(slots=True)
class GroupHistory:
    """What happened to one group, written down by many threads."""

    deliveries: list[Delivered] = field(default_factory=list)
    said: list[Said] = field(default_factory=list)
    settled: set[Place] = field(default_factory=set)
    """What was confirmed as acknowledged or rejected."""
    seeks: list[Sought] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def delivered(self, deliveries: Iterable[Delivered]) -> None:
        """A member was given these."""
        with self._lock:
            self.deliveries += deliveries

    def sought(self, seek: Sought) -> None:
        """The group was sent back, or is about to be."""
        with self._lock:
            self.seeks.append(seek)

    def told(self, said: Iterable[Said]) -> None:
        """A member said these, and was answered or not."""
        with self._lock:
            for each in said:
                self.said.append(each)
                if each.verb in SETTLES and each.status == "done":
                    self.settled.add(each.place)


def check_group(
    history: GroupHistory, final: Collection[Found], *, keyed: bool = False, drained: bool = True
) -> None:
    """Raise HistoryViolation unless the members' story is one that a right broker can cause.

    `drained`: all of `final`, the whole topic, was to be settled.
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
    leases = _Leases(history, keyed=keyed)
    for place, deliveries in by_place.items():
        seeks = [seek for seek in history.seeks if seek.queue == place[0]]
        _check_leases(deliveries, leases, seeks)
        _check_settled(deliveries, said[place], seeks)
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
    """Raise HistoryViolation unless `letters`, of which message each dead letter is one, has what
    was rejected, each once."""
    rejects = [words for words in history.said if words.verb == "reject" and words.may_count]
    if len(set(letters)) < len(letters):
        raise HistoryViolation("letters", f"one is there twice: {sorted(letters)}")
    if missing := {words.place for words in rejects if words.status} - set(letters):
        raise HistoryViolation("letters", f"those of {missing} are not there")
    if invented := set(letters) - {words.place for words in rejects}:
        raise HistoryViolation("letters", f"nobody rejected {invented}")


def _is_back_to(seek: Sought, place: Place) -> bool:
    """Say whether a seek was answered that lets a message come again."""
    return seek.had_at < NEVER and seek.queue == place[0] and seek.offset <= place[1]


class _Leases:
    """When leases can have ended at the earliest. In a keyed group the leases of a key that come
    after one that was given back, or has ended, end with it."""

    def __init__(self, history: GroupHistory, *, keyed: bool) -> None:
        self._said: dict[str, list[Said]] = defaultdict(list)
        for words in history.said:
            self._said[words.receipt].append(words)
        self._of_key: dict[tuple[str, str], list[Delivered]] = defaultdict(list)
        for each in history.deliveries:
            if keyed and each.found.key is not None:
                self._of_key[each.member, each.found.key].append(each)

    def given_back(self, delivery: Delivered) -> float:
        """Return the earliest time at which the message can have been anybody's again."""
        key = delivery.member, delivery.found.key or ""
        earlier = [
            each
            for each in self._of_key.get(key, [])
            if each.place < delivery.place and each.sent_at < delivery.had_at
        ]
        ends = [self._end(each) for each in earlier if not self.is_settled(each)]
        return min([self._end(delivery), *ends])

    def over(self, delivery: Delivered) -> float:
        """Return the earliest time at which its lease can have ended, also by being settled."""
        said = [
            words.sent_at
            for words in self._said[delivery.receipt]
            if words.verb in SETTLES and words.may_count
        ]
        return min([self.given_back(delivery), *said])

    def is_settled(self, delivery: Delivered) -> bool:
        """Say whether its member was told that it is settled."""
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
        # Whichever came first, the second must have come in its lease.
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
    """The first delivery of each message, and the first word that can have settled it, come
    before the first of the next one's are through."""
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
