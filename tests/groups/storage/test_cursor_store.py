"""The rows of cursors: durable before `done`, all or nothing, protected by their CRCs."""

import random
import struct
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.errors import StateFull, StateUnavailable
from holdfast.groups.cursor import rows
from holdfast.groups.cursor.rows import (
    ACK,
    ACTIVE,
    ATT,
    CUR,
    DEAD,
    AttemptsRow,
    CursorRow,
    DeleteRange,
    SettledRow,
    StoredCursor,
    Write,
)
from holdfast.groups.cursor.settled_offsets import FULL
from holdfast.groups.storage.cursor_store import CursorsCorrupt, CursorStore, Writes, mark_as_copy

MAP = 1 << 24
_DEADLINE_S = 20

KEY = (7, 3, 1)
PREFIX = rows.key_prefix(*KEY)
ROW = CursorRow(5, 1029, 122_000_000, 2, 1, 4, 9)
WRITES = [
    Write(CUR, PREFIX, rows.encode_cursor(ROW)),
    Write(ACK, rows.numbered_key(PREFIX, 0), rows.encode_chunk(0b1010 << 6)),
    Write(ACK, rows.numbered_key(PREFIX, 1), rows.encode_chunk(FULL)),
    Write(ATT, rows.numbered_key(PREFIX, 8), rows.encode_attempts(AttemptsRow(2, 3, 1_000))),
    Write(DEAD, rows.numbered_key(PREFIX, 2), rows.encode_settled(SettledRow(44, 1 << 40, 4))),
    Write(ACTIVE, rows.group_key(7), b"anna"),
]
STORED = StoredCursor(
    ROW, {0: 0b1010 << 6, 1: FULL}, {8: AttemptsRow(2, 3, 1_000)}, {2: SettledRow(44, 1 << 40, 4)}
)


class Opened(CursorStore):
    """A store that can wait for its commits."""

    def mark_committed(self, writes: Writes, now_ms: int = 0) -> Exception | None:
        ended: list[Exception | None] = []
        has_ended = threading.Event()

        def done(error: Exception | None) -> None:
            ended.append(error)
            has_ended.set()

        self.commit(writes, done, now_ms=now_ms)
        assert has_ended.wait(_DEADLINE_S)
        return ended[0]


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Opened]:
    store = begun(tmp_path)
    yield store
    store.stop()


def begun(directory: Path, map_size: int = MAP) -> Opened:
    store = Opened(directory, map_size)
    store.begin([])
    store.start()
    return store


def loaded(directory: Path) -> dict[tuple[int, int, int], StoredCursor]:
    store = CursorStore(directory, MAP, readonly=True)
    found = store.load()
    store.stop()
    assert not found.damaged
    assert not found.headless
    return found.cursors


def raw(directory: Path) -> dict[bytes, bytes]:
    env = lmdb.open(str(directory), readonly=True, lock=False)
    with env.begin() as txn:
        found = {bytes(key): bytes(value) for key, value in txn.cursor()}
    env.close()
    return found


def overwrite(directory: Path, key: bytes, value: bytes | None) -> None:
    env = lmdb.open(str(directory), map_size=MAP)
    with env.begin(write=True) as txn:
        txn.delete(key) if value is None else txn.put(key, value)
    env.close()


def with_crc(key: bytes, value: bytes) -> bytes:
    return value + struct.pack("<I", crc32c(key + value))


# -- committing ----------------------------------------------------------------------------


def test_committed_rows_are_loaded_again(tmp_path: Path, store: Opened) -> None:
    other = rows.key_prefix(7, 3, 2)
    assert store.mark_committed(WRITES) is None
    assert store.mark_committed([Write(CUR, other, rows.encode_cursor(CursorRow(0, 0, 1)))]) is None
    store.stop()
    store.stop()
    assert loaded(tmp_path) == {KEY: STORED, (7, 3, 2): StoredCursor(CursorRow(0, 0, 1))}


def test_the_bytes_on_disk_are_pinned(tmp_path: Path, store: Opened) -> None:
    store.mark_committed(WRITES, now_ms=1_700_000_000_000)
    store.stop()
    queue = bytes.fromhex("000000070000000300000001")
    expected = {
        b"\0boot": bytes.fromhex("0000000000000001"),
        b"\0clock": bytes.fromhex("0000018bcfe56800"),
        b"\1" + queue: bytes.fromhex(
            "0000000000000005000000000000040507459280"
            "00000002000000000000000100000000000000040000000000000009"
        ),
        b"\2" + queue + bytes.fromhex("0000000000000000"): b"\x80\x02" + bytes(126),
        b"\2" + queue + bytes.fromhex("0000000000000001"): b"\1",
        b"\3" + queue + bytes.fromhex("0000000000000008"): bytes.fromhex(
            "00020000000300000000000003e800000000000000000000000000"
        ),
        b"\4" + queue + bytes.fromhex("0000000000000002"): bytes.fromhex(
            "000000000000002c000001000000000004"
        ),
        b"\5" + bytes.fromhex("00000007"): b"anna",
    }
    assert raw(tmp_path) == {
        b"\0format": b"holdfast-groups-1",
        **{key: with_crc(key, value) for key, value in expected.items()},
    }


