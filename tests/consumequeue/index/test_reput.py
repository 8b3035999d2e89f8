"""The reput service: visibility, notifications, and commits to disk."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

import lmdb
import pytest

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
        producer_id: int = 0,
        sequence: int = 0,
        timestamp_us: int = 0,
        flags: int = 0,
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
            store_timestamp_us=timestamp_us,
            producer_id=producer_id,
            sequence=sequence,
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
        eager_tail: bool,
        commit_interval_s: float,
        max_producers: int,
    ) -> None:
        self.index = Index(directory, 1 << 26)
        self.needs_durable: dict[int, bool] = {DURABLE: True, WRITTEN: False}
        self.told: list[dict[QueueKey, int]] = []
        self.completed: list[list[AppendRequest]] = []
        self.failures: list[Exception] = []
        self.telling: Callable[[dict[QueueKey, int]], None] = lambda advanced: None
        self.completing: Callable[[list[AppendRequest]], None] = lambda requests: None
        self._changed = threading.Condition()
        self.service = ReputService(
            self.index,
            queues={},
            sequences=ProducerSequences(expiry_us=1000, limits=ProducerLimits(max_producers)),
            needs_durable=lambda topic_id: self.needs_durable.get(topic_id),
            segment_start=lambda offset: offset // SEGMENT * SEGMENT,
            on_pass=self._on_pass,
            on_failure=self._failed,
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
                self._notify(advanced)
        finally:
            if finished:
                self._completed(finished)

    def _notify(self, advanced: dict[QueueKey, int]) -> None:
        self.telling(advanced)
        with self._changed:
            self.told.append(advanced)
            self._changed.notify_all()

    def _completed(self, requests: list[AppendRequest]) -> None:
        self.completing(requests)
        with self._changed:
            self.completed.append(requests)
            self._changed.notify_all()

    def _failed(self, error: Exception) -> None:
        with self._changed:
            self.failures.append(error)
            self._changed.notify_all()

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
    eager_tail: bool = False,
    commit_interval_s: float = 0.001,
    max_producers: int = 100,
    durable_offset: int = 0,
    recovered: list[BatchHeader] | None = None,
) -> Iterator[Reput]:
    reput = Reput(
        directory,
        eager_tail=eager_tail,
        commit_interval_s=commit_interval_s,
        max_producers=max_producers,
    )
    for header in recovered or []:
        reput.service.index_recovered(header)
    reput.service.start(durable_offset)
    try:
        yield reput
    finally:
        reput.service.stop()
        reput.service.stop()
        reput.index.close()


NEVER_S = 3600.0

#: For tests in which no pass waits: they pass with both values of the setting.
with_and_without_eager_tail = pytest.mark.parametrize("eager_tail", [True, False])


# -- what is visible -----------------------------------------------------------------------


@with_and_without_eager_tail
def test_a_written_topic_is_visible_at_once_and_a_durable_one_after_the_sync(
    tmp_path: Path,
    eager_tail: bool,
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(WRITTEN, count=3), log.write(DURABLE, count=5)])
        reput.until(lambda: reput.told)
        assert reput.told == [{(WRITTEN, 0): 3}]
        assert (reput.max_offset(WRITTEN), reput.max_offset(DURABLE)) == (3, 0)
        reput.sync(log.end - 1)
        reput.sync(log.end)
        reput.until(lambda: len(reput.told) == 2)
        assert reput.told[1] == {(DURABLE, 0): 5}
        assert reput.max_offset(DURABLE) == 5


@with_and_without_eager_tail
def test_what_is_already_durable_is_visible_at_once(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    header = log.write(DURABLE)
    with running(tmp_path, eager_tail=eager_tail, durable_offset=SIZE) as reput:
        reput.append([header])
        reput.until(lambda: reput.told)
        assert reput.max_offset(DURABLE) == 1


@with_and_without_eager_tail
def test_order_is_kept_when_a_topic_no_longer_waits_for_the_sync(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=NEVER_S) as reput:
        reput.append([log.write(DURABLE), log.write(DURABLE, queue_id=1)])
        reput.indexed(log)
        reput.needs_durable[DURABLE] = False
        reput.append([log.write(DURABLE), log.write(DURABLE, queue_id=2)])
        reput.until(lambda: reput.told)
        # Queue 2 has no waiting entry. Queue 0 has one, so the new entry waits too.
        assert reput.told == [{(DURABLE, 2): 1}]
        reput.sync(SIZE)
        reput.until(lambda: reput.max_offset(DURABLE) == 1)
        reput.sync(log.end)
        reput.until(lambda: reput.max_offset(DURABLE) == 2)
        assert reput.visible(DURABLE) == [0, 1]
        reput.append([log.write(DURABLE)])
        reput.until(lambda: reput.max_offset(DURABLE) == 3)


@with_and_without_eager_tail
def test_a_topic_that_begins_to_wait_keeps_what_it_has_shown(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(WRITTEN)])
        reput.until(lambda: reput.told)
        reput.needs_durable[WRITTEN] = True
        reput.append([log.write(WRITTEN)])
        reput.indexed(log)
        assert reput.max_offset(WRITTEN) == 1
        reput.sync(log.end)
        reput.until(lambda: reput.max_offset(WRITTEN) == 2)


@with_and_without_eager_tail
def test_what_belongs_to_no_topic_is_passed_over_but_counted_as_indexed(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(GONE), log.write(WRITTEN)])
        reput.sync(log.end)
        reput.until(lambda: reput.index.position().physical_offset == log.end)
        assert reput.service.queues.keys() == {(WRITTEN, 0)}
        assert reput.index.queues() == [(WRITTEN, 0)]


# -- notifications -------------------------------------------------------------------------


@with_and_without_eager_tail
def test_entries_are_readable_before_anybody_is_told(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    readable: list[bool] = []
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.telling = lambda advanced: readable.append(
            all(reput.max_offset(*key) == end for key, end in advanced.items())
        )
        for _ in range(20):
            reput.append([log.write(WRITTEN), log.write(WRITTEN, 1)])
        reput.until(lambda: reput.max_offset(WRITTEN, 1) == 20)
    assert readable
    assert all(readable)


def test_what_happens_while_one_is_told_is_told_together(tmp_path: Path) -> None:
    log = Log()
    told_first, go_on = threading.Event(), threading.Event()

    def hold(advanced: dict[QueueKey, int]) -> None:
        told_first.set()
        assert go_on.wait(_DEADLINE_S)

    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        reput.telling = hold
        reput.append([log.write(WRITTEN)])
        assert told_first.wait(_DEADLINE_S)
        for _ in range(10):
            reput.append([log.write(WRITTEN), log.write(DURABLE)])
        reput.sync(log.end)
        go_on.set()
        reput.until(lambda: len(reput.told) == 2)
    assert reput.told == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 11, (DURABLE, 0): 10}]


def request() -> AppendRequest:
    return AppendRequest(WRITTEN, [], durable=False)


@with_and_without_eager_tail
def test_a_request_is_completed_once_what_it_wrote_was_told(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    one, two = request(), request()
    visible: list[tuple[int, int]] = []
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.completing = lambda requests: visible.append(
            (reput.max_offset(WRITTEN), reput.max_offset(DURABLE))
        )
        reput.append([log.write(WRITTEN), log.write(DURABLE)])
        reput.finish([one])
        reput.until(lambda: reput.completed == [[one]])
        reput.sync(log.end)
        reput.finish([two])
        reput.until(lambda: reput.completed == [[one], [two]])
    assert visible == [(1, 0), (1, 1)]


def test_a_busy_thread_tells_now_and_then(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reput_module, "_PASS_SIZE", 4)
    log = Log()
    told_first, go_on = threading.Event(), threading.Event()

    def hold(advanced: dict[QueueKey, int]) -> None:
        told_first.set()
        assert go_on.wait(_DEADLINE_S)

    requests = [request() for _ in range(10)]
    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        reput.telling = hold
        reput.append([log.write(WRITTEN)])
        assert told_first.wait(_DEADLINE_S)
        for each in requests:
            reput.finish([each])
        go_on.set()
        reput.until(lambda: len(reput.completed) == 3)
    assert reput.completed == [requests[:4], requests[4:8], requests[8:]]


# -- commits to disk -----------------------------------------------------------------------


@with_and_without_eager_tail
def test_only_what_is_durable_is_committed(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=NEVER_S) as reput:
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


def test_what_is_written_while_the_index_is_committed_ends_no_thread(tmp_path: Path) -> None:
    log = Log()
    with running(tmp_path, commit_interval_s=NEVER_S) as reput:
        reput.append([log.write() for _ in range(3)])
        reput.indexed(log)
        committer = reput.service.committer
        committer.uncommitted = _Appended(committer.uncommitted)
        assert [entry.unit.base_offset for entry in committer.commit(2 * SIZE)] == [0, 1]


@with_and_without_eager_tail
def test_the_position_counts_blocks_and_keyed_messages_of_its_segment(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    headers = [log.write(WRITTEN, count=3, flags=BatchFlag.KEYS * (n % 2)) for n in range(13)]
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append(headers)
        reput.sync(10 * SIZE)
        reput.until(lambda: reput.index.position() == ReputPosition(10 * SIZE, 0, 10, 15))
        reput.sync(log.end)
        reput.until(lambda: reput.index.position() == ReputPosition(13 * SIZE, SEGMENT, 3, 3))


@with_and_without_eager_tail
def test_a_restarted_service_goes_on_from_the_position(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(WRITTEN), log.write(WRITTEN)])
        reput.sync(log.end)
        reput.indexed(log)
    with running(tmp_path, eager_tail=eager_tail, durable_offset=log.end) as reput:
        assert reput.service.reput_offset == log.end
        reput.append([log.write(WRITTEN)])
        reput.indexed(log)
        reput.sync(log.end)
        reput.service.stop()
        assert reput.index.position() == ReputPosition(3 * SIZE, 0, 3, 0)


@with_and_without_eager_tail
def test_nothing_is_forgotten_that_is_not_on_the_disk(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=NEVER_S) as reput:
        reput.append([log.write(WRITTEN) for _ in range(50)])
        reput.sync(log.end)
        reput.indexed(log)
        assert reput.visible(WRITTEN) == list(range(50))


@with_and_without_eager_tail
def test_what_is_on_the_disk_is_forgotten_but_for_the_newest(
    tmp_path: Path, eager_tail: bool
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(WRITTEN) for _ in range(50)])
        reput.indexed(log)
        reput.sync(40 * SIZE)
        reput.until(lambda: reput.visible(WRITTEN) == list(range(40, 50)))
        reput.sync(log.end)
        reput.until(lambda: reput.visible(WRITTEN) == [48, 49])
        assert reput.on_disk(WRITTEN) == list(range(50))


@with_and_without_eager_tail
def test_an_index_that_cannot_be_committed_lags_and_catches_up(
    tmp_path: Path,
    eager_tail: bool,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    log = Log()
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
    with caplog.at_level(logging.WARNING), running(tmp_path, eager_tail=eager_tail) as reput:
        reput.append([log.write(WRITTEN) for _ in range(20)])
        reput.sync(log.end)
        reput.until(lambda: attempts >= 5)
        assert reput.visible(WRITTEN) == list(range(20))
        assert reput.max_offset(WRITTEN) == 20
        is_full.clear()
        reput.until(lambda: reput.on_disk(WRITTEN) == list(range(20)))
        reput.until(lambda: reput.visible(WRITTEN) == [18, 19])
        assert not reput.failures
    messages = [record.getMessage() for record in caplog.records]
    assert len([message for message in messages if "MDB_MAP_FULL" in message]) == 1
    assert len([message for message in messages if "again" in message]) == 1


@with_and_without_eager_tail
def test_a_full_index_does_not_keep_the_service_from_starting(
    tmp_path: Path, eager_tail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    headers = [log.write(DURABLE) for _ in range(5)]

    def full(*_: object) -> None:
        raise lmdb.DiskError("mdb_txn_commit: No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(Index, "commit", full)
        with running(
            tmp_path, eager_tail=eager_tail, recovered=headers, durable_offset=log.end
        ) as reput:
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


def test_the_eager_tail_does_not_wait_for_a_commit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    with running(tmp_path, eager_tail=True) as reput, slow_commit(monkeypatch) as began:
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        assert began.wait(_DEADLINE_S)
        reput.append([log.write(WRITTEN)])
        assert reput.told == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]


def test_without_the_eager_tail_the_reput_thread_notifies_and_then_commits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
    names: list[str] = []
    with running(tmp_path, eager_tail=False) as reput, slow_commit(monkeypatch) as began:
        reput.telling = lambda advanced: names.append(threading.current_thread().name)
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        assert began.wait(_DEADLINE_S)
        assert reput.told == [{(WRITTEN, 0): 1}]
        reput.append([log.write(WRITTEN)])
        assert reput.told == [{(WRITTEN, 0): 1}]
    assert reput.told == [{(WRITTEN, 0): 1}, {(WRITTEN, 0): 2}]
    assert names == ["holdfast-reput"] * 2


def test_what_waits_for_the_reput_thread_is_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()
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


@with_and_without_eager_tail
def test_a_backlog_is_committed_without_a_pause(
    tmp_path: Path, eager_tail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "COMMIT_GROUP", 2)
    log = Log()
    with running(tmp_path, eager_tail=eager_tail, commit_interval_s=1.0) as reput:
        reput.append([log.write(WRITTEN) for _ in range(100)])
        reput.sync(log.end)
        reput.until(lambda: len(reput.on_disk(WRITTEN)) == 100)


# -- recovery ------------------------------------------------------------------------------


def test_what_recovery_found_is_visible_and_committed_when_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_RECOVERY_GROUP", 3)
    log = Log()
    headers = [log.write(DURABLE, producer_id=1, sequence=n) for n in range(8)]
    with running(
        tmp_path, recovered=headers, durable_offset=log.end, commit_interval_s=NEVER_S
    ) as reput:
        assert reput.max_offset(DURABLE) == 8
        assert reput.on_disk(DURABLE) == list(range(8))
        assert reput.visible(DURABLE) == [6, 7]
        assert reput.index.position().physical_offset == log.end
        assert not reput.told  # there are no listeners yet


def test_recovery_commits_no_more_than_is_proven_durable_before_it_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reput_module, "_RECOVERY_GROUP", 3)
    log = Log()
    headers = [replace(log.write(DURABLE), durable_offset=2 * SIZE) for _ in range(8)]
    reput = Reput(tmp_path, eager_tail=False, commit_interval_s=NEVER_S, max_producers=100)
    for header in headers:
        reput.service.index_recovered(header)
    assert reput.on_disk(DURABLE) == [0, 1]
    reput.service.start(log.end)
    reput.service.stop()
    assert reput.on_disk(DURABLE) == list(range(8))
    reput.index.close()


# -- producers -----------------------------------------------------------------------------


@with_and_without_eager_tail
def test_producers_are_stored_as_they_were_at_the_position(
    tmp_path: Path, eager_tail: bool
) -> None:
    """Later publishes may be lost in a power loss: a retry must not be treated as stored."""
    log = Log()
    headers = [log.write(DURABLE, producer_id=7, sequence=n) for n in range(9)]
    with running(tmp_path, eager_tail=eager_tail) as reput:
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


@with_and_without_eager_tail
def test_forgotten_producers_leave_the_index(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()
    with running(tmp_path, eager_tail=eager_tail, max_producers=3) as reput:

        def stored(*headers: BatchHeader) -> list[int]:
            reput.append(list(headers))
            reput.sync(log.end)
            reput.until(lambda: reput.index.position().physical_offset == log.end)
            return [producer_id for (producer_id, _), _ in reput.index.producers()]

        first = [log.write(producer_id=n, timestamp_us=n) for n in range(1, 6)]
        assert stored(*first) == [1, 2, 3, 4, 5]  # they are not forgotten because of their number
        late = log.write(producer_id=9, timestamp_us=1004)
        assert stored(late) == [5, 9]  # the others were silent for longer than the expiry


# -- threads that end early ----------------------------------------------------------------


@with_and_without_eager_tail
def test_a_reput_thread_that_fails_says_so(tmp_path: Path, eager_tail: bool) -> None:
    log = Log()

    def fail(advanced: dict[QueueKey, int]) -> None:
        raise ZeroDivisionError

    with running(tmp_path, eager_tail=eager_tail) as reput:
        reput.telling = fail
        reput.append([log.write(WRITTEN)])
        reput.until(lambda: reput.failures)
    assert isinstance(reput.failures[0], ZeroDivisionError)


def test_requests_are_completed_also_by_a_thread_that_fails_and_after_it(tmp_path: Path) -> None:
    log = Log()
    told, go_on = threading.Event(), threading.Event()
    requests = [request() for _ in range(4)]

    def hold_then_fail(advanced: dict[QueueKey, int]) -> None:
        told.set()
        assert go_on.wait(_DEADLINE_S)
        raise ZeroDivisionError

    with running(tmp_path) as reput:
        reput.telling = hold_then_fail
        reput.append([log.write(WRITTEN)])
        reput.finish(requests[:1])
        assert told.wait(_DEADLINE_S)
        reput.finish(requests[1:2])
        reput.finish(requests[2:3])
        go_on.set()
        reput.until(lambda: list(chain(*reput.completed)) == requests[:3])
        reput.finish(requests[3:])
        reput.until(lambda: list(chain(*reput.completed)) == requests)
    assert reput.failures


@with_and_without_eager_tail
def test_an_index_thread_that_fails_says_so(
    tmp_path: Path, eager_tail: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = Log()

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    with running(tmp_path, eager_tail=eager_tail) as reput:
        monkeypatch.setattr(Index, "commit", fail)
        reput.append([log.write(WRITTEN)])
        reput.sync(log.end)
        reput.until(lambda: reput.failures)
    assert isinstance(reput.failures[0], ZeroDivisionError)
