"""The reput service: visibility, notifications, commits to disk, and the threads of its passes."""

import logging
import random
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import replace
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

import lmdb
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.append.appender import AppendRequest
from holdfast.commitlog.append.producer_sequences import ProducerLimits, ProducerSequences
from holdfast.commitlog.format.batch_header import BatchFlag, BatchHeader
from holdfast.consumequeue.index import reput as reput_module
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.index.reput import ReputService
from holdfast.consumequeue.topics import QueueKey

SIZE = 128
SEGMENT = 10 * SIZE
DURABLE, WRITTEN, GONE = 1, 2, 9
_DEADLINE_S = 20


class Log:
    """Creates headers of a log in which all blocks have the same size."""

    def __init__(self) -> None:
        self.end = 0
        self._ends: dict[QueueKey, int] = {}

    def write(
        self,
        topic_id: int = DURABLE,
        queue_id: int = 0,
        count: int = 1,
        *,
        store_timestamp_us: int = 0,
        flags: int = 0,
        **producer: Any,
    ) -> BatchHeader:
        base = self._ends.get((topic_id, queue_id), 0)
        header = BatchHeader(
            flags,
            SIZE,
            payload_crc=0,
            message_count=count,
            body_bytes=0,
            physical_offset=self.end,
            base_offset=base,
            topic_id=topic_id,
            queue_id=queue_id,
            store_timestamp_us=store_timestamp_us,
            **producer,
        )
        self._ends[topic_id, queue_id] = header.end_offset
        self.end = header.end_physical_offset
        return header


class Reput:
    """A ReputService over a real index, and its notifications."""

    def __init__(
        self,
        directory: Path,
        *,
        eager_tail: bool = False,
        commit_interval_s: float = 0.001,
        max_producers: int = 100,
    ) -> None:
        self.index = Index(directory, 1 << 26)
        self.needs_durable: dict[int, bool] = {DURABLE: True, WRITTEN: False}
        self.notified: list[dict[QueueKey, int]] = []
        self.completed: list[list[AppendRequest]] = []
        self.failures: list[Exception] = []
        self.on_notify: Callable[[dict[QueueKey, int]], None] = lambda advanced: None
        self.on_complete: Callable[[list[AppendRequest]], None] = lambda requests: None
        self._changed = threading.Condition()
        self.service = ReputService(
            self.index,
            queues={},
            sequences=ProducerSequences(expiry_us=1000, limits=ProducerLimits(max_producers)),
            needs_durable=lambda topic_id: self.needs_durable.get(topic_id),
            segment_start=lambda offset: offset // SEGMENT * SEGMENT,
            on_pass=self._on_pass,
            on_failure=partial(self._note, self.failures),
            commit_interval_s=commit_interval_s,
            tail_entries=2,
            eager_tail=eager_tail,
            monotonic=time.monotonic,
        )

    def append(self, headers: list[BatchHeader]) -> None:
        """Report written blocks, as the appender thread does."""
        self.service.put_headers(headers)
        self.service.flush()

    def sync(self, durable_offset: int) -> None:
        """Report a sync, as the sync thread does."""
        self.service.put_durable_offset(durable_offset)
        self.service.flush()

    def finish(self, requests: list[AppendRequest]) -> None:
        """Report finished requests, as both threads do."""
        self.service.put_finished(requests)
        self.service.flush()

    def _on_pass(self, advanced: dict[QueueKey, int], finished: list[AppendRequest]) -> None:
        try:
            if advanced:
                self.on_notify(advanced)
                self._note(self.notified, advanced)
        finally:
            if finished:
                self.on_complete(finished)
                self._note(self.completed, finished)

    def _note(self, seen: list[Any], event: object) -> None:
        with self._changed:
            seen.append(event)
            self._changed.notify_all()

    def hold_notifications(self) -> tuple[threading.Event, threading.Event]:
        """Hold each notification; return the event "one began" and the event that ends the hold."""
        began, go_on = threading.Event(), threading.Event()

        def hold(advanced: dict[QueueKey, int]) -> None:
            began.set()
            assert go_on.wait(_DEADLINE_S)

        self.on_notify = hold
        return began, go_on

    def until(self, condition: Callable[[], object]) -> None:
        """Wait until a condition holds; most conditions become true with a notification."""
        with self._changed:
            for _ in range(_DEADLINE_S * 200):
                if condition():
                    return
                self._changed.wait(0.005)
        raise AssertionError("not in time")

    def indexed(self, log: Log) -> None:
        """Wait until the whole log is indexed in memory."""
        self.until(lambda: self.service.reput_offset == log.end)

    def max_offset(self, topic_id: int, queue_id: int = 0) -> int:
        cq = self.service.queues.get((topic_id, queue_id))
        return 0 if cq is None else cq.max_offset

    def visible(self, topic_id: int) -> list[int]:
        cq = self.service.queues.get((topic_id, 0))
        return [] if cq is None else [unit.base_offset for unit in cq.entries]

    def on_disk(self, topic_id: int) -> list[int]:
        return [unit.base_offset for unit in self.index.units((topic_id, 0), 0)]


