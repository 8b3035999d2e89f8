"""The hold table: examples, limits, and a comparison with a model that is a list of waiters."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    multiple,
    rule,
)

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice import hold_table
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from holdfast.holdservice.hold_table import TICKS_PER_S, Deadlines, HeldPull, HoldTable, Scan

Q0, Q1, OTHER_TOPIC = (1, 0), (1, 1), (2, 0)


class Messages:
    """Queues of one-letter messages; a filter is a letter and matches that letter."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, str] = {}
        self.scans: list[tuple[QueueKey, int, int, str]] = []

    def scan(self, key: QueueKey, start: int, end: int, letter: str) -> int | None:
        self.scans.append((key, start, end, letter))
        found = self.queues[key].find(letter, start, end)
        return end if found < 0 else found


def new_table(config: HoldServiceConfig | None = None) -> HoldTable[str]:
    return HoldTable(config or HoldServiceConfig())


def suspend(
    table: HoldTable[str],
    name: str,
    waits: Mapping[QueueKey, int] | None = None,
    *,
    filter: str | None = None,
    client: str = "client",
    deadline: float = 60.0,
) -> HeldPull[str]:
    waits = {Q0: 0} if waits is None else waits
    return table.suspend(waits, deadline=deadline, client=client, ticket=name, filter=filter)


def wake_all(table: HoldTable[str], scan: Scan | None = None) -> list[str]:
    woken = []
    while table.has_arrivals:
        woken += [pull.ticket for pull in table.wake_some(scan or Messages().scan)]
    return woken


def is_empty(table: HoldTable[str]) -> bool:
    counts = (len(table), table.queue_count, table.place_count, table.client_count)
    return counts == (0, 0, 0, 0)


# -- examples ----------------------------------------------------------------------------------


def test_an_arrival_wakes_pulls_below_the_new_end_in_their_order() -> None:
    table = new_table()
    for number in range(5):
        suspend(table, f"p{number}", {Q0: number % 2})
    suspend(table, "elsewhere", {Q1: 0})
    table.message_arriving(Q0, 1)
    assert wake_all(table) == ["p0", "p2", "p4"]
    table.message_arriving(Q0, 2)
    assert wake_all(table) == ["p1", "p3"]
    assert len(table) == 1


def test_a_repeated_or_lower_end_wakes_no_pull() -> None:  # L12
    """Arrival notices may be late or out of order."""
    table = new_table()
    suspend(table, "p", {Q0: 7})
    for max_offset in (7, 5, 7):
        table.message_arriving(Q0, max_offset)
        assert not table.has_arrivals
        assert not table.is_behind(Q0, 7)


def test_a_pull_below_the_recorded_end_wakes() -> None:
    table = new_table()
    suspend(table, "at the end", {Q0: 7})
    table.message_arriving(Q0, 7)
    suspend(table, "behind", {Q0: 6})
    assert wake_all(table) == ["behind"]


def test_a_pull_on_several_queues_wakes_once() -> None:
    table = new_table()
    pull = suspend(table, "p", {Q0: 3, Q1: 5})
    table.message_arriving(Q0, 4)
    table.message_arriving(Q1, 6)
    assert wake_all(table) == ["p"]
    assert pull.scanned == {Q0: 3, Q1: 5}
    assert is_empty(table)


def test_a_filter_keeps_a_pull_held_and_records_the_scanned_offset() -> None:  # L13, L15
    table, messages = new_table(), Messages()
    pull = suspend(table, "p", filter="a")
    messages.queues[Q0] = "bb"
    table.message_arriving(Q0, 2)
    assert wake_all(table, messages.scan) == []
    assert pull.scanned == {Q0: 2}
    messages.queues[Q0] = "bbbab"
    table.message_arriving(Q0, 5)
    assert wake_all(table, messages.scan) == ["p"]
    assert pull.scanned == {Q0: 3}
    assert messages.scans == [(Q0, 0, 2, "a"), (Q0, 2, 5, "a")]
    assert table.filtered_total == 1