def test_none_deletes_a_row_and_a_range_deletes_its_rows(tmp_path: Path, store: Opened) -> None:
    def chunk(number: int, value: bytes | None = b"\1") -> Write:
        return Write(ACK, rows.numbered_key(PREFIX, number), value)

    store.mark_committed([WRITES[0], *map(chunk, range(6))])
    below = DeleteRange(ACK, rows.numbered_key(PREFIX, 1), rows.numbered_key(PREFIX, 4))
    store.mark_committed([chunk(5, None), below, DeleteRange(ATT, b"", b"\xff")])
    store.stop()
    assert loaded(tmp_path)[KEY].chunks == {0: FULL, 4: FULL}


@pytest.mark.parametrize(
    ("owner", "left"),
    [
        ((7,), {(6, 3, 1), (8, 3, 1)}),
        ((7, 3), {(6, 3, 1), (8, 3, 1), (7, 4, 0)}),
        ((7, 3, 1), {(6, 3, 1), (8, 3, 1), (7, 4, 0), (7, 3, 2)}),
        ((0xFFFFFFFF,), {(6, 3, 1), (8, 3, 1), (7, 4, 0), (7, 3, 2), (7, 3, 1)}),
    ],
)
def test_all_of_a_group_a_topic_or_a_queue_goes_and_nothing_else(
    tmp_path: Path, store: Opened, owner: tuple[int, ...], left: set[tuple[int, int, int]]
) -> None:
    of_queues = [write for write in WRITES if write.table != ACTIVE]
    everyone = [(6, 3, 1), (7, 3, 1), (7, 3, 2), (7, 4, 0), (8, 3, 1), (0xFFFFFFFF,) * 3]
    for key in everyone:
        store.mark_committed([write._replace(key=_moved(write.key, key)) for write in of_queues])
        store.mark_committed([Write(ACTIVE, rows.group_key(key[0]), b"anna")])
    store.mark_committed(rows.all_of(*owner))
    store.stop()
    if owner != (0xFFFFFFFF,):
        left = {*left, (0xFFFFFFFF,) * 3}
    assert loaded(tmp_path).keys() == left
    kept = [key for key in raw(tmp_path) if key[0]]
    assert {rows.parse_prefix(key[1:]) for key in kept if key[0] != 5} == left
    whole = {6, 8, 0xFFFFFFFF} if len(owner) == 1 else {6, 7, 8, 0xFFFFFFFF}
    assert {rows.parse_group(key[1:]) for key in kept if key[0] == 5} == whole - (
        {*owner} if len(owner) == 1 else set()
    ) | ({7} if owner == (0xFFFFFFFF,) else set())


def _moved(key: bytes, to: tuple[int, int, int]) -> bytes:
    return rows.key_prefix(*to) + key[12:]


def test_a_change_is_on_the_disk_when_done_is_called(tmp_path: Path, store: Opened) -> None:
    assert store.mark_committed(WRITES) is None
    copy = tmp_path / "copy"
    copy.mkdir()
    (copy / "data.mdb").write_bytes((tmp_path / "data.mdb").read_bytes())
    assert loaded(copy) == {KEY: STORED}