@contextmanager
def running(
    directory: Path,
    *,
    durable_offset: int = 0,
    recovered: Sequence[BatchHeader] = (),
    **options: Any,
) -> Iterator[Reput]:
    reput = Reput(directory, **options)
    for header in recovered:
        reput.service.index_recovered(header)
    reput.service.start(durable_offset)
    try:
        yield reput
    finally:
        reput.service.stop()
        reput.service.stop()
        reput.index.close()


NEVER_S = 3600.0

Run = Callable[..., AbstractContextManager[Reput]]


@pytest.fixture(params=[True, False], ids=["eager tail", "reput thread"])
def run(tmp_path: Path, request: pytest.FixtureRequest) -> Run:
    """`running` with both values of the setting, for tests in which no pass waits."""
    return partial(running, tmp_path, eager_tail=request.param)


@pytest.fixture
def log() -> Log:
    return Log()


# -- the thread ----------------------------------------------------------------------------


def test_the_thread_sleeps_while_there_is_nothing_to_commit(run: Run, log: Log) -> None:
    with run(commit_interval_s=0.001) as reput:
        waits = 0

        def monotonic() -> float:
            nonlocal waits
            waits += 1
            return time.monotonic()

        def is_asleep() -> bool:
            before = waits
            time.sleep(0.1)
            return waits == before

        reput.service.monotonic = monotonic
        for _ in range(3):
            reput.until(is_asleep)
            reput.append([log.write(WRITTEN)])
            reput.indexed(log)
            reput.until(lambda: not is_asleep())  # the entry waits for the sync
            reput.sync(log.end)
            reput.until(lambda: not reput.service.uncommitted_count)
        reput.until(is_asleep)
        assert reput.on_disk(WRITTEN) == [0, 1, 2]


# -- what is visible -----------------------------------------------------------------------


def test_durable_topics_become_visible_after_the_sync(run: Run, log: Log) -> None:
    with run() as reput:
        reput.append([log.write(WRITTEN, count=3), log.write(DURABLE, count=5)])
        reput.until(lambda: reput.notified)
        assert reput.notified == [{(WRITTEN, 0): 3}]
        assert (reput.max_offset(WRITTEN), reput.max_offset(DURABLE)) == (3, 0)
        reput.sync(log.end - 1)
        reput.sync(log.end)
        reput.until(lambda: len(reput.notified) == 2)
        assert reput.notified[1] == {(DURABLE, 0): 5}
        assert reput.max_offset(DURABLE) == 5


def test_a_durable_block_is_visible_at_once(run: Run, log: Log) -> None:
    header = log.write(DURABLE)
    with run(durable_offset=SIZE) as reput:
        reput.append([header])
        reput.until(lambda: reput.notified)
        assert reput.max_offset(DURABLE) == 1


def test_order_is_kept_when_a_topic_no_longer_waits_for_the_sync(run: Run, log: Log) -> None:
    with run(commit_interval_s=NEVER_S) as reput:
        reput.append([log.write(DURABLE), log.write(DURABLE, queue_id=1)])
        reput.indexed(log)
        reput.needs_durable[DURABLE] = False
        reput.append([log.write(DURABLE), log.write(DURABLE, queue_id=2)])
        reput.until(lambda: reput.notified)
        # Queue 2 has no waiting entry. Queue 0 has one, so the new entry waits too.
        assert reput.notified == [{(DURABLE, 2): 1}]
        reput.sync(SIZE)
        reput.until(lambda: reput.max_offset(DURABLE) == 1)
        reput.sync(log.end)
        reput.until(lambda: reput.max_offset(DURABLE) == 2)
        assert reput.visible(DURABLE) == [0, 1]
        reput.append([log.write(DURABLE)])
        reput.until(lambda: reput.max_offset(DURABLE) == 3)