def test_equal_filters_scan_a_range_once() -> None:
    table, messages = new_table(), Messages()
    for number in range(100):
        suspend(table, f"a{number}", filter="a")
        suspend(table, f"b{number}", filter="b")
    messages.queues[Q0] = "xb"
    table.message_arriving(Q0, 2)
    assert wake_all(table, messages.scan) == [f"b{number}" for number in range(100)]
    assert messages.scans == [(Q0, 0, 2, "a"), (Q0, 0, 2, "b")]


def test_pull_groups_at_one_offset_are_merged() -> None:
    table, messages = new_table(), Messages()
    first = [suspend(table, f"first{number}", {Q0: 0, Q1: 0}, filter="a") for number in range(2)]
    messages.queues[Q0] = "xx"
    table.message_arriving(Q0, 2)
    late = [suspend(table, f"late{number}", {Q0: 2}, filter="a") for number in range(3)]
    assert wake_all(table, messages.scan) == []
    messages.queues[Q0] = "xxxa"
    table.message_arriving(Q0, 4)
    assert wake_all(table, messages.scan) == ["first0", "first1", "late0", "late1", "late2"]
    assert messages.scans == [(Q0, 0, 2, "a"), (Q0, 2, 4, "a")]
    assert [pull.scanned for pull in (*first, *late)] == [{Q0: 3, Q1: 0}] * 2 + [{Q0: 3}] * 3
    assert is_empty(table)


def test_pull_groups_are_merged_during_a_scan(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hold_table, "SCAN_STEP", 2)
    table, messages = new_table(), Messages()
    for name, offset in [("slow", 0), ("ahead", 2)]:
        suspend(table, name, {Q0: offset}, filter="a")
    messages.queues[Q0] = "xxxx"
    table.message_arriving(Q0, 4)
    assert wake_all(table, messages.scan) == []
    assert [pull.scanned for pull in table.release_all()] == [{Q0: 4}, {Q0: 4}]
    assert messages.scans == [(Q0, 0, 2, "a"), (Q0, 2, 4, "a")]
    assert is_empty(table)


def test_if_a_scan_needs_the_disk_the_pulls_wake() -> None:
    table = new_table()
    pull = suspend(table, "p", filter="a")
    table.message_arriving(Q0, 9)
    assert wake_all(table, lambda *_: None) == ["p"]
    assert pull.scanned == {Q0: 0}


def test_a_costly_filter_is_scanned_in_smaller_steps() -> None:
    table: HoldTable[str] = HoldTable(HoldServiceConfig(), step=lambda filter: len(str(filter)))
    messages = Messages()
    messages.queues[Q0] = "x" * 7
    suspend(table, "costly", filter="abc")
    table.message_arriving(Q0, 7)
    assert wake_all(table, messages.scan) == []
    assert [end - start for _, start, end, _ in messages.scans] == [3, 3, 1]


def test_a_long_range_is_scanned_in_steps() -> None:
    table, messages = new_table(), Messages()
    messages.queues[Q0] = "x" * (2 * hold_table.SCAN_STEP + 10)
    suspend(table, "filtered", filter="a")
    table.message_arriving(Q0, len(messages.queues[Q0]))
    assert table.wake_some(messages.scan) == []
    suspend(table, "plain")  # arrives in between: it needs no scan
    assert [pull.ticket for pull in table.wake_some(messages.scan)] == ["plain"]
    assert wake_all(table, messages.scan) == []
    assert [end - start for _, start, end, _ in messages.scans] == [
        hold_table.SCAN_STEP,
        hold_table.SCAN_STEP,
        10,
    ]


def test_a_scan_that_raises_changes_nothing() -> None:  # L15
    table, messages = new_table(), Messages()
    messages.queues[Q0] = "a"
    suspend(table, "p", filter="a")
    table.message_arriving(Q0, 1)

    def broken(key: QueueKey, start: int, end: int, filter: object) -> int | None:
        raise OSError("the disk")

    with pytest.raises(OSError, match="the disk"):
        table.wake_some(broken)
    assert len(table) == 1
    assert wake_all(table, messages.scan) == ["p"]


