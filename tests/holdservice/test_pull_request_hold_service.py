"""The hold service on a real event loop, and each race that it must win."""

import asyncio
import threading
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import replace
from time import monotonic, thread_time
from typing import Any

import pytest

from holdfast.consumequeue.topics import QueueKey
from holdfast.holdservice import pull_request_hold_service as module
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.errors import HoldLimitExceeded
from holdfast.holdservice.filters import TagFilter, parse_filter
from holdfast.holdservice.pull_request_hold_service import (
    CROWD_LEAD_US,
    MAX_LEAD_MS,
    HoldResult,
    HoldStats,
    Outcome,
    PullRequestHoldService,
)
from tests.support.storage.stored import until

Q0, Q1, OTHER_TOPIC = (1, 0), (1, 1), (2, 0)
FOREVER_S = 10.0
SOON_S = 0.02
A = TagFilter(frozenset({"a"}))


class Store:
    """Queues of one-letter messages; the letter is the tag."""

    def __init__(self) -> None:
        self.queues: dict[QueueKey, str] = {Q0: "", Q1: "", OTHER_TOPIC: ""}
        self.scans: list[tuple[QueueKey, int, int]] = []
        self.before_max_offset: Callable[[], None] = lambda: None

    def max_offset(self, key: QueueKey) -> int | None:
        queue = self.queues.get(key)
        self.before_max_offset()
        return None if queue is None else len(queue)

    def scan(self, key: QueueKey, start: int, end: int, filter: Any) -> int | None:
        self.scans.append((key, start, end))
        matching = (i for i in range(start, end) if self.queues[key][i] in filter.tags)
        return next(matching, end)


class Broker:
    """A store and its hold service, connected as in the real broker."""

    def __init__(self, config: HoldServiceConfig) -> None:
        self.store = Store()
        self.service = PullRequestHoldService(
            config,
            max_offset=lambda key: self.store.max_offset(key),
            scan=lambda *asked: self.store.scan(*asked),
            observe_scan=lambda seconds: self.scan_seconds.append(seconds),
        )
        self.scan_seconds: list[float] = []
        self.pulls: list[asyncio.Task[HoldResult]] = []
        self.expected_rescues = 0

    def publish(self, key: QueueKey, text: str, *, notify: bool = True) -> None:
        self.store.queues[key] += text
        if notify:
            self.notify(key)

    def notify(self, *keys: QueueKey) -> None:
        self.service.message_arriving({key: len(self.store.queues[key]) for key in keys})

    async def hold(
        self,
        waits: Mapping[QueueKey, int] | None = None,
        *,
        wait_s: float = FOREVER_S,
        filter: TagFilter | None = None,
        client: str = "client",
    ) -> HoldResult:
        waits = {Q0: 0} if waits is None else waits
        return await self.service.hold(waits, wait_s=wait_s, client=client, filter=filter)

    async def held(self, *arguments: Any, **options: Any) -> asyncio.Task[HoldResult]:
        """Start a hold and return once it is registered."""
        pull = asyncio.create_task(self.hold(*arguments, **options))
        self.pulls.append(pull)
        await turn()
        assert not pull.done()
        return pull

    @property
    def stats(self) -> HoldStats:
        return self.service.stats()


async def turn() -> None:
    await asyncio.sleep(0)


@pytest.fixture
def config() -> HoldServiceConfig:
    """Return a configuration without the periodic scan, which would hide lost wake-ups."""
    return HoldServiceConfig(scan_interval_ms=3_600_000)


@pytest.fixture
async def broker(config: HoldServiceConfig) -> AsyncIterator[Broker]:
    broker = Broker(config)
    await broker.service.start()
    yield broker
    await broker.service.stop()
    assert broker.stats.held == broker.stats.held_queues == 0
    assert broker.stats.scan_rescues == broker.expected_rescues
    await asyncio.gather(*broker.pulls, return_exceptions=True)


# -- waiting -----------------------------------------------------------------------------------