def test_a_topic_that_becomes_durable_keeps_its_visible_entries(run: Run, log: Log) -> None:
    with run() as reput:
        reput.append([log.write(WRITTEN)])
        reput.until(lambda: reput.notified)
        reput.needs_durable[WRITTEN] = True
        reput.append([log.write(WRITTEN)])
        reput.indexed(log)
        assert reput.max_offset(WRITTEN) == 1
        reput.sync(log.end)
        reput.until(lambda: reput.max_offset(WRITTEN) == 2)


def test_blocks_of_deleted_topics_are_skipped_but_count_as_indexed(run: Run, log: Log) -> None:
    with run() as reput:
        reput.append([log.write(GONE), log.write(WRITTEN)])
        reput.sync(log.end)
        reput.until(lambda: reput.index.position().physical_offset == log.end)
        assert reput.service.queues.keys() == {(WRITTEN, 0)}
        assert reput.index.queues() == [(WRITTEN, 0)]


# -- notifications -------------------------------------------------------------------------


def test_entries_are_readable_before_the_notification(run: Run, log: Log) -> None:
    readable: list[bool] = []
    with run() as reput:
        reput.on_notify = lambda advanced: readable.append(
            all(reput.max_offset(*key) == end for key, end in advanced.items())
        )
        for _ in range(20):
            reput.append([log.write(WRITTEN), log.write(WRITTEN, 1)])
        reput.until(lambda: reput.max_offset(WRITTEN, 1) == 20)
    assert readable
    assert all(readable)


def test_events_during_a_notification_share_the_next_notification(tmp_path: Path, log: Log) -> None:
    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        began, go_on = reput.hold_notifications()
        reput.append([log.write(WRITTEN)])
        assert began.wait(_DEADLINE_S)
        for _ in range(10):
            reput.append([log.write(WRITTEN), log.write(DURABLE)])
        reput.sync(log.end)
        go_on.set()
        reput.until(lambda: len(reput.notified) == 2)
    assert reput.notified == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 11, (DURABLE, 0): 10}]


def fail(*_: object) -> None:
    raise ZeroDivisionError


def request() -> AppendRequest:
    return AppendRequest(WRITTEN, [], durable=False)


def test_a_request_is_completed_after_the_notification_of_its_entries(run: Run, log: Log) -> None:
    one, two = request(), request()
    visible: list[tuple[int, int]] = []
    with run() as reput:
        reput.on_complete = lambda requests: visible.append(
            (reput.max_offset(WRITTEN), reput.max_offset(DURABLE))
        )
        reput.append([log.write(WRITTEN), log.write(DURABLE)])
        reput.finish([one])
        reput.until(lambda: reput.completed == [[one]])
        reput.sync(log.end)
        reput.finish([two])
        reput.until(lambda: reput.completed == [[one], [two]])
    assert visible == [(1, 0), (1, 1)]


def test_a_pass_is_limited(tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reput_module, "_PASS_SIZE", 4)
    requests = [request() for _ in range(10)]
    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        began, go_on = reput.hold_notifications()
        reput.append([log.write(WRITTEN)])
        assert began.wait(_DEADLINE_S)
        for each in requests:
            reput.finish([each])
        go_on.set()
        reput.until(lambda: len(reput.completed) == 3)
    assert reput.completed == [requests[:4], requests[4:8], requests[8:]]


# -- commits to disk -----------------------------------------------------------------------


def test_only_durable_entries_are_committed(run: Run, log: Log) -> None:
    with run(commit_interval_s=NEVER_S) as reput:
        reput.append([log.write(WRITTEN) for _ in range(4)])
        reput.sync(2 * SIZE)
        reput.indexed(log)
        reput.service.stop()
        assert reput.on_disk(WRITTEN) == [0, 1]
        assert reput.index.position() == ReputPosition(2 * SIZE, 0, 2, 0)
        assert reput.service.uncommitted_count == 2


class _Appended(deque[Any]):
    """A deque to which another thread appends just before each iteration."""

    def __iter__(self) -> Iterator[Any]:
        walk = super().__iter__()
        self.append(self[-1])
        return walk


def test_blocks_may_be_written_while_the_index_is_committed(tmp_path: Path, log: Log) -> None:
    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        reput.append([log.write() for _ in range(3)])
        reput.indexed(log)
        committer = reput.service.committer
        committer.uncommitted = _Appended(committer.uncommitted)
        assert [entry.unit.base_offset for entry in committer.commit(2 * SIZE)] == [0, 1]


