import errno
import threading
import time
from collections.abc import Iterator

import pytest

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.append.syncer import Syncer
from holdfast.commitlog.errors import LogPoisoned
from tests.commitlog.publishing import DEADLINE_S, Events, Publishing, batch, error_of
from tests.support.storage.small_log import SEGMENT_BYTES, raw_batch


@pytest.fixture
def publishing() -> Iterator[Publishing]:
    """Yield a syncer whose flush interval never ends; the appender is not started."""
    made = Publishing().with_syncer()
    made.log.roll()
    yield made
    made.stop()


def _written(publishing: Publishing) -> AppendRequest:
    """Write a block and hand its request to the syncer."""
    publishing.small.append(raw_batch())
    request = AppendRequest(1, [], durable=True)
    _syncer(publishing).put_written([request])
    return request


def _syncer(publishing: Publishing) -> Syncer:
    assert publishing.syncer is not None
    return publishing.syncer


def _kinds(events: Events) -> list[str]:
    return [event.kind for event in events.all]


def test_a_request_completes_after_the_sync_that_covers_it(publishing: Publishing) -> None:
    publishing.disk.hold_syncs()
    request = _written(publishing)
    publishing.disk.wait_for_held_sync()
    assert _kinds(publishing.events) == []
    assert _syncer(publishing).durable_offset == 0
    publishing.disk.release_syncs()
    assert publishing.events.next_completed() is request
    assert request.error is None
    assert _kinds(publishing.events) == ["advanced", "complete"]
    mark = publishing.log.written_offset
    assert publishing.events.of("advanced") == [mark]
    assert _syncer(publishing).durable_offset == mark


def test_waiting_requests_share_one_sync(publishing: Publishing) -> None:
    publishing.disk.hold_syncs()
    first = _written(publishing)
    publishing.disk.wait_for_held_sync()
    others = [_written(publishing) for _ in range(20)]
    before = publishing.disk.changes
    publishing.disk.release_syncs()
    completed = [publishing.events.next_completed() for _ in range(21)]
    assert completed == [first, *others]
    lists = publishing.events.of("complete")
    assert lists == [[first], others]
    assert publishing.disk.changes == before + 1


def test_requests_during_a_sync_wait_for_the_next_one(publishing: Publishing) -> None:
    publishing.disk.hold_syncs()
    first = _written(publishing)
    covered = publishing.log.written_offset
    publishing.disk.wait_for_held_sync()
    second = _written(publishing)
    publishing.disk.release_syncs()
    assert publishing.events.next_completed() is first
    assert publishing.events.next_completed() is second
    assert publishing.events.of("advanced") == [covered, publishing.log.written_offset]


def test_requests_are_single_while_each_sync_completes_one(publishing: Publishing) -> None:
    seen: list[bool] = []
    publishing.disk.hold_syncs()
    first = _written(publishing)
    publishing.disk.wait_for_held_sync()
    seen.append(_syncer(publishing).has_single_requests)
    others = [_written(publishing) for _ in range(2)]
    seen.append(_syncer(publishing).has_single_requests)  # two wait
    publishing.disk.release_syncs()
    assert [publishing.events.next_completed() for _ in range(3)] == [first, *others]
    seen.append(_syncer(publishing).has_single_requests)  # the last sync completed two
    last = _written(publishing)
    assert publishing.events.next_completed() is last
    seen.append(_syncer(publishing).has_single_requests)
    assert seen == [True, False, False, True]


def test_writes_without_requests_are_synced_within_the_flush_interval() -> None:
    publishing = Publishing().with_syncer(flush_interval_s=0.02)
    publishing.log.roll()
    publishing.small.append(raw_batch())
    _syncer(publishing).put_written([])
    assert publishing.events.wait_for("advanced") == publishing.log.written_offset
    assert publishing.events.of("complete") == []
    publishing.stop()