def test_a_pull_cancelled_between_arrival_and_wake_is_removed() -> None:
    table, messages = new_table(), Messages()
    gone = suspend(table, "gone", filter="a")
    suspend(table, "other", {Q1: 0}, filter="a")
    messages.queues = {Q0: "a", Q1: "a"}
    table.message_arriving(Q0, 1)
    table.message_arriving(Q1, 1)
    assert table.cancel(gone)
    assert not table.cancel(gone)
    assert wake_all(table, messages.scan) == ["other"]
    assert messages.scans == [(Q1, 0, 1, "a")]
    assert is_empty(table)


def test_deadlines_release_in_their_order() -> None:
    table = new_table()
    suspend(table, "later", deadline=2.0)
    suspend(table, "sooner", {Q1: 0}, deadline=1.0)
    suspend(table, "last", deadline=3.0)
    assert table.next_deadline() == 1.0
    assert [pull.ticket for pull in table.expire(2.5)] == ["sooner", "later"]
    assert table.next_deadline() == 3.0
    assert [pull.ticket for pull in table.expire(3.0)] == ["last"]
    assert table.next_deadline() is None
    assert is_empty(table)


def test_a_deleted_topic_releases_its_pulls_and_no_others() -> None:
    table = new_table()
    suspend(table, "one", {Q1: 0})
    suspend(table, "both", {Q0: 0, Q1: 0})
    suspend(table, "other", {OTHER_TOPIC: 0})
    assert [pull.ticket for pull in table.release_topic(1)] == ["one", "both"]
    assert [pull.ticket for pull in table.release_all()] == ["other"]
    assert is_empty(table)


def test_a_queue_is_behind_until_its_end_is_recorded() -> None:
    table = new_table()
    assert not table.is_behind(Q0, 9)
    suspend(table, "p", {Q0: 4})
    table.message_arriving(Q0, 4)
    assert not table.is_behind(Q0, 4)
    assert table.is_behind(Q0, 5)
    assert table.queue_keys() == [Q0]


# -- limits ------------------------------------------------------------------------------------

Held = Callable[[HoldTable[str], int], object]


@pytest.mark.parametrize(
    ("config", "limit_name", "hold"),
    [
        (
            HoldServiceConfig(max_held=3),
            "max_held",
            lambda table, n: suspend(table, "p", {(1, n): 0}, client=str(n)),
        ),
        (
            HoldServiceConfig(max_held_per_queue=3),
            "max_held_per_queue",
            lambda table, n: suspend(table, "p", client=str(n)),
        ),
        (
            HoldServiceConfig(max_held_per_client=3),
            "max_held_per_client",
            lambda table, n: suspend(table, "p", {(1, n): 0}),
        ),
        (
            HoldServiceConfig(max_held_places=3),
            "max_held_places",
            lambda table, n: suspend(table, "p", {(1, n): 0} if n else {}, client=str(n)),
        ),
    ],
)
def test_limits_are_exact(config: HoldServiceConfig, limit_name: str, hold: Held) -> None:
    table = new_table(config)
    if limit_name == "max_held_places":
        hold(table, 0)  # waits on no queue, so it takes no place
    for number in range(1, 4):
        hold(table, number)
    held = len(table)
    with pytest.raises(HoldLimitExceeded) as caught:
        hold(table, 4)
    assert (caught.value.limit_name, caught.value.limit) == (limit_name, 3)
    assert limit_name in str(caught.value)
    assert len(table) == held
    table.cancel(next(iter(table.release_topic(1))))
    hold(table, 4)