def test_groups_that_wait_share_a_sync(store: Opened, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes: list[int] = []
    writing, go_on, ended = threading.Event(), threading.Event(), threading.Semaphore(0)
    write = CursorStore._write

    def held(self: CursorStore, changes: list[object]) -> None:
        sizes.append(len(changes))
        writing.set()
        assert go_on.wait(_DEADLINE_S)
        write(self, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(CursorStore, "_write", held)
    store.commit(WRITES[:1], lambda error: ended.release())
    assert writing.wait(_DEADLINE_S)
    for _ in range(49):
        store.commit(WRITES[:1], lambda error: ended.release())
    go_on.set()
    for _ in range(50):
        assert ended.acquire(timeout=_DEADLINE_S)
    assert sizes == [1, 49]


@pytest.mark.parametrize("pages", [15, 16, 17])
def test_a_full_map_grows(tmp_path: Path, pages: int) -> None:
    store = begun(tmp_path, pages * 4096)
    for number in range(400):
        write = Write(ACK, rows.numbered_key(PREFIX, number), rows.encode_chunk(1))
        assert store.mark_committed([WRITES[0], write]) is None
    store.stop()
    assert len(loaded(tmp_path)[KEY].chunks) == 400


def test_a_change_that_cannot_be_written_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.consumequeue.lmdb_env.live_env.grow_map", lambda env: False)
    store = begun(tmp_path, 64 * 1024)
    assert store.mark_committed(WRITES) is None
    many = [
        Write(ACK, rows.numbered_key(PREFIX, number), rows.encode_chunk(1)) for number in range(900)
    ]
    assert isinstance(store.mark_committed([Write(CUR, PREFIX, b"x"), *many], 5), StateFull)
    assert store.clock_ms == 0
    assert store.mark_committed([WRITES[1]]) is None
    store.stop()
    assert loaded(tmp_path) == {KEY: STORED}


def test_a_full_disk_gives_up_the_reserve_and_is_tried_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put = CursorStore._put
    failures = 1
    is_reserve_released: list[int] = []

    def failing(self: CursorStore, changes: list[object]) -> None:
        nonlocal failures
        if failures:
            failures -= 1
            raise lmdb.DiskError("mdb_txn_commit: No space left on device")
        put(self, changes)  # type: ignore[arg-type]

    monkeypatch.setattr(CursorStore, "_put", failing)
    store = Opened(tmp_path, MAP, disk_full=lambda: is_reserve_released.append(1))
    store.begin([])
    store.start()
    assert store.mark_committed(WRITES) is None
    assert is_reserve_released == [1]
    failures = 2
    assert isinstance(store.mark_committed(WRITES), StateUnavailable)
    store.stop()


_COMMITTER = """
import sys, threading
from pathlib import Path
from holdfast.groups.cursor import rows
from holdfast.groups.storage.cursor_store import CursorStore

store = CursorStore(Path(sys.argv[1]), 1 << 24)
found = store.load().cursors
number = found[1, 1, 0].row.floor if found else 0
store.begin([])
store.start()
while True:
    number += 1
    told = threading.Event()
    row = rows.encode_cursor(rows.CursorRow(number, number, 1))
    writes = [rows.Write("cur", rows.key_prefix(1, 1, queue), row) for queue in (0, 1)]
    store.commit(writes, lambda error: (print(number, flush=True), told.set()))
    told.wait()
"""


def test_committed_changes_survive_a_kill_and_no_change_is_partial(tmp_path: Path) -> None:
    for boot, acknowledged in enumerate((1, 7, 3), 1):
        child = subprocess.Popen(
            [sys.executable, "-c", _COMMITTER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        last = [int(child.stdout.readline()) for _ in range(acknowledged)][-1]
        child.kill()
        child.wait()
        child.stdout.close()
        found = loaded(tmp_path)
        assert found[1, 1, 0].row == found[1, 1, 1].row
        assert found[1, 1, 0].row.floor >= last
        store = CursorStore(tmp_path, MAP, readonly=True)
        assert store.boot == boot
        store.stop()


def test_a_power_loss_at_any_write_of_a_commit_leaves_the_old_rows(tmp_path: Path) -> None:
    """LMDB writes unreferenced pages, syncs, and then writes one of the two first pages.

    Whichever of the unreferenced pages reach the disk before that, the rows are the old ones.
    """
    store = begun(tmp_path / "store")
    store.mark_committed(WRITES)
    data = tmp_path / "store" / "data.mdb"
    before = data.read_bytes()
    more = [Write(ACK, rows.numbered_key(PREFIX, number), b"\1") for number in range(2, 200)]
    store.mark_committed([Write(CUR, PREFIX, rows.encode_cursor(CursorRow(9, 9, 9))), *more])
    store.stop()
    after = data.read_bytes()
    before = before.ljust(len(after), b"\0")
    pages = range(0, len(after), 4096)
    changed = [at for at in pages if before[at : at + 4096] != after[at : at + 4096]]
    synced_first = [at for at in changed if at >= 2 * 4096]
    assert len(synced_first) >= 3
    assert len(changed) == len(synced_first) + 1
    rng = random.Random(7)
    subsets = [synced_first[:count] for count in range(len(synced_first) + 1)]
    subsets += [rng.sample(synced_first, rng.randrange(len(synced_first))) for _ in range(20)]
    for number, subset in enumerate(subsets):
        image = bytearray(before)
        for at in subset:
            image[at : at + 4096] = after[at : at + 4096]
        crashed = tmp_path / f"crashed {number}"
        crashed.mkdir()
        (crashed / "data.mdb").write_bytes(image)
        again = begun(crashed)
        assert again.load().cursors == {KEY: STORED}
        again.stop()


# -- opening -------------------------------------------------------------------------------


def test_every_start_is_counted_and_the_clock_is_kept(tmp_path: Path) -> None:
    for boot in (1, 2, 3):
        store = CursorStore(tmp_path, MAP)
        assert store.is_new == (boot == 1)
        store.begin([])
        assert store.boot == boot
        store.stop()
    store = Opened(tmp_path, MAP)
    store.begin([])
    store.start()
    for now_ms in (500, 900, 700):
        store.mark_committed(WRITES, now_ms)
    store.stop()
    store = Opened(tmp_path, MAP, readonly=True)
    assert store.clock_ms == 900
    store.stop()


def test_readonly_changes_nothing(tmp_path: Path) -> None:
    begun(tmp_path).stop()
    (tmp_path / "lock.mdb").unlink()
    before = (tmp_path / "data.mdb").read_bytes()
    store = CursorStore(tmp_path, MAP, readonly=True)
    assert store.load().cursors == {}
    store.stop()
    assert (tmp_path / "data.mdb").read_bytes() == before
    assert [path.name for path in tmp_path.iterdir()] == ["data.mdb"]


def test_another_format_and_invalid_files_are_refused(tmp_path: Path) -> None:
    overwrite(tmp_path, b"\0format", b"holdfast-groups-2")
    with pytest.raises(CursorsCorrupt, match="holdfast-groups-2"):
        CursorStore(tmp_path, MAP)
    (tmp_path / "data.mdb").write_bytes(b"x" * 8192)
    with pytest.raises(CursorsCorrupt):
        CursorStore(tmp_path, MAP)


@pytest.mark.parametrize("name", [b"\0boot", b"\0clock"])
def test_a_damaged_start_count_or_clock_is_corruption(tmp_path: Path, name: bytes) -> None:
    begun(tmp_path).stop()
    good = raw(tmp_path)[name]
    for value in [None, *_damages(good)]:
        overwrite(tmp_path, name, value)
        with pytest.raises(CursorsCorrupt):
            CursorStore(tmp_path, MAP)


@pytest.mark.parametrize("row", range(5))
def test_a_damaged_row_is_named_and_left_out(tmp_path: Path, row: int) -> None:
    store = begun(tmp_path)
    store.mark_committed(WRITES)
    store.stop()
    key = {0: b"\1", 1: b"\2", 2: b"\2", 3: b"\3", 4: b"\4"}[row] + WRITES[row].key
    good = raw(tmp_path)[key]
    # The last two have a valid checksum, but are not valid rows.
    wrong = [with_crc(key, good[:-4] + b"x"), with_crc(key, b"")]
    for value in [*_damages(good), *wrong]:
        overwrite(tmp_path, key, value)
        store = Opened(tmp_path, MAP, readonly=True)
        found = store.load()
        store.stop()
        assert found.damaged == [key]
        assert found.damaged_cursors() == {KEY}
        assert (KEY in found.cursors) == (row != 0)
        assert (KEY in found.headless) == (row == 0)
    store = Opened(tmp_path, MAP)
    store.forget(found.damaged, found.headless)
    assert store.load().damaged == []
    assert store.load().headless == set()
    store.stop()


def test_a_key_of_an_unknown_table_is_damage(tmp_path: Path) -> None:
    begun(tmp_path).stop()
    for key in (b"\x05" + PREFIX, b"\1ab", b"x"):
        overwrite(tmp_path, key, with_crc(key, b"value"))
    store = CursorStore(tmp_path, MAP, readonly=True)
    found = store.load()
    store.stop()
    assert found.damaged == [b"\1ab", b"\x05" + PREFIX, b"x"]
    assert found.damaged_cursors() == {None, KEY}


def test_a_copy_is_marked_until_a_broker_opens_it(tmp_path: Path) -> None:
    begun(tmp_path).stop()
    mark_as_copy(tmp_path)
    for is_copy in (True, False):
        store = CursorStore(tmp_path, MAP)
        assert store.is_copy == is_copy
        store.forget([], [KEY])
        assert store.is_copy == is_copy
        store.begin([])
        store.stop()


def _damages(good: bytes) -> list[bytes]:
    flipped = [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in range(len(good))]
    return [*flipped[:40], *flipped[-8:], *(good[:size] for size in range(min(len(good), 40)))]