def test_a_waiter_does_not_wait_for_the_flush_interval(publishing: Publishing) -> None:
    publishing.small.append(raw_batch())
    _syncer(publishing).put_written([])
    deadline = time.monotonic() + DEADLINE_S
    while not _syncer(publishing)._timing:  # the interval of an hour has begun
        assert time.monotonic() < deadline
    request = _written(publishing)
    assert publishing.events.next_completed() is request


def test_a_roll_syncs_both_segments(publishing: Publishing) -> None:
    publishing.small.append(raw_batch())
    publishing.log.roll()
    before = publishing.disk.changes
    request = _written(publishing)
    assert publishing.events.next_completed() is request
    assert publishing.disk.changes == before + 3  # one write, two syncs
    before = publishing.disk.changes
    _written(publishing)
    publishing.events.next_completed()
    assert publishing.disk.changes == before + 2  # durable data is not synced again
    assert _syncer(publishing).durable_offset > SEGMENT_BYTES


# -- stopping --------------------------------------------------------------------------------


def test_stopping_syncs_what_is_written(publishing: Publishing) -> None:
    publishing.small.append(raw_batch())
    _syncer(publishing).put_written([])
    _syncer(publishing).stop()
    _syncer(publishing).stop()
    assert publishing.events.of("advanced") == [publishing.log.written_offset]


def test_stopping_completes_waiting_requests(publishing: Publishing) -> None:
    publishing.disk.hold_syncs()
    first = _written(publishing)
    publishing.disk.wait_for_held_sync()
    second = _written(publishing)
    stopping = threading.Thread(target=_syncer(publishing).stop)
    stopping.start()
    publishing.disk.release_syncs()
    stopping.join(DEADLINE_S)
    assert publishing.events.of("complete") == [[first], [second]]


def test_stopping_without_work_syncs_nothing(publishing: Publishing) -> None:
    before = publishing.disk.changes
    _syncer(publishing).stop()
    assert publishing.disk.changes == before


# -- a sync that fails -----------------------------------------------------------------------


def test_a_failed_sync_fails_all_requests_and_is_the_last_one(publishing: Publishing) -> None:
    publishing.disk.hold_syncs()
    publishing.disk.fail("sync", errno.EIO)
    first = _written(publishing)
    publishing.disk.wait_for_held_sync()
    second = _written(publishing)
    publishing.disk.release_syncs()
    completed = [publishing.events.next_completed() for _ in range(2)]
    assert completed == [first, second]
    assert all(isinstance(error_of(request), LogPoisoned) for request in completed)
    failure = publishing.events.wait_for("failed")
    assert isinstance(failure, OSError)
    # When a request is completed with the error, the log already refuses further writes.
    assert _kinds(publishing.events) == ["failed", "complete"]
    assert _syncer(publishing).durable_offset == 0
    # A sync would succeed now, although the data is lost.
    before = publishing.disk.changes
    third = _written(publishing)
    assert publishing.events.next_completed() is third
    assert isinstance(error_of(third), LogPoisoned)
    _syncer(publishing).stop()
    assert publishing.disk.changes == before + 1  # the write of the third block
    assert publishing.events.of("advanced") == []


def test_a_segment_whose_sync_failed_earlier_fails_again(publishing: Publishing) -> None:
    """The kernel reports a failure once: here to the segment thread, which writes a footer."""
    publishing.small.append(raw_batch())
    publishing.disk.fail("sync", errno.EIO)
    with pytest.raises(OSError, match="error"):
        publishing.log.segments[0].sync()
    request = _written(publishing)
    assert publishing.events.next_completed() is request
    assert isinstance(error_of(request), LogPoisoned)