async def test_a_pull_waits_until_a_message_arrives(broker: Broker) -> None:
    pull = await broker.held()
    broker.publish(Q1, "x")
    broker.publish(Q0, "x")
    assert await pull == HoldResult(Outcome.ARRIVED, {Q0: 0})
    assert broker.stats.woken_total == 1
    assert broker.stats.held == 0


async def test_a_pull_with_a_message_to_read_does_not_wait(broker: Broker) -> None:
    broker.publish(Q1, "x", notify=False)
    assert await broker.hold({Q0: 0, Q1: 0}) == HoldResult(Outcome.ARRIVED, {Q0: 0, Q1: 0})


async def test_a_pull_over_several_queues_wakes_by_any(broker: Broker) -> None:
    broker.publish(Q1, "xx")
    pull = await broker.held({Q0: 0, Q1: 2, OTHER_TOPIC: 0})
    broker.publish(Q1, "x")
    assert await pull == HoldResult(Outcome.ARRIVED, {Q0: 0, Q1: 2, OTHER_TOPIC: 0})
    assert broker.stats.held_queues == 0


async def test_a_thousand_held_pulls_use_no_thread_and_no_reads(broker: Broker) -> None:
    # L4
    threads = threading.active_count()
    for number in range(1000):
        await broker.held({(Q0, Q1)[number % 2]: 0})
    looks: list[int] = []
    broker.store.before_max_offset = lambda: looks.append(1)
    for _ in range(100):
        await turn()
    assert threading.active_count() == threads
    assert not looks
    assert broker.stats.held == 1000
    assert not any(pull.done() for pull in broker.pulls)


async def test_a_pull_without_messages_ends_at_its_deadline(broker: Broker) -> None:
    # L4
    started = monotonic()
    woken = await broker.hold({Q0: 0, Q1: 0}, wait_s=SOON_S)
    assert woken == HoldResult(Outcome.EXPIRED, {Q0: 0, Q1: 0})
    assert monotonic() - started >= SOON_S
    assert broker.stats.expired_total == 1


async def test_a_later_deadline_does_not_delay_an_earlier_one(broker: Broker) -> None:
    later = await broker.held(wait_s=FOREVER_S)
    assert (await broker.hold(wait_s=SOON_S)).outcome is Outcome.EXPIRED
    assert not later.done()
    assert (await broker.hold(wait_s=SOON_S)).outcome is Outcome.EXPIRED


async def test_a_thousand_equal_deadlines_end_in_order(broker: Broker) -> None:
    ended: list[int] = []

    async def wait(number: int) -> None:
        started = monotonic()
        assert (await broker.hold(wait_s=SOON_S)).outcome is Outcome.EXPIRED
        assert monotonic() - started >= SOON_S - MAX_LEAD_MS / 1000
        ended.append(number)

    await asyncio.gather(*map(wait, range(1000)))
    assert ended == list(range(1000))
    assert broker.stats.expired_total == broker.stats.held_max == 1000


async def test_few_deadlines_never_end_early(broker: Broker) -> None:
    crowd = 1000 // CROWD_LEAD_US - 1

    async def wait() -> None:
        started = monotonic()
        assert (await broker.hold(wait_s=SOON_S)).outcome is Outcome.EXPIRED
        assert monotonic() - started >= SOON_S

    await asyncio.gather(*(wait() for _ in range(crowd)))


# -- filters -----------------------------------------------------------------------------------


async def test_a_message_that_does_not_match_is_scanned_once(broker: Broker) -> None:
    # L13, L14
    pull = await broker.held(filter=A, wait_s=SOON_S)
    broker.publish(Q0, "xx")
    broker.publish(Q0, "x")
    assert await pull == HoldResult(Outcome.EXPIRED, {Q0: 3})
    assert broker.store.scans == [(Q0, 0, 2), (Q0, 2, 3)]
    assert broker.stats.filtered_total == 2


