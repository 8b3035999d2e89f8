"""The durable records: on disk before `done`, all or nothing, protected by their CRCs."""

import shutil
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from operator import methodcaller
from pathlib import Path

import lmdb
import pytest

from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.state.store import StateCorrupt, StateStore
from tests.support.storage.three_segments import change_lmdb

MAP = 1 << 24
_DEADLINE_S = 20


class Opened(StateStore):
    """A StateStore that can wait for its commits."""

    def committed(self, changes: Mapping[bytes, bytes | None]) -> Exception | None:
        return self.committed_together(changes)[0]

    def committed_together(self, *group: Mapping[bytes, bytes | None]) -> list[Exception | None]:
        """Submit all changes and wait; return their results in the order in which they ended."""
        ended: list[Exception | None] = []
        all_ended = threading.Event()

        def done(error: Exception | None) -> None:
            ended.append(error)
            if len(ended) == len(group):
                all_ended.set()

        for changes in group:
            self.commit(changes, done)
        assert all_ended.wait(_DEADLINE_S)
        return ended


def test_a_change_is_stored_before_the_start(tmp_path: Path) -> None:
    store = StateStore(tmp_path, MAP)
    store.restore({b"a": b"1", b"b": b"2"})
    store.commit_now({b"a": None, b"b": b"3"})
    assert store.records == {b"b": b"3"}
    store.stop()
    assert on_disk(tmp_path) == {b"b": b"3"}
    closed = StateStore(tmp_path, MAP)
    closed.stop()
    with pytest.raises(StateUnavailable):
        closed.commit_now({b"b": None})


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    store = Opened(tmp_path, MAP)
    store.restore({})
    store.start()
    yield store
    store.stop()


def on_disk(directory: Path) -> dict[bytes, bytes]:
    store = StateStore(directory, MAP, readonly=True)
    store.stop()
    return store.records


def raw_records(directory: Path) -> dict[bytes, bytes]:
    """Return the content of the file, from a copy, because the store may have it open."""
    with tempfile.TemporaryDirectory() as copy:
        shutil.copy(directory / "data.mdb", copy)
        env = lmdb.open(copy, readonly=True, lock=False)
        with env.begin() as txn:
            found = {bytes(key): bytes(value) for key, value in txn.cursor()}
        env.close()
    return found


# -- committing ----------------------------------------------------------------------------


def test_done_is_called_after_a_change_is_on_disk(tmp_path: Path, store: Opened) -> None:
    seen: list[tuple[dict[bytes, bytes], dict[bytes, bytes]]] = []
    called = threading.Event()

    def done(error: Exception | None) -> None:
        assert error is None
        seen.append((dict(store.records), raw_records(tmp_path)))
        called.set()

    store.commit({b"a": b"1", b"b": b"2"}, done)
    assert called.wait(_DEADLINE_S)
    records, raw = seen[0]
    assert records == {b"a": b"1", b"b": b"2"}
    assert set(raw) == {b"\0format", b"a", b"b"}


def test_none_deletes(tmp_path: Path, store: Opened) -> None:
    store.committed({b"a": b"1", b"b": b"2"})
    store.committed({b"a": None, b"never": None})
    assert store.records == {b"b": b"2"}
    store.stop()
    assert on_disk(tmp_path) == {b"b": b"2"}


def test_the_bytes_on_disk_are_pinned(tmp_path: Path, store: Opened) -> None:
    store.committed({b"topic/a": b"value"})
    assert raw_records(tmp_path) == {
        b"\0format": b"holdfast-state-1",
        b"topic/a": b"value" + struct.pack("<I", crc32c(b"topic/avalue")),
    }