def test_a_failing_callback_is_reported() -> None:
    class Broken(Events):
        def put_durable_offset(self, durable_offset: int) -> None:
            raise RuntimeError("the loop is gone")

    events = Broken()
    publishing = Publishing()
    publishing.log.roll()
    syncer = Syncer(
        publishing.log,
        durable_offset=0,
        flush_interval_s=3600,
        inbox=events,
        on_failure=lambda error: events.note("failed", error),
        monotonic=lambda: 0.0,
    )
    syncer.start()
    publishing.small.append(raw_batch())
    syncer.put_written([AppendRequest(1, [], durable=True)])
    assert isinstance(events.wait_for("failed"), RuntimeError)
    late = AppendRequest(1, [], durable=True)
    syncer.put_written([late])
    assert events.next_completed() is late
    assert isinstance(error_of(late), LogPoisoned)
    syncer.stop()


def test_a_request_during_the_failure_callback_fails_after_it() -> None:
    """The callback makes the broker read-only; who sees an error must find it so."""
    events = Events()
    publishing = Publishing()
    publishing.log.roll()
    publishing.disk.fail("sync", errno.EIO)
    is_failing, may_return = threading.Event(), threading.Event()

    def on_failure(error: Exception) -> None:
        is_failing.set()
        assert may_return.wait(DEADLINE_S)

    syncer = Syncer(
        publishing.log,
        durable_offset=0,
        flush_interval_s=3600,
        inbox=events,
        on_failure=on_failure,
        monotonic=lambda: 0.0,
    )
    syncer.start()
    first, second = (AppendRequest(1, [], durable=True) for _ in range(2))
    publishing.small.append(raw_batch())
    syncer.put_written([first])
    assert is_failing.wait(DEADLINE_S)
    syncer.put_written([second])
    assert _kinds(events) == []
    may_return.set()
    assert [events.next_completed() for _ in range(2)] == [first, second]
    assert isinstance(error_of(second), LogPoisoned)
    syncer.stop()


# -- with the appender -----------------------------------------------------------------------


def test_a_written_publish_never_waits_for_a_sync(publishing: Publishing) -> None:
    publishing.appender.start()
    publishing.disk.hold_syncs()
    durable = publishing.submit(durable=True)
    publishing.disk.wait_for_held_sync()
    for _ in range(5):
        written = publishing.submit()
        assert publishing.events.next_completed() is written
        assert written.error is None
    assert publishing.events.completions(durable) == 0
    publishing.disk.release_syncs()
    assert publishing.events.next_completed() is durable


def test_a_duplicate_completes_when_its_original_is_durable(publishing: Publishing) -> None:
    publishing.appender.start()
    publishing.disk.hold_syncs()
    sent = batch(producer_id=1, sequence=0)
    original = publishing.submit(sent, durable=True)
    publishing.disk.wait_for_held_sync()
    retried = publishing.submit(sent, durable=True)
    written = publishing.submit()  # shows that the retry was processed
    assert publishing.events.next_completed() is written
    assert publishing.events.completions(retried) == 0
    publishing.disk.release_syncs()
    assert publishing.events.next_completed() is original
    assert publishing.events.next_completed() is retried
    assert retried.results[0].duplicate
    assert retried.results[0].base_offset == original.results[0].base_offset
    again = publishing.submit(sent, durable=True)
    before = publishing.disk.changes
    assert publishing.events.next_completed() is again
    assert publishing.disk.changes == before


def test_blocks_record_the_durable_offset_at_their_append(publishing: Publishing) -> None:
    publishing.appender.start()
    marks = []
    for _ in range(3):
        marks.append(_syncer(publishing).durable_offset)
        publishing.submit(durable=True)
        publishing.events.next_completed()
    assert [h.durable_offset for h in publishing.dispatched()] == marks
    assert marks == sorted(set(marks))


def test_a_failed_sync_ends_publishing(publishing: Publishing) -> None:
    """The parts are connected as in the storage: the failed sync poisons the appender."""
    publishing.appender.start()
    publishing.disk.fail("sync", errno.EIO)
    durable = publishing.submit(durable=True)
    assert publishing.events.next_completed() is durable
    assert isinstance(error_of(durable), LogPoisoned)
    publishing.events.wait_for("failed")
    publishing.appender.poison("a sync failed")
    with pytest.raises(LogPoisoned):
        publishing.submit()