def test_the_position_counts_blocks_and_keyed_messages_of_its_segment(run: Run, log: Log) -> None:
    headers = [log.write(WRITTEN, count=3, flags=BatchFlag.KEYS * (n % 2)) for n in range(13)]
    with run() as reput:
        reput.append(headers)
        reput.sync(10 * SIZE)
        reput.until(lambda: reput.index.position() == ReputPosition(10 * SIZE, 0, 10, 15))
        reput.sync(log.end)
        reput.until(lambda: reput.index.position() == ReputPosition(13 * SIZE, SEGMENT, 3, 3))


def test_a_restarted_service_continues_at_the_position(run: Run, log: Log) -> None:
    with run() as reput:
        reput.append([log.write(WRITTEN), log.write(WRITTEN)])
        reput.sync(log.end)
        reput.indexed(log)
    with run(durable_offset=log.end) as reput:
        assert reput.service.reput_offset == log.end
        reput.append([log.write(WRITTEN)])
        reput.indexed(log)
        reput.sync(log.end)
        reput.service.stop()
        assert reput.index.position() == ReputPosition(3 * SIZE, 0, 3, 0)


def test_uncommitted_entries_stay_in_memory(run: Run, log: Log) -> None:
    with run(commit_interval_s=NEVER_S) as reput:
        reput.append([log.write(WRITTEN) for _ in range(50)])
        reput.sync(log.end)
        reput.indexed(log)
        assert reput.visible(WRITTEN) == list(range(50))


def test_committed_entries_leave_memory_except_the_newest(run: Run, log: Log) -> None:
    with run() as reput:
        reput.append([log.write(WRITTEN) for _ in range(50)])
        reput.indexed(log)
        reput.sync(40 * SIZE)
        reput.until(lambda: reput.visible(WRITTEN) == list(range(40, 50)))
        reput.sync(log.end)
        reput.until(lambda: reput.visible(WRITTEN) == [48, 49])
        assert reput.on_disk(WRITTEN) == list(range(50))


def test_an_index_that_cannot_be_committed_catches_up_later(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    commit = Index.commit
    attempts = 0
    is_full = threading.Event()
    is_full.set()

    def failing(self: Index, *args: object) -> None:
        nonlocal attempts
        attempts += 1
        if is_full.is_set():
            raise lmdb.MapFullError("mdb_put: MDB_MAP_FULL")
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "commit", failing)
    with caplog.at_level(logging.WARNING), run() as reput:
        reput.append([log.write(WRITTEN) for _ in range(20)])
        reput.sync(log.end)
        reput.until(lambda: attempts >= 2)
        assert reput.visible(WRITTEN) == list(range(20))
        assert reput.max_offset(WRITTEN) == 20
        is_full.clear()
        reput.until(lambda: reput.on_disk(WRITTEN) == list(range(20)))
        reput.until(lambda: reput.visible(WRITTEN) == [18, 19])
        assert not reput.failures
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "MDB_MAP_FULL" in message]) == 1
    assert len([message for message in messages if "again" in message]) == 1


def test_the_service_starts_with_a_full_disk(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    headers = [log.write(DURABLE) for _ in range(5)]

    def full(*_: object) -> None:
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Index, "commit", full)
        with run(recovered=headers, durable_offset=log.end) as reput:
            assert reput.visible(DURABLE) == list(range(5))
            patched.undo()
            reput.until(lambda: reput.on_disk(DURABLE) == list(range(5)))