def test_a_poll_counts_once_per_queue_all_or_none() -> None:
    table = new_table(HoldServiceConfig(max_held_places=3))
    suspend(table, "two", {Q0: 0, Q1: 0})
    with pytest.raises(HoldLimitExceeded):
        suspend(table, "two more", {Q0: 0, OTHER_TOPIC: 0})
    assert table.queue_count == 2
    suspend(table, "one more")


@pytest.mark.parametrize(("more", "fits"), [(1, True), (2, True), (3, False)])
def test_the_queues_of_one_client_are_limited(more: int, fits: bool) -> None:
    # M1: one client's polls over many queues took all places
    table = new_table(HoldServiceConfig(max_held_places_per_client=4))

    def hold(client: str, count: int) -> HeldPull[str]:
        waits = {(1, queue): 0 for queue in range(count)}
        return table.suspend(waits, deadline=1.0, client=client, ticket=client)

    first = hold("greedy", 2)
    if fits:
        hold("greedy", more)
    else:
        with pytest.raises(HoldLimitExceeded) as caught:
            hold("greedy", more)
        assert caught.value.limit_name == "max_held_places_per_client"
        assert table.cancel(first)
        hold("greedy", more)
    hold("modest", 4)


def arrive(table: HoldTable[str], pull: HeldPull[str]) -> None:
    table.message_arriving(Q0, 1)
    assert wake_all(table) == [pull.ticket]


@pytest.mark.parametrize(
    "end",
    [
        arrive,
        lambda table, pull: table.cancel(pull),
        lambda table, pull: table.expire(pull.deadline),
        lambda table, pull: table.release_all(),
        lambda table, pull: table.release_topic(1),
    ],
)
def test_every_end_of_a_pull_frees_its_slot(
    end: Callable[[HoldTable[str], HeldPull[str]], object],
) -> None:
    table = new_table(HoldServiceConfig(max_held=1))
    end(table, suspend(table, "p"))
    assert is_empty(table)


# -- against a model ---------------------------------------------------------------------------


@dataclass(frozen=True)
class Waiter:
    """The model's record of a held pull."""

    pull: HeldPull[int]
    waits: Mapping[QueueKey, int]
    filter: str | None
    deadline: float


KEYS = [Q0, Q1, OTHER_TOPIC]
keys = st.sampled_from(KEYS)
letters = st.sampled_from("ab")
LIMITS = HoldServiceConfig(
    max_held=12, max_held_per_queue=8, max_held_per_client=8, max_held_places=16
)