def test_waiting_changes_share_a_sync(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    groups: list[int] = []
    writing, go_on, ended = threading.Event(), threading.Event(), threading.Semaphore(0)
    write = StateStore._write

    def held(self: StateStore, group: list[object]) -> None:
        groups.append(len(group))
        writing.set()
        assert go_on.wait(_DEADLINE_S)
        write(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(StateStore, "_write", held)
    store.commit({b"first": b"x"}, lambda error: ended.release())
    assert writing.wait(_DEADLINE_S)
    for number in range(49):
        store.commit({b"%d" % number: b"x"}, lambda error: ended.release())
    go_on.set()
    for _ in range(50):
        assert ended.acquire(timeout=_DEADLINE_S)
    assert groups == [1, 49]
    assert len(store.records) == 50


def test_the_last_change_of_a_record_counts(tmp_path: Path, store: Opened) -> None:
    store.committed_together({b"a": b"1"}, {b"a": None}, {b"a": b"3"}, {b"b": b"4"}, {b"b": None})
    assert store.records == {b"a": b"3"}
    store.stop()
    assert on_disk(tmp_path) == {b"a": b"3"}


@pytest.mark.parametrize("pages", [15, 16, 17])
def test_a_full_map_grows(tmp_path: Path, pages: int) -> None:
    store = Opened(tmp_path, pages * 4096)
    store.restore({b"a": b"1"})
    store.start()
    records = {b"%d" % number: b"x" * 3000 for number in range(60)}
    for key, value in records.items():
        assert store.committed({key: value}) is None
    store.stop()
    assert on_disk(tmp_path) == {b"a": b"1", **records}


def test_restoring_lets_the_map_grow(tmp_path: Path) -> None:
    store = StateStore(tmp_path, 16 * 4096)
    records = {b"%d" % number: b"x" * 3000 for number in range(60)}
    store.restore(records)
    assert store.records == records
    store.stop()
    assert on_disk(tmp_path) == records


def test_a_failed_change_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # No address space is left.
    monkeypatch.setattr("holdfast.consumequeue.lmdb_env.live_env.grow_map", lambda env: False)
    store = Opened(tmp_path, 64 * 1024)
    store.restore({b"a": b"1"})
    store.start()
    error = store.committed({b"b": b"x" * 100_000, b"a": b"2"})
    assert isinstance(error, StateUnavailable)
    assert isinstance(error.__cause__, lmdb.MapFullError)
    assert store.records == {b"a": b"1"}
    assert store.committed({b"a": b"3"}) is None
    store.stop()
    assert on_disk(tmp_path) == {b"a": b"3"}


def test_a_full_disk_releases_the_reserve(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put = StateStore._put
    failures = 1
    is_reserve_released: list[int] = []

    def failing(self: StateStore, group: list[object]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise lmdb.DiskError("mdb_txn_commit: No space left on device")
        put(self, group)  # type: ignore[arg-type]

    monkeypatch.setattr(StateStore, "_put", failing)
    store = Opened(tmp_path, MAP, disk_full=lambda: is_reserve_released.append(1))
    store.restore({})
    store.start()
    assert store.committed({b"a": b"1"}) is None
    assert is_reserve_released == [1]
    failures = 2
    assert isinstance(store.committed({b"a": b"2"}), StateUnavailable)
    assert store.records == {b"a": b"1"}
    store.stop()


def test_stop_commits_waiting_changes_and_may_be_called_twice(tmp_path: Path) -> None:
    store = Opened(tmp_path, MAP)
    store.restore({})
    store.start()
    ended: list[Exception | None] = []
    for number in range(100):
        store.commit({b"%d" % number: b"x"}, ended.append)
    store.stop()
    store.stop()
    assert ended == [None] * 100
    assert len(on_disk(tmp_path)) == 100


_COMMITTER = """
import sys, threading
from pathlib import Path
from holdfast.consumequeue.state.store import StateStore

store = StateStore(Path(sys.argv[1]), 1 << 24)
if store.is_new:
    store.restore({})
store.start()
number = int(store.records.get(b"a", b"0"))
while True:
    number += 1
    printed = threading.Event()
    changes = {b"a": b"%d" % number, b"b": b"%d" % number}
    store.commit(changes, lambda error: (print(number, flush=True), printed.set()))
    printed.wait()
"""


def test_acknowledged_changes_survive_a_kill(tmp_path: Path) -> None:
    for acknowledged in (1, 7):
        child = subprocess.Popen(
            [sys.executable, "-c", _COMMITTER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        last = [int(child.stdout.readline()) for _ in range(acknowledged)][-1]
        child.kill()
        child.wait()
        child.stdout.close()
        found = on_disk(tmp_path)
        assert found[b"a"] == found[b"b"]
        assert int(found[b"a"]) >= last


# -- opening -------------------------------------------------------------------------------


def test_a_store_is_new_until_it_was_restored(tmp_path: Path) -> None:
    for _ in range(2):  # a crash before `restore` leaves it new
        store = StateStore(tmp_path, MAP)
        assert store.is_new
        store.stop()
    store = StateStore(tmp_path, MAP)
    store.restore({b"a": b"1"})
    assert not store.is_new
    assert store.records == {b"a": b"1"}
    store.stop()
    store = StateStore(tmp_path, MAP)
    assert not store.is_new
    assert store.records == {b"a": b"1"}
    store.stop()


def test_readonly_changes_nothing(tmp_path: Path) -> None:
    StateStore(tmp_path, MAP).stop()
    (tmp_path / "lock.mdb").unlink()
    before = (tmp_path / "data.mdb").read_bytes()
    store = StateStore(tmp_path, MAP, readonly=True)
    assert store.is_new
    store.stop()
    assert (tmp_path / "data.mdb").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]


def test_another_format_is_refused(tmp_path: Path) -> None:
    change_lmdb(tmp_path, lambda txn: txn.put(b"\0format", b"holdfast-state-2"))
    with pytest.raises(StateCorrupt, match="holdfast-state-2"):
        StateStore(tmp_path, MAP)


def test_a_file_that_is_no_environment_is_refused(tmp_path: Path) -> None:
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(StateCorrupt):
        StateStore(tmp_path, MAP)


def test_a_damaged_record_is_reported_and_left_out(tmp_path: Path) -> None:
    store = StateStore(tmp_path, MAP)
    store.restore({b"a": b"first", b"b": b"second"})
    store.stop()
    good = raw_records(tmp_path)[b"a"]
    damages = [bytes(good[:at]) + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(len(good))]
    for value in [*damages, *(good[:size] for size in range(len(good)))]:
        change_lmdb(tmp_path, methodcaller("put", b"a", value))
        store = StateStore(tmp_path, MAP, readonly=True)
        assert store.damaged == [b"a"]
        assert store.records == {b"b": b"second"}
        store.stop()


def test_a_value_under_another_key_is_damaged(tmp_path: Path) -> None:
    store = StateStore(tmp_path, MAP)
    store.restore({b"topic/a": b"first"})
    store.stop()
    change_lmdb(tmp_path, lambda txn: txn.put(b"topic/b", txn.get(b"topic/a")))
    store = StateStore(tmp_path, MAP)
    assert store.damaged == [b"topic/b"]
    store.stop()


def test_restoring_replaces_damaged_records(tmp_path: Path) -> None:
    store = StateStore(tmp_path, MAP)
    store.restore({b"a": b"1", b"b": b"2", b"c": b"3"})
    store.stop()
    for key in (b"a", b"c"):
        change_lmdb(tmp_path, methodcaller("put", key, b"?????"))
    store = StateStore(tmp_path, MAP)
    assert store.damaged == [b"a", b"c"]
    store.restore({b"a": b"1"})
    assert store.damaged == [b"c"]
    store.stop()
    store = StateStore(tmp_path, MAP)
    assert store.damaged == [b"c"]
    assert store.records == {b"a": b"1", b"b": b"2"}
    store.stop()


# D1: a failed write of the state was reported only to the caller


def test_the_failure_is_cleared_by_a_probe(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.consumequeue.lmdb_env.synced_store.PROBE_INTERVAL_S", 0.01)
    store = StateStore(tmp_path, 1 << 20)
    store.restore({})
    store.start()
    refused, is_mended = threading.Event(), threading.Event()
    write = store.env.write

    def failing(change: Callable[[], object]) -> object:
        if is_mended.is_set():
            return write(change)
        raise lmdb.Error("mdb_txn_commit: Input/output error")

    monkeypatch.setattr(store.env, "write", failing)
    store.commit({b"a": b"1"}, lambda error: refused.set())
    assert refused.wait(30)
    assert "Input/output error" in str(store.failure)
    is_mended.set()
    deadline = time.monotonic() + 30
    while store.failure is not None:
        assert time.monotonic() < deadline
        time.sleep(0.001)
    assert store.records == {}
    store.stop()