async def test_long_scans_are_divided_into_loop_iterations(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SLICE_S", 0.0)
    for tag in "abcd":
        await broker.held(filter=TagFilter(frozenset({tag})))
    broker.publish(Q0, "xd")
    assert len(broker.store.scans) == 1
    await broker.pulls[3]
    assert len(broker.store.scans) == 4
    assert not any(pull.done() for pull in broker.pulls[:3])


# -- the races ---------------------------------------------------------------------------------


async def test_a_message_between_read_and_registration_is_found(broker: Broker) -> None:
    """The pull reads "nothing", the message arrives and is announced, then the pull holds."""
    read = len(broker.store.queues[Q0])
    broker.publish(Q0, "x")
    assert (await broker.hold({Q0: read})).outcome is Outcome.ARRIVED
    assert broker.stats.held_max == 1


async def test_a_message_between_registration_and_wait_is_found(broker: Broker) -> None:
    """A publisher's thread runs exactly between two steps of the loop.

    The loop has read the end, which does not include the message, and has not begun to wait. The
    notice reaches the loop as the reput thread's notices do.
    """
    loop = asyncio.get_running_loop()
    gate = threading.Barrier(2, timeout=10)

    def publish() -> None:
        gate.wait()
        broker.publish(Q0, "x", notify=False)
        loop.call_soon_threadsafe(broker.notify, Q0)
        gate.wait()

    def run_publisher() -> None:
        broker.store.before_max_offset = lambda: None
        gate.wait()
        gate.wait()

    broker.store.before_max_offset = run_publisher
    publisher = threading.Thread(target=publish)
    publisher.start()
    try:
        assert (await broker.hold()).outcome is Outcome.ARRIVED
    finally:
        publisher.join()


async def test_a_thousand_holds_among_a_thousand_arrivals_are_answered_once_each(
    broker: Broker,
) -> None:  # L15, L23
    """Another thread announces arrivals while pulls come, in any order of the threads."""
    loop = asyncio.get_running_loop()
    queue = [0]
    broker.store.queues.clear()
    broker.store.max_offset = lambda key: queue[0]  # type: ignore[method-assign]

    def publish() -> None:
        for number in range(1, 1001):
            queue[0] = number
            loop.call_soon_threadsafe(broker.service.message_arriving, {Q0: number})

    publisher = threading.Thread(target=publish)
    publisher.start()
    answers = 0
    for offset in range(1000):
        woken = await broker.hold({Q0: offset})
        answers += woken.outcome is Outcome.ARRIVED
    publisher.join()
    assert answers == 1000
    assert broker.stats.woken_total == 1000


async def test_late_and_unordered_notifications_wake_no_pull_twice(broker: Broker) -> None:  # L12
    broker.publish(Q0, "xx")
    pull = await broker.held({Q0: 2})
    for max_offset in (1, 2, 0):
        broker.service.message_arriving({Q0: max_offset})
    await turn()
    assert not pull.done()


async def test_if_a_filter_fails_the_pull_wakes(
    broker: Broker, caplog: pytest.LogCaptureFixture
) -> None:
    """If the scan needs the disk or fails, the pull is woken, never dropped."""
    for answer in (lambda *_: None, lambda *_: 1 // 0):
        broker.store.scan = answer  # type: ignore[method-assign]
        offset = len(broker.store.queues[Q0])
        pull = await broker.held({Q0: offset}, filter=A)
        broker.publish(Q0, "x")
        assert await pull == HoldResult(Outcome.ARRIVED, {Q0: offset})
    assert "ZeroDivisionError" in caplog.text
    await broker.held({Q0: len(broker.store.queues[Q0])}, filter=A)


async def test_a_hold_that_cannot_read_the_end_raises_and_leaves_nothing(broker: Broker) -> None:
    def fail() -> None:
        raise OSError("the disk")

    broker.store.before_max_offset = fail
    with pytest.raises(OSError, match="the disk"):
        await broker.hold()
    assert broker.stats.held == 0


async def test_a_pull_is_held_while_the_last_one_is_cancelled(broker: Broker) -> None:
    first = await broker.held()
    first.cancel()
    second = asyncio.create_task(broker.hold())
    await turn()
    await turn()
    assert broker.stats.held == 1
    broker.publish(Q0, "x")
    assert (await second).outcome is Outcome.ARRIVED


async def test_one_notification_covers_many_queues(broker: Broker) -> None:
    first, second = await broker.held({Q0: 0}), await broker.held({Q1: 0})
    both = await broker.held({Q0: 0, Q1: 0})
    for letter in "abcdef":
        broker.publish(Q0, letter, notify=False)
        broker.publish(Q1, letter, notify=False)
    broker.notify(Q0, Q1)
    for pull in (first, second, both):
        assert (await pull).outcome is Outcome.ARRIVED
    assert broker.stats.woken_total == 3


async def test_pulls_of_a_queue_wake_in_their_order(broker: Broker, monkeypatch: Any) -> None:
    monkeypatch.setattr(module, "SLICE_S", 600.0)  # the order is that of one slice
    order: list[int] = []

    async def pull(number: int) -> None:
        filter = A if number % 3 == 0 else None
        await broker.hold(filter=filter)
        order.append(number)

    pulls = [asyncio.create_task(pull(number)) for number in range(100)]
    await turn()
    broker.publish(Q0, "a")
    await asyncio.gather(*pulls)
    assert order == list(range(100))


async def test_a_disconnected_client_frees_its_slot(broker: Broker) -> None:
    pull = await broker.held({Q0: 0, Q1: 0})
    pull.cancel()
    with pytest.raises(asyncio.CancelledError):
        await pull
    assert (broker.stats.held, broker.stats.held_queues) == (0, 0)
    assert broker.stats.cancelled_total == 1


async def test_a_message_wakes_other_pulls_if_one_is_cancelled(broker: Broker) -> None:
    gone, other = await broker.held(), await broker.held()
    gone.cancel()  # the cancelled task has not run yet, so its pull is still held
    broker.publish(Q0, "x")
    assert (await other).outcome is Outcome.ARRIVED
    with pytest.raises(asyncio.CancelledError):
        await gone
    assert broker.stats.held == 0
    assert broker.stats.woken_total == 1


async def test_stop_ends_all_pulls_and_later_ones(broker: Broker) -> None:
    pulls = [await broker.held(), await broker.held({Q1: 0}, filter=A)]
    await broker.service.stop()
    await broker.service.stop()
    assert [(await pull).outcome for pull in pulls] == [Outcome.DRAINING] * 2
    assert await broker.hold() == HoldResult(Outcome.DRAINING, {Q0: 0})
    await broker.service.start()
    await broker.service.start()
    pull = await broker.held()
    broker.publish(Q0, "x")
    assert (await pull).outcome is Outcome.ARRIVED


async def test_deleting_a_topic_answers_its_pulls(broker: Broker) -> None:
    pulls = [await broker.held(), await broker.held({Q0: 0, Q1: 0})]
    other = await broker.held({OTHER_TOPIC: 0})
    broker.service.topic_deleted(1)
    assert [(await pull).outcome for pull in pulls] == [Outcome.DELETED] * 2
    assert not other.done()


async def test_a_pull_on_a_deleted_queue_ends_at_once(broker: Broker) -> None:
    assert await broker.hold({Q0: 0, (9, 9): 5}) == HoldResult(Outcome.DELETED, {Q0: 0, (9, 9): 5})
    assert broker.stats.held == 0


# -- the safety net ----------------------------------------------------------------------------

FAST_SCAN = HoldServiceConfig(scan_interval_ms=10)


async def test_the_scan_finds_lost_wake_ups_and_counts_them(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "SCAN_GRACE_S", 0.0)
    pull = await broker.held()
    filtered = await broker.held({Q1: 0}, filter=A)
    broker.publish(Q0, "x", notify=False)
    broker.publish(Q1, "xa", notify=False)
    await broker.service.scan_once()
    assert await pull == HoldResult(Outcome.ARRIVED, {Q0: 0})
    assert await filtered == HoldResult(Outcome.ARRIVED, {Q1: 1})
    broker.expected_rescues = 2


async def test_a_late_notification_is_not_a_rescue(
    broker: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scan may run in the moment when a message is readable but not yet announced."""
    notified, sleep = asyncio.Event(), asyncio.sleep

    async def sleep_until_notified(seconds: float) -> None:
        await (notified.wait() if seconds == module.SCAN_GRACE_S else sleep(seconds))

    monkeypatch.setattr(asyncio, "sleep", sleep_until_notified)
    pull = await broker.held()
    broker.publish(Q0, "x", notify=False)
    scan = asyncio.create_task(broker.service.scan_once())
    await until(lambda: broker.stats.scans_total > 0)
    assert not pull.done()
    broker.notify(Q0)
    notified.set()
    await scan
    assert (await pull).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("config", [FAST_SCAN])
async def test_the_scan_continues_after_a_failure(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(module, "SCAN_GRACE_S", 0.01)
    pull = await broker.held()
    failures: list[int] = []

    def fail_twice() -> None:
        if len(failures) < 2:
            failures.append(1)
            raise OSError("the disk")

    broker.store.before_max_offset = fail_twice
    await until(lambda: len(failures) == 2)
    assert not pull.done()
    broker.publish(Q0, "x", notify=False)
    assert (await pull).outcome is Outcome.ARRIVED
    assert "the disk" in caplog.text
    broker.expected_rescues = 1


async def test_the_scan_compares_queues_not_pulls(broker: Broker) -> None:
    # L18
    for number in range(10_000):
        await broker.held({(Q0, Q1)[number % 2]: 0})
    compared: list[int] = []
    broker.store.before_max_offset = lambda: compared.append(1)
    took_s = []
    for _ in range(3):
        started_s = thread_time()
        await broker.service.scan_once()
        took_s.append(thread_time() - started_s)
    assert len(compared) == 3 * 2
    assert min(took_s) < 0.05


async def test_the_time_of_a_scan_is_reported_and_a_slow_scan_is_logged(
    broker: Broker, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # L18
    durations = broker.scan_seconds
    await broker.held()
    await broker.service.scan_once()
    assert durations == [broker.stats.last_scan_s]
    assert "took" not in caplog.text
    clock = iter(range(0, 1000, 3))  # each part of the scan takes three seconds
    monkeypatch.setattr(module, "monotonic", lambda: float(next(clock)))
    await broker.service.scan_once()
    assert durations[1] == 6.0
    assert "a scan of 1 held queues took 6.0 s" in caplog.text


async def test_the_scan_ignores_a_deleted_queue(broker: Broker) -> None:
    await broker.held()
    del broker.store.queues[Q0]
    await broker.service.scan_once()
    assert broker.stats.held == 1


# -- short polling -----------------------------------------------------------------------------

SHORT_POLLING = HoldServiceConfig(long_polling=False)


@pytest.mark.parametrize("config", [SHORT_POLLING])
async def test_in_short_polling_only_the_scan_finds_messages(broker: Broker) -> None:
    # L7
    pull = await broker.held()
    broker.publish(Q0, "x")
    await turn()
    assert not pull.done()
    await broker.service.scan_once()
    assert (await pull).outcome is Outcome.ARRIVED


@pytest.mark.parametrize("config", [replace(SHORT_POLLING, short_polling_ms=20)])
async def test_short_polling_holds_no_longer_than_its_interval(broker: Broker) -> None:
    # L7
    woken = await asyncio.wait_for(broker.hold(wait_s=FOREVER_S), 10)
    assert woken.outcome is Outcome.EXPIRED


@pytest.mark.parametrize("config", [replace(SHORT_POLLING, short_polling_ms=20)])
async def test_short_polling_scans_at_its_interval(broker: Broker) -> None:
    await until(lambda: broker.stats.scans_total >= 2)


@pytest.mark.parametrize(
    ("condition", "least", "most"),
    [("a = 1", 30, 256), (" OR ".join(["a > 1"] * 128), 1, 3), (f"a LIKE '{'_' * 900}'", 1, 10)],
)
def test_a_costly_filter_scans_fewer_messages_per_step(
    condition: str, least: int, most: int
) -> None:
    message_filter = parse_filter(None, condition)
    assert message_filter is not None
    assert least <= module.scan_step(message_filter) <= most


async def test_other_waiting_requests_count_in_the_limits() -> None:
    config = HoldServiceConfig(max_held=3, max_held_per_client=2)
    hold = PullRequestHoldService(
        config, max_offset=lambda key: 0, scan=lambda key, start, end, message_filter: end
    )
    hold.occupy_slot("a")
    hold.occupy_slot("a")
    assert hold.stats().held == hold.stats().held_max == 2
    with pytest.raises(HoldLimitExceeded, match="max_held_per_client"):
        await hold.hold({(1, 0): 0}, wait_s=1, client="a")
    pull = asyncio.create_task(hold.hold({(1, 0): 0}, wait_s=30, client="b"))
    await asyncio.sleep(0)
    with pytest.raises(HoldLimitExceeded, match="max_held "):
        hold.occupy_slot("c")
    assert hold.stats().refused_total == 2
    for _ in range(2):
        hold.free_slot("a")
    assert hold.stats().held == 1
    await hold.stop()
    assert (await pull).outcome is Outcome.DRAINING


async def test_the_scan_checks_other_requests_and_counts_rescues() -> None:
    hold = PullRequestHoldService(
        HoldServiceConfig(scan_interval_ms=10),
        max_offset=lambda key: 0,
        scan=lambda key, start, end, message_filter: end,
    )
    found = [2, 1]
    await hold.start(lambda: found.pop() if found else 0)
    await until(lambda: hold.stats().scan_rescues >= 3)
    await hold.stop()


# -- waiting without a coroutine ---------------------------------------------------------------


async def test_a_wait_without_a_coroutine_ends_with_its_result(broker: Broker) -> None:
    wait = broker.service.begin({Q0: 0}, wait_s=FOREVER_S, client="client")
    assert broker.stats.held == 1
    broker.publish(Q0, "a")
    assert wait.future.result() == HoldResult(Outcome.ARRIVED, {Q0: 0})
    assert broker.stats.held == 0
    broker.service.end_cancelled(wait)
    assert (broker.stats.woken_total, broker.stats.cancelled_total) == (1, 0)


async def test_a_cancelled_wait_frees_its_place_once(broker: Broker) -> None:
    wait = broker.service.begin({Q0: 0}, wait_s=FOREVER_S, client="client")
    wait.future.cancel()
    for _ in range(2):
        broker.service.end_cancelled(wait)
    assert (broker.stats.held, broker.stats.cancelled_total) == (0, 1)


async def test_a_wait_may_end_when_it_begins(broker: Broker) -> None:
    broker.publish(Q0, "a")
    arrived = broker.service.begin({Q0: 0}, wait_s=FOREVER_S, client="client")
    assert arrived.future.result().outcome is Outcome.ARRIVED
    unknown = broker.service.begin({(9, 0): 0}, wait_s=FOREVER_S, client="client")
    assert unknown.future.result().outcome is Outcome.DELETED
    await broker.service.stop()
    draining = broker.service.begin({Q1: 0}, wait_s=FOREVER_S, client="client")
    assert draining.future.result() == HoldResult(Outcome.DRAINING, {Q1: 0})
    assert broker.stats.held == 0


async def test_a_wait_that_cannot_begin_leaves_nothing(broker: Broker) -> None:
    def fail() -> None:
        raise RuntimeError("the store failed")

    broker.store.before_max_offset = fail
    with pytest.raises(RuntimeError):
        broker.service.begin({Q0: 0}, wait_s=FOREVER_S, client="client")
    broker.store.before_max_offset = lambda: None
    assert broker.stats.held == 0