class HoldTableMachine(RuleBasedStateMachine):
    """Messages arrive; notices of them are late, out of order or partial; pulls come and go.

    After all arrivals are processed, exactly those pulls are held that match no announced message.
    """

    pulls = Bundle("pulls")

    def __init__(self) -> None:
        super().__init__()
        self.table: HoldTable[int] = HoldTable(LIMITS)
        self.messages = Messages()
        self.messages.queues = dict.fromkeys(KEYS, "")
        self.announced = dict.fromkeys(KEYS, 0)
        self.waiters: list[Waiter] = []
        self.now = 0.0
        self.count = 0
        self.is_disk_slow = False

    @initialize(step=st.sampled_from([1, 2, 256]))
    def set_step(self, step: int) -> None:
        hold_table.SCAN_STEP = step

    def teardown(self) -> None:
        hold_table.SCAN_STEP = 256

    def scan(self, key: QueueKey, start: int, end: int, letter: str) -> int | None:
        return None if self.is_disk_slow else self.messages.scan(key, start, end, letter)

    def matches(self, key: QueueKey, offset: int, end: int, filter: str | None) -> bool:
        text = self.messages.queues[key][offset:end]
        return bool(text) if filter is None else filter in text

    def is_ready(self, waiter: Waiter) -> bool:
        return any(
            self.matches(key, offset, self.announced[key], waiter.filter)
            for key, offset in waiter.waits.items()
        )

    def took(self, pulls: list[HeldPull[int]]) -> list[Waiter]:
        """Remove from the model the pulls that the table has released."""
        taken = [waiter for waiter in self.waiters if waiter.pull in pulls]
        assert len(taken) == len(pulls), "a pull was released twice"
        self.waiters = [waiter for waiter in self.waiters if waiter.pull not in pulls]
        for waiter in taken:
            self.check_scanned(waiter)
        return taken

    def check_scanned(self, waiter: Waiter) -> None:
        assert waiter.pull.scanned.keys() == waiter.waits.keys()
        for key, reached in waiter.pull.scanned.items():
            assert reached >= waiter.waits[key]
            assert not self.matches(key, waiter.waits[key], reached, waiter.filter)

    @rule(
        target=pulls,
        behind=st.dictionaries(keys, st.sampled_from([0, 0, 0, 1, 5]), min_size=1),
        filter=st.none() | letters,
        client=st.sampled_from("xy"),
        wait=st.integers(1, 200),
    )
    def suspend(
        self, behind: dict[QueueKey, int], filter: str | None, client: str, wait: int
    ) -> object:
        waits = {key: max(0, len(self.messages.queues[key]) - less) for key, less in behind.items()}
        held_by_client = sum(waiter.pull.client == client for waiter in self.waiters)
        is_refused = (
            len(self.waiters) >= LIMITS.max_held
            or held_by_client >= LIMITS.max_held_per_client
            or sum(len(waiter.waits) for waiter in self.waiters) + len(waits)
            > LIMITS.max_held_places
            or any(
                sum(key in waiter.waits for waiter in self.waiters) >= LIMITS.max_held_per_queue
                for key in waits
            )
        )
        deadline = self.now + wait / 100
        self.count += 1
        try:
            pull = self.table.suspend(
                waits, deadline=deadline, client=client, ticket=self.count, filter=filter
            )
        except HoldLimitExceeded:
            assert is_refused
            return multiple()
        assert not is_refused
        waiter = Waiter(pull, waits, filter, deadline)
        self.waiters.append(waiter)
        for key in waits:
            self.announce(key, 0)
        return waiter

    @rule(key=keys, text=st.text("abx", min_size=1, max_size=4))
    def publish(self, key: QueueKey, text: str) -> None:
        self.messages.queues[key] += text

    @rule(key=keys, late=st.integers(0, 3))
    def announce(self, key: QueueKey, late: int) -> None:
        max_offset = max(0, len(self.messages.queues[key]) - late)
        self.table.message_arriving(key, max_offset)
        self.announced[key] = max(self.announced[key], max_offset)

    @rule()
    def wake_some(self) -> None:
        if self.table.has_arrivals:
            assert all(
                self.is_ready(waiter) for waiter in self.took(self.table.wake_some(self.scan))
            )

    @rule()
    def wake_from_a_slow_disk(self) -> None:
        """Filtered pulls then wake without a scan, but only if a message arrived."""
        if self.table.has_arrivals:
            self.is_disk_slow = True
            for waiter in self.took(self.table.wake_some(self.scan)):
                assert self.is_ready(replace(waiter, filter=None))
            self.is_disk_slow = False

    @rule()
    def wake_all(self) -> None:
        woken: list[HeldPull[int]] = []
        while self.table.has_arrivals:
            step = self.table.wake_some(self.scan)
            assert step == sorted(step, key=lambda pull: pull.number)
            woken += step
        assert all(self.is_ready(waiter) for waiter in self.took(woken))
        assert not any(self.is_ready(waiter) for waiter in self.waiters)  # L15

    @rule(waiter=consumes(pulls))
    def cancel(self, waiter: Waiter) -> None:
        was_held = waiter in self.waiters
        assert self.table.cancel(waiter.pull) is was_held
        if was_held:
            self.took([waiter.pull])

    @rule(seconds=st.integers(1, 100))
    def expire(self, seconds: int) -> None:
        self.now += seconds / 100
        due = self.table.expire(self.now)
        assert [pull.deadline for pull in due] == sorted(pull.deadline for pull in due)
        assert all(waiter.deadline <= self.now for waiter in self.took(due))
        assert all(waiter.deadline > self.now - 1 / 100 for waiter in self.waiters)

    @rule(topic_id=st.sampled_from([1, 2]))
    def delete_topic(self, topic_id: int) -> None:
        released = self.took(self.table.release_topic(topic_id))
        assert all(any(key[0] == topic_id for key in waiter.waits) for waiter in released)
        assert not any(key[0] == topic_id for waiter in self.waiters for key in waiter.waits)

    @invariant()
    def what_is_held_is_what_the_model_holds(self) -> None:
        assert len(self.table) == len(self.waiters)
        assert set(self.table.queue_keys()) == {key for w in self.waiters for key in w.waits}
        assert (self.table.next_deadline() is None) is (not self.waiters)
        for waiter in self.waiters:
            assert waiter.pull.is_held
            self.check_scanned(waiter)

    @invariant()
    def held_pulls_equal_the_model(self) -> None:
        """While a held pull has a matching message, the table has arrivals to process."""
        for waiter in self.waiters:
            if self.is_ready(waiter):
                assert self.table.has_arrivals