@contextmanager
def slow_commit(monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Hold the next commits to LMDB; yield the event that is set when a commit has begun."""
    commit = Index.commit
    began, go_on = threading.Event(), threading.Event()

    def wait(self: Index, *args: object) -> None:
        began.set()
        assert go_on.wait(_DEADLINE_S)
        commit(self, *args)  # type: ignore[arg-type]

    monkeypatch.setattr(Index, "commit", wait)
    try:
        yield began
    finally:
        go_on.set()


def test_the_eager_tail_waits_for_no_commit(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, eager_tail=True) as reput, slow_commit(monkeypatch) as began:
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        assert began.wait(_DEADLINE_S)
        reput.append([log.write(WRITTEN)])
        assert reput.notified == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]


def test_the_reput_thread_notifies_before_it_commits(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    names: list[str] = []
    with running(tmp_path, eager_tail=False) as reput, slow_commit(monkeypatch) as began:
        reput.on_notify = lambda advanced: names.append(threading.current_thread().name)
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        assert began.wait(_DEADLINE_S)
        assert reput.notified == [{(WRITTEN, 0): 1}]
        reput.append([log.write(WRITTEN)])
        assert reput.notified == [{(WRITTEN, 0): 1}]
    assert reput.notified == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]
    assert names == ["holdfast-reput"] * 2


def test_waiting_messages_are_counted(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    with running(tmp_path, eager_tail=False) as reput:
        with slow_commit(monkeypatch) as began:
            reput.append([log.write(WRITTEN, count=3)])
            reput.sync(log.end)
            assert began.wait(_DEADLINE_S)
            reput.append([log.write(GONE, count=4), log.write(WRITTEN, count=5)])
            assert (reput.service.uncommitted_count, reput.service.behind_messages) == (3, 12)
        reput.until(lambda: reput.service.behind_messages == 9)
        reput.sync(log.end)
        reput.until(lambda: reput.service.behind_messages == 0)
        assert reput.service.uncommitted_count == 0


def test_a_backlog_is_committed_without_a_pause(
    run: Run, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "COMMIT_GROUP", 2)
    with run(commit_interval_s=1.0) as reput:
        reput.append([log.write(WRITTEN) for _ in range(100)])
        reput.sync(log.end)
        reput.until(lambda: len(reput.on_disk(WRITTEN)) == 100)


# -- recovery ------------------------------------------------------------------------------


def test_recovered_blocks_are_committed_at_the_start(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_RECOVERY_GROUP", 3)
    headers = [log.write(DURABLE, producer_id=1, sequence=n) for n in range(8)]
    with running(
        tmp_path, recovered=headers, durable_offset=log.end, commit_interval_s=NEVER_S
    ) as reput:
        assert reput.max_offset(DURABLE) == 8
        assert reput.on_disk(DURABLE) == list(range(8))
        assert reput.visible(DURABLE) == [6, 7]
        assert reput.index.position().physical_offset == log.end
        assert not reput.notified  # there are no listeners yet


def test_recovery_commits_only_durable_blocks(
    tmp_path: Path, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_RECOVERY_GROUP", 3)
    headers = [replace(log.write(DURABLE), durable_offset=2 * SIZE) for _ in range(8)]
    reput = Reput(tmp_path, commit_interval_s=NEVER_S)
    for header in headers:
        reput.service.index_recovered(header)
    assert reput.on_disk(DURABLE) == [0, 1]
    reput.service.start(log.end)
    reput.service.stop()
    assert reput.on_disk(DURABLE) == list(range(8))
    reput.index.close()


# -- producers -----------------------------------------------------------------------------


def test_producers_are_stored_as_they_were_at_the_position(run: Run, log: Log) -> None:
    """Later publishes may be lost in a power loss: a retry must not be treated as stored."""
    headers = [log.write(DURABLE, producer_id=7, sequence=n) for n in range(9)]
    with run() as reput:
        reput.append(headers)
        reput.indexed(log)
        reput.sync(3 * SIZE)
        reput.until(lambda: reput.index.position().physical_offset == 3 * SIZE)
        ((key, state),) = reput.index.producers()
        assert key == (7, DURABLE)
        assert [entry.sequence for entry in state.queues[0]] == [0, 1, 2]
        reput.sync(log.end)
        reput.until(lambda: reput.index.position().physical_offset == log.end)
        ((_, state),) = reput.index.producers()
        assert [entry.sequence for entry in state.queues[0]] == [4, 5, 6, 7, 8]


def test_expired_producers_are_deleted_from_the_index(run: Run, log: Log) -> None:
    with run(max_producers=3) as reput:

        def stored(*headers: BatchHeader) -> list[int]:
            reput.append(list(headers))
            reput.sync(log.end)
            reput.until(lambda: reput.index.position().physical_offset == log.end)
            return [producer_id for (producer_id, _), _ in reput.index.producers()]

        first = [log.write(producer_id=n, store_timestamp_us=n) for n in range(1, 6)]
        assert stored(*first) == [1, 2, 3, 4, 5]  # they are not forgotten because of their number
        late = log.write(producer_id=9, store_timestamp_us=1004)
        assert stored(late) == [5, 9]  # the others were silent for longer than the expiry


# -- failures ----------------------------------------------------------------


def test_a_failing_notification_is_reported(run: Run, log: Log) -> None:
    with run() as reput:
        reput.on_notify = fail
        reput.append([log.write(WRITTEN)])
        reput.until(lambda: reput.failures)
    assert isinstance(reput.failures[0], ZeroDivisionError)


def test_requests_are_completed_during_and_after_a_failed_pass(tmp_path: Path, log: Log) -> None:
    notified, go_on = threading.Event(), threading.Event()
    requests = [request() for _ in range(4)]

    def hold_then_fail(advanced: dict[QueueKey, int]) -> None:
        notified.set()
        assert go_on.wait(_DEADLINE_S)
        raise ZeroDivisionError

    with running(tmp_path) as reput:
        reput.on_notify = hold_then_fail
        reput.append([log.write(WRITTEN)])
        reput.finish(requests[:1])
        assert notified.wait(_DEADLINE_S)
        reput.finish(requests[1:2])
        reput.finish(requests[2:3])
        go_on.set()
        reput.until(lambda: list(chain(*reput.completed)) == requests[:3])
        reput.finish(requests[3:])
        reput.until(lambda: list(chain(*reput.completed)) == requests)
    assert reput.failures


def test_a_failing_commit_is_reported(run: Run, log: Log, monkeypatch: pytest.MonkeyPatch) -> None:
    with run() as reput:
        monkeypatch.setattr(Index, "commit", fail)
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        reput.until(lambda: reput.failures)
    assert isinstance(reput.failures[0], ZeroDivisionError)


# -- the threads that run passes -----------------------------------------------------------


@pytest.fixture
def eager_switches() -> Iterator[None]:
    """Switch threads after a few bytecodes instead of thousands."""
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    yield
    sys.setswitchinterval(before)


def _notifying_threads(reput: Reput) -> list[str]:
    """Return a list to which each notification appends the name of its thread."""
    names: list[str] = []
    reput.on_notify = lambda advanced: names.append(threading.current_thread().name)
    return names


def test_the_reporting_thread_runs_the_pass_if_no_other_thread_runs_one(tmp_path: Path) -> None:
    log, sent = Log(), request()
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        names = _notifying_threads(reput)
        reput.service.put_headers([log.write(WRITTEN)])
        reput.service.put_finished([sent])
        assert reput.notified == []
        reput.service.flush()
        assert reput.notified == [{(WRITTEN, 0): 1}]
        assert reput.completed == [[sent]]
        assert names == [threading.current_thread().name]


def test_a_pass_includes_reports_made_meanwhile(tmp_path: Path, log: Log) -> None:
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        began, go_on = reput.hold_notifications()
        reporting = threading.Thread(target=reput.append, args=([log.write(WRITTEN)],))
        reporting.start()
        assert began.wait(_DEADLINE_S)
        reput.append([log.write(WRITTEN)])  # another thread is in a pass: this returns at once
        assert len(reput.notified) == 0
        go_on.set()
        reporting.join(_DEADLINE_S)
        assert reput.notified == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]


def test_the_reput_thread_processes_a_backlog_of_reports(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_PASS_SIZE", 1)
    log = Log()
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        names = _notifying_threads(reput)
        for _ in range(5):
            reput.service.put_headers([log.write(WRITTEN)])
        reput.service.flush()
        reput.until(lambda: reput.max_offset(WRITTEN) == 5)
        reput.until(lambda: len(reput.notified) == 5)
    assert names == [threading.current_thread().name] * 2 + ["holdfast-reput"] * 3


def test_a_failing_pass_raises_nothing_in_the_reporting_thread(tmp_path: Path) -> None:
    log, sent, late = Log(), request(), request()
    with running(tmp_path, eager_tail=True, commit_interval_s=NEVER_S) as reput:
        reput.on_notify = fail
        reput.service.put_headers([log.write(WRITTEN)])
        reput.service.put_finished([sent])
        reput.service.flush()
        assert [type(error) for error in reput.failures] == [ZeroDivisionError]
        reput.finish([late])
        assert reput.completed == [[sent], [late]]


def test_requests_are_completed_after_the_stop(run: Run) -> None:
    sent = request()
    with run(commit_interval_s=NEVER_S) as reput:
        reput.service.stop()
        reput.finish([sent])
        assert reput.completed == [[sent]]


@pytest.mark.usefixtures("eager_switches")
def test_reports_of_several_threads_at_the_same_moment_are_all_processed(run: Run) -> None:
    """No later call processes the work: one of the reporting threads must do it."""
    rounds, thread_count = 200, 3
    together = threading.Barrier(thread_count + 1)
    sent = [[request() for _ in range(thread_count)] for _ in range(rounds)]

    def report(number: int) -> None:
        for each in sent:
            together.wait(_DEADLINE_S)
            reput.service.put_finished([each[number]])
            reput.service.flush()

    with run(commit_interval_s=NEVER_S) as reput:
        threads = [threading.Thread(target=report, args=(n,)) for n in range(thread_count)]
        for thread in threads:
            thread.start()
        try:
            for done in range(1, rounds + 1):
                together.wait(_DEADLINE_S)
                reput.until(lambda: sum(map(len, reput.completed)) == done * thread_count)  # noqa: B023
        finally:
            together.abort()
            for thread in threads:
                thread.join(_DEADLINE_S)


@pytest.mark.usefixtures("eager_switches")
@settings(
    max_examples=30, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(
    eager_tail=st.booleans(),
    groups=st.lists(st.lists(st.booleans(), min_size=1, max_size=4), min_size=1, max_size=40),
    seed=st.integers(0, 2**32),
)
def test_no_report_is_left_and_notifications_are_in_order(
    tmp_path_factory: pytest.TempPathFactory, eager_tail: bool, groups: list[list[bool]], seed: int
) -> None:
    """An appender and a sync thread call the service, and a third thread calls it sometimes.

    In the end all written data is visible, and every request was completed once, not before its
    entries were visible.
    """
    rng = random.Random(seed)
    log = Log()
    written = [
        [log.write(DURABLE if durable else WRITTEN) for durable in durables] for durables in groups
    ]
    ends = [headers[-1].end_physical_offset for headers in written]
    requests = [[request() for _ in range(3)] for _ in groups]
    needs = {
        id(sent): (group, place)
        for group, each in enumerate(requests)
        for place, sent in enumerate(each)
    }
    counts = {
        topic: [
            sum(h.topic_id == topic for g in written[: n + 1] for h in g)
            for n in range(len(written))
        ]
        for topic in (DURABLE, WRITTEN)
    }
    too_early: list[tuple[int, int]] = []
    appended = threading.Semaphore(0)
    rests = [rng.random() < 0.3 for _ in groups]
    with running(
        tmp_path_factory.mktemp("reput"), eager_tail=eager_tail, commit_interval_s=NEVER_S
    ) as reput:

        def check(finished: list[AppendRequest]) -> None:
            for sent in finished:
                group, place = needs[id(sent)]
                if reput.max_offset(WRITTEN) < counts[WRITTEN][group] or (
                    place == 1 and reput.max_offset(DURABLE) < counts[DURABLE][group]
                ):
                    too_early.append((group, place))

        def append() -> None:
            for group, headers in enumerate(written):
                reput.service.put_headers(headers)
                appended.release()
                reput.service.put_finished([requests[group][0]])
                reput.service.flush()

        def sync() -> None:
            group = 0
            while group < len(written):
                appended.acquire()
                reached = group + 1
                while not rests[group] and appended.acquire(blocking=False):
                    reached += 1
                reput.service.put_durable_offset(ends[reached - 1])
                reput.service.put_finished([requests[n][1] for n in range(group, reached)])
                reput.service.flush()
                group = reached

        def flush_sometimes() -> None:
            for group in range(len(written)):
                if rests[group]:
                    reput.service.flush()

        reput.on_complete = check
        threads = [threading.Thread(target=work) for work in (append, sync, flush_sometimes)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(_DEADLINE_S)
        completed = [sent for each in requests for sent in each[:2]]
        reput.until(lambda: sum(map(len, reput.completed)) == len(completed))
        assert reput.max_offset(WRITTEN) == counts[WRITTEN][-1]
        assert reput.max_offset(DURABLE) == counts[DURABLE][-1]
        assert not reput.failures
    assert too_early == []
    found = [id(sent) for each in reput.completed for sent in each]
    assert sorted(found) == sorted(map(id, completed))
    for topic in (WRITTEN, DURABLE):
        notified = [each[topic, 0] for each in reput.notified if (topic, 0) in each]
        assert notified == sorted(notified)
        assert (notified or [0])[-1] == counts[topic][-1]