TestAgainstAModel = HoldTableMachine.TestCase
TestAgainstAModel.settings = settings(max_examples=100, stateful_step_count=40, deadline=None)


# -- deadlines -----------------------------------------------------------------------------


def test_nothing_is_due_before_its_deadline() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 10.0)
    assert deadlines.due(9.999) == []
    assert deadlines.due(10.0) == ["a"]
    assert deadlines.due(10.0) == []


def test_due_items_are_ordered_by_deadline_and_arrival() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name, deadline in [("late", 1.004), ("a", 1.001), ("b", 1.001), ("soon", 0.2)]:
        deadlines.add(name, deadline)
    assert deadlines.due(2.0) == ["soon", "a", "b", "late"]


def test_the_next_deadline_ignores_removed_items() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 1.0)
    deadlines.add("b", 2.0)
    assert deadlines.next() == 1.0
    deadlines.remove("a", 1.0)
    assert deadlines.next() == 2.0
    deadlines.remove("b", 2.0)
    assert deadlines.next() is None
    assert len(deadlines) == 0


def test_what_came_and_went_leaves_nothing_but_its_tick() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.add(number, 60.0 + number / 10_000)
        deadlines.remove(number, 60.0 + number / 10_000)
    assert len(deadlines._ticks) <= TICKS_PER_S + 1
    assert list(deadlines) == []


times = st.floats(0, 1e6) | st.integers(0, 5 * TICKS_PER_S).map(lambda tick: tick / TICKS_PER_S)


@given(st.lists(times), times)
def test_a_deadline_is_never_early_and_at_most_a_tick_late(given: list[float], now: float) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for item, deadline in enumerate(given):
        deadlines.add(item, deadline)
    due = deadlines.due(now)
    assert due == sorted(due, key=given.__getitem__)
    for item, deadline in enumerate(given):
        if deadline > now:
            assert item not in due
        elif deadline <= now - 1 / TICKS_PER_S:
            assert item in due
    following = deadlines.next()
    assert len(deadlines) == len(given) - len(due) == len(list(deadlines))
    if following is not None:
        assert following > now
        assert deadlines.due(following)


def test_no_more_are_taken_than_asked_for_and_the_rest_stay_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for item, deadline in (("b", 1.0002), ("a", 1.0001), ("c", 1.0003), ("d", 2.0)):
        deadlines.add(item, deadline)
    assert deadlines.crowd() == 3
    assert deadlines.due(1.5, 2) == ["a", "b"]
    assert len(deadlines) == 2
    assert deadlines.next() is not None
    assert deadlines.due(1.5, 2) == ["c"]
    assert deadlines.crowd() == 1
    assert deadlines.due(3.0, 2) == ["d"]
    assert deadlines.crowd() == 0
    assert deadlines.next() is None
