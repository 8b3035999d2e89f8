"""The index on disk: its bytes, its searches compared with a model, and the effects of faults."""

import itertools
import os
import pickle
import signal
import struct
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import lmdb
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.append.producer_sequences import ProducerState, StoredSequence
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import Index, IndexCorrupt, ReputPosition
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv
from holdfast.consumequeue.topics import QueueKey
from tests.support.storage.three_segments import change_lmdb

MAP = 1 << 26
KEY: QueueKey = (1, 2)
UNIT = CqUnit(
    base_offset=0x0102030405060708,
    physical_offset=0x1112131415161718,
    size=0x21222324,
    message_count=0x31323334,
    store_timestamp_us=0x4142434445464748,
    tag_summary=0x5152535455565758,
    queue_bytes=0x6162636465666768,
)
PRODUCER = ProducerState(3, 7, 99, {0: (StoredSequence(5, 10, 2, 4096, 99),), 4: ()})


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    index = Index(tmp_path / "index", MAP)
    yield index
    index.close()


def row(*ranges: tuple[int, int]) -> list[CqUnit]:
    """Return entries of (base offset, count), a hundred bytes each; timestamps follow offsets."""
    return [
        CqUnit(base, 4096 + number * 100, 100, count, base * 10, number, number * 100)
        for number, (base, count) in enumerate(ranges)
    ]


def put(index: Index, key: QueueKey, units: list[CqUnit]) -> None:
    index.commit([(key, unit) for unit in units], ReputPosition())


def everything(index: Index) -> object:
    """Return the whole content of the index."""
    return (
        index.position(),
        index.producers(),
        {
            key: (list(index.units(key, 0)), index.first(key), index.last(key))
            for key in index.queues()
        },
    )


# -- the bytes -----------------------------------------------------------------------------


def test_the_bytes_of_every_record_are_pinned(tmp_path: Path) -> None:
    index = Index(tmp_path, MAP)
    index.commit([((1, 2), UNIT)], ReputPosition(1, 2, 3, 4), [((9, 1), PRODUCER)])
    index.close()
    env = lmdb.open(str(tmp_path), max_dbs=3, readonly=True, lock=False)
    with env.begin() as txn:
        found = {
            name: [
                (bytes(key).hex(), bytes(value).hex())
                for key, value in txn.cursor(env.open_db(name, txn))
            ]
            for name in (b"entries", b"meta", b"producers")
        }
    env.close()
    assert found == {
        b"entries": [
            (
                "00000001000000020102030405060708",
                "1817161514131211"
                "6867666564636261"
                "4847464544434241"
                "5857565554535251"
                "24232221"
                "34333231"
                "d8f44531",
            )
        ],
        b"meta": [
            ("666f726d6174", b"holdfast-index-1".hex()),
            (
                "7265707574",
                "0100000000000000020000000000000003000000000000000400000000000000f7377ea4",
            ),
        ],
        b"producers": [
            (
                "000000000000000900000001",
                # [epoch, last request, timestamp, {queue: [[sequence, ...], ...]}]
                "9403076382009195050a02cd1000630490cd8d72f8",
            )
        ],
    }


def test_committed_data_is_read_back(index: Index) -> None:
    index.commit([((1, 2), UNIT)], ReputPosition(1, 2, 3, 4), [((9, 1), PRODUCER)])
    assert index.position() == ReputPosition(1, 2, 3, 4)
    assert index.producers() == [((9, 1), PRODUCER)]
    assert list(index.units((1, 2), UNIT.base_offset)) == [UNIT]


def test_a_new_index_is_empty(index: Index) -> None:
    assert everything(index) == (ReputPosition(), [], {})
    assert index.first(KEY) is None
    assert index.last(KEY) is None
    assert list(index.units(KEY, 0)) == []


def test_a_closed_index_can_be_opened_again(tmp_path: Path) -> None:
    index = Index(tmp_path, MAP)
    put(index, KEY, row((0, 5), (5, 5)))
    before = everything(index)
    index.close()
    index.close()
    for readonly in (True, False):
        index = Index(tmp_path, MAP, readonly=readonly)
        assert everything(index) == before
        index.close()


def test_readonly_creates_nothing(tmp_path: Path) -> None:
    lmdb.open(str(tmp_path), lock=False).close()
    before = (tmp_path / "data.mdb").read_bytes()
    with pytest.raises(IndexCorrupt):
        Index(tmp_path, MAP, readonly=True)
    assert (tmp_path / "data.mdb").read_bytes() == before


def test_another_format_is_refused(tmp_path: Path) -> None:
    Index(tmp_path, MAP).close()
    (tmp_path / "seal").unlink()
    change_lmdb(tmp_path, lambda txn: txn.put(b"format", b"holdfast-index-2"), b"meta")
    with pytest.raises(IndexCorrupt, match="holdfast-index-2"):
        Index(tmp_path, MAP)


# -- atomic commits ------------------------------------------------------------------------


def test_a_failed_commit_changes_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(LiveEnv, "grow", lambda self: False)  # no address space is left
    index = Index(tmp_path, 64 * 1024)
    put(index, KEY, row((0, 1)))
    before = everything(index)
    many = row(*((offset, 1) for offset in range(1, 5000)))
    with pytest.raises(lmdb.MapFullError):
        index.commit([(KEY, unit) for unit in many], ReputPosition(9), [((1, 1), PRODUCER)])
    assert everything(index) == before
    put(index, KEY, row((0, 1), (1, 1)))
    assert index.last(KEY) == row((0, 1), (1, 1))[1]
    index.close()


def test_a_full_map_grows_while_readers_read(tmp_path: Path) -> None:
    index = Index(tmp_path, 64 * 1024)
    units = row(*((offset, 1) for offset in range(6000)))
    put(index, KEY, units[:100])
    over = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not over.wait(0.001):
                with closing(index.units(KEY, 0)) as found:
                    assert list(itertools.islice(found, 100)) == units[:100]
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for start in range(100, len(units), 500):
        put(index, KEY, units[start : start + 500])
    over.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert list(index.units(KEY, 0)) == units
    index.close()
    index = Index(tmp_path, 64 * 1024)  # the file is now larger than the requested size
    assert list(index.units(KEY, 0)) == units
    more = row(*((offset, 1) for offset in range(16_000)))[6000:]
    put(index, KEY, more)
    assert index.last(KEY) == more[-1]
    index.close()


def test_a_map_does_not_move_during_a_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.consumequeue.lmdb_env.live_env._PATIENCE_S", 0.05)
    index = Index(tmp_path, 64 * 1024)
    units = row(*((offset, 1) for offset in range(3000)))
    put(index, KEY, units[:1])
    with closing(index.units(KEY, 0)) as found:
        assert next(found) == units[0]
        with pytest.raises(lmdb.MapFullError):
            put(index, KEY, units)
        assert list(found) == []
    put(index, KEY, units)
    assert list(index.units(KEY, 0)) == units
    index.close()


@pytest.mark.parametrize("pages", [15, 16, 17])
def test_a_map_is_filled_to_its_last_page_and_beyond(tmp_path: Path, pages: int) -> None:
    index = Index(tmp_path, pages * 4096)
    units = row(*((offset, 1) for offset in range(2000)))
    for start in range(0, len(units), 40):
        put(index, KEY, units[start : start + 40])
    assert list(index.units(KEY, 0)) == units
    index.close()


@pytest.mark.parametrize("change", ["delete_before", "clear"])
def test_a_map_without_free_pages_grows_for_deletions(tmp_path: Path, change: str) -> None:
    """The map grew in use; a start maps exactly the size of the file, without a free page."""
    index = Index(tmp_path, 64 * 1024)
    units = row(*((offset, 1) for offset in range(5000)))
    put(index, KEY, units)
    index.close()
    index = Index(tmp_path, 64 * 1024)
    if change == "clear":
        index.clear()
        assert index.queues() == []
    else:
        assert index.delete_before(KEY, 4000) == 4000
        assert list(index.units(KEY, 0)) == units[4000:]
    index.close()


def test_entries_may_be_committed_again(index: Index) -> None:
    units = row((0, 3), (3, 2))
    put(index, KEY, units)
    put(index, KEY, units)
    assert list(index.units(KEY, 0)) == units


def test_producers_are_sorted_by_time_and_can_be_deleted(index: Index) -> None:
    late, early = ProducerState(0, -1, 20), ProducerState(0, -1, 10)
    index.commit([], ReputPosition(), [((1, 1), late), ((2, 1), early)])
    assert index.producers() == [((2, 1), early), ((1, 1), late)]
    index.commit([], ReputPosition(), [((2, 1), None), ((7, 7), None)])
    assert index.producers() == [((1, 1), late)]


def test_clear_deletes_everything(index: Index) -> None:
    index.commit([(KEY, UNIT)], ReputPosition(1, 2, 3, 4), [((9, 1), PRODUCER)])
    index.clear()
    assert everything(index) == (ReputPosition(), [], {})


_COMMITTER = """
import sys
from pathlib import Path
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition

index = Index(Path(sys.argv[1]), 1 << 26)
last = index.last((1, 0))
at = last.end_offset if last else 0
print("begun", flush=True)
while True:
    units = [CqUnit(at + i, (at + i) * 100, 100, 1, at + i, 0, 0) for i in range(1 + at % 7)]
    at += len(units)
    index.commit([((1, 0), unit) for unit in units], ReputPosition(at * 100, 0, at, 0))
"""


def test_after_a_kill_entries_and_position_agree(tmp_path: Path) -> None:
    reached = 0
    for round_ in range(5):
        child = subprocess.Popen(
            [sys.executable, "-c", _COMMITTER, str(tmp_path)], stdout=subprocess.PIPE
        )
        assert child.stdout is not None
        assert child.stdout.readline() == b"begun\n"
        # This is not a wait for an event: each round interrupts the process at another moment.
        with pytest.raises(subprocess.TimeoutExpired):
            child.wait(0.005 + 0.007 * round_)
        child.send_signal(signal.SIGKILL)
        child.wait()
        child.stdout.close()
        index = Index(tmp_path, MAP)
        offsets = [unit.base_offset for unit in index.units((1, 0), 0)]
        position = index.position()
        index.close()
        assert offsets == list(range(len(offsets)))  # no gap and no duplicate
        assert position.physical_offset == len(offsets) * 100
        assert position.block_count == len(offsets)
        assert len(offsets) >= reached
        reached = len(offsets)
    assert reached > 0


# -- looking up ----------------------------------------------------------------------------


def test_queues_are_listed_each_once(index: Index) -> None:
    keys = [(0, 0), (1, 0), (1, 7), (2, 0), (0xFFFFFFFF, 0xFFFFFFFF)]
    for key in reversed(keys):
        put(index, key, row((0, 1), (1, 1), (2**50, 1)))
    assert index.queues() == keys


def test_a_queue_does_not_see_its_neighbours(index: Index) -> None:
    put(index, (1, 1), row((5, 1)))
    put(index, (1, 3), row((6, 1)))
    for key in ((1, 0), (1, 2), (1, 4), (0, 1), (2, 0)):
        assert index.first(key) is None
        assert index.last(key) is None
        assert list(index.units(key, 0)) == []
        assert index.first_reaching(key, lambda unit: unit.base_offset, 0, 0, 100) is None
    assert index.last((1, 1)) == row((5, 1))[0]
    assert list(index.units((1, 1), 6)) == []


def test_an_abandoned_iterator_ends_its_transaction(index: Index) -> None:
    put(index, KEY, row((0, 1), (1, 1)))
    for _ in range(1000):  # more than the reader slots of LMDB
        assert next(index.units(KEY, 0)).base_offset == 0


@st.composite
def _rows(draw: st.DrawFn) -> list[CqUnit]:
    """Draw the entries of a queue, dense or with gaps, with values that never decrease."""
    lengths = draw(st.lists(st.tuples(st.integers(0, 4), st.integers(1, 5)), max_size=14))
    units = []
    at = draw(st.integers(0, 5))
    timestamp = 0
    for number, (gap, count) in enumerate(lengths):
        at += draw(st.sampled_from((0, 0, 0, gap)))
        timestamp += draw(st.integers(0, 3))
        units.append(CqUnit(at, 4096 + number * 10, 10, count, timestamp, 0, number * 10))
        at += count
    return units


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Index]:
    index = Index(tmp_path_factory.mktemp("shared"), 1 << 30)
    yield index
    index.close()


_topics = itertools.count(1)


@settings(deadline=None)  # it waits for the disk
@given(units=_rows(), offset=st.integers(0, 80))
def test_iteration_starts_at_the_offset(shared: Index, units: list[CqUnit], offset: int) -> None:
    key = (next(_topics), 1)
    put(shared, key, units)
    assert list(shared.units(key, offset)) == [u for u in units if u.end_offset > offset]
    assert shared.last(key) == (units[-1] if units else None)


_ATTRIBUTES: list[Callable[[CqUnit], int]] = [
    lambda unit: unit.store_timestamp_us,
    lambda unit: unit.physical_offset,
    lambda unit: unit.queue_bytes,
]


@settings(deadline=None)  # it waits for the disk
@given(
    units=_rows(),
    attribute=st.sampled_from(_ATTRIBUTES),
    place=st.integers(-1, 15),
    start=st.integers(0, 60),
    length=st.integers(1, 60),
)
def test_a_binary_search_finds_what_iteration_finds(
    shared: Index,
    units: list[CqUnit],
    attribute: Callable[[CqUnit], int],
    place: int,
    start: int,
    length: int,
) -> None:
    key = (next(_topics), 1)
    put(shared, key, units)
    put(shared, (key[0], 0), row((0, 100)))
    put(shared, (key[0], 2), row((0, 100)))
    values = sorted({attribute(unit) for unit in units}) or [0]
    value = values[place] if 0 <= place < len(values) else values[-1] + place
    end = start + length
    expected = next(
        (
            unit
            for unit in units
            if unit.end_offset > start and unit.base_offset < end and attribute(unit) >= value
        ),
        None,
    )
    assert shared.first_reaching(key, attribute, value, start, end) == expected


# -- deleting ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("offset", "left"),
    [(0, [0, 5, 10]), (4, [0, 5, 10]), (5, [5, 10]), (9, [5, 10]), (10, [10]), (99, [])],
)
def test_only_entries_before_an_offset_are_deleted(
    index: Index, offset: int, left: list[int]
) -> None:
    for key in ((1, 1), (1, 2), (1, 3)):
        put(index, key, row((0, 5), (5, 5), (10, 5)))
    assert index.delete_before((1, 2), offset) == 3 - len(left)
    assert [unit.base_offset for unit in index.units((1, 2), 0)] == left
    for key in ((1, 1), (1, 3)):
        assert len(list(index.units(key, 0))) == 3


def test_one_deletion_deletes_a_limited_number(index: Index) -> None:
    put(index, KEY, row(*((offset, 1) for offset in range(10))))
    assert [index.delete_before(KEY, 10, most=4) for _ in range(4)] == [4, 4, 2, 0]


# -- damage --------------------------------------------------------------------------------


def _overwrite(directory: Path, db: bytes, key: bytes, value: bytes) -> None:
    (directory / "seal").unlink(missing_ok=True)
    change_lmdb(directory, lambda txn: txn.put(key, value), db)


def _value(directory: Path, db: bytes, key: bytes) -> bytes:
    env = lmdb.open(str(directory), max_dbs=3, readonly=True, lock=False)
    with env.begin(db=env.open_db(db)) as txn:
        value = txn.get(key)
    env.close()
    assert value is not None
    return bytes(value)


def test_a_value_with_any_bit_flipped_is_corrupt_and_condemns_the_index(tmp_path: Path) -> None:
    index = Index(tmp_path, MAP)
    index.commit([((1, 2), UNIT)], ReputPosition(1, 2, 3, 4), [((9, 1), PRODUCER)])
    index.close()
    raw_key = bytes.fromhex("00000001000000020102030405060708")
    reads: dict[tuple[bytes, bytes], Callable[[Index], object]] = {
        (b"entries", raw_key): lambda index: index.last((1, 2)),
        (b"meta", b"reput"): Index.position,
        (b"producers", bytes.fromhex("000000000000000900000001")): Index.producers,
    }
    for (db, key), read in reads.items():
        good = _value(tmp_path, db, key)
        for position in range(0, len(good), 3):
            bad = bytearray(good)
            bad[position] ^= 1 << (position % 8)
            _overwrite(tmp_path, db, key, bytes(bad))
            index = Index(tmp_path, MAP)
            with pytest.raises(IndexCorrupt):
                read(index)
            assert index.is_condemned
            index.close()
            with pytest.raises(IndexCorrupt):
                Index(tmp_path, MAP)
            (tmp_path / "condemned").unlink()
        for size in (0, 3, 4, len(good) - 1):
            _overwrite(tmp_path, db, key, good[:size])
            index = Index(tmp_path, MAP)
            with pytest.raises(IndexCorrupt):
                read(index)
            index.close()
            (tmp_path / "condemned").unlink()
        _overwrite(tmp_path, db, key, good)


def test_a_value_under_another_key_is_corrupt(tmp_path: Path) -> None:
    index = Index(tmp_path, MAP)
    put(index, (1, 0), row((0, 5)))
    index.close()
    value = _value(tmp_path, b"entries", bytes.fromhex("00000001000000000000000000000000"))
    _overwrite(tmp_path, b"entries", bytes.fromhex("00000001000000000000000000000007"), value)
    index = Index(tmp_path, MAP)
    assert index.first((1, 0)) == row((0, 5))[0]
    with pytest.raises(IndexCorrupt):
        index.last((1, 0))
    index.close()


def test_a_readonly_index_is_not_condemned(tmp_path: Path) -> None:
    index = Index(tmp_path, MAP)
    put(index, (1, 0), row((0, 5)))
    index.close()
    _overwrite(tmp_path, b"entries", bytes(16), b"?")
    index = Index(tmp_path, MAP, readonly=True)
    with pytest.raises(IndexCorrupt):
        index.first((0, 0))
    index.close()
    assert {path.name for path in tmp_path.iterdir()} == {"data.mdb", "lock.mdb"}


_FLIPS = """
import pickle, random, sys
from pathlib import Path
from holdfast.consumequeue.index.index import Index, IndexCorrupt
from tests.consumequeue.index.test_index import everything

directory = Path(sys.argv[1])
image = (directory / "data.mdb").read_bytes()
wanted = pickle.loads((directory / "answers").read_bytes())
rng = random.Random(int(sys.argv[2]))
refused = 0
for _ in range(int(sys.argv[3])):
    at = rng.randrange(len(image) * 8)
    print("bit", at, flush=True)
    damaged = bytearray(image)
    damaged[at // 8] ^= 1 << at % 8
    (directory / "data.mdb").write_bytes(damaged)
    index = None
    try:
        index = Index(directory, 1 << 26)
        assert everything(index) in wanted, "a wrong answer"
    except IndexCorrupt:
        refused += 1
    finally:
        if index is not None:
            index.close()
        (directory / "condemned").unlink(missing_ok=True)
        (directory / "seal").unlink(missing_ok=True)
print("refused", refused)
"""


def test_a_flipped_bit_anywhere_is_refused_or_changes_no_answer(tmp_path: Path) -> None:
    """Run in a child process, because LMDB may abort the process.

    A flip in the newest meta page may activate the previous commit, which is consistent too.
    """
    index = Index(tmp_path, MAP)
    answers = []
    for group in range(12):
        units = row(*((group * 50 + offset, 1) for offset in range(50)))
        index.commit(
            [((1, queue), unit) for queue in range(3) for unit in units],
            ReputPosition(group, 0, group, 0),
            [((group % 5 + 1, 1), PRODUCER)],
        )
        index.delete_before((1, 0), group * 40)
        answers.append(everything(index))
    index.close()
    (tmp_path / "answers").write_bytes(pickle.dumps(answers))
    seed = int(os.environ.get("TEST_SEED", "20261121"))
    child = subprocess.run(
        [sys.executable, "-c", _FLIPS, str(tmp_path), str(seed), "120"],
        capture_output=True,
        text=True,
        cwd=Path(__file__).parents[3],
    )
    assert child.returncode == 0, f"seed {seed}: {child.stdout[-40:]} {child.stderr[-2000:]}"
    assert int(child.stdout.split()[-1]) > 20


def test_a_damaged_key_of_an_inner_page_is_refused(tmp_path: Path) -> None:
    """The entries are all unchanged and in order; only a search for some of them fails."""
    index = Index(tmp_path, MAP)
    put(index, (1, 0), row(*((offset, 1) for offset in range(300))))
    index.close()
    (tmp_path / "seal").unlink()  # as after a crash
    image = (tmp_path / "data.mdb").read_bytes()
    for at in _inner_keys(image):
        damaged = bytearray(image)
        damaged[at + 15] ^= 8  # the offset in the key, by 8 messages
        (tmp_path / "data.mdb").write_bytes(damaged)
        for readonly in (True, False):
            with pytest.raises(IndexCorrupt, match="does not find"):
                Index(tmp_path, MAP, readonly=readonly)


def _inner_keys(image: bytes) -> list[int]:
    """Return the positions of the keys in LMDB's inner pages: struct MDB_page and MDB_node of
    mdb.c.

    The first key of a page is unused and empty.
    """
    found = []
    for page in range(0, len(image), 4096):
        flags, lower = struct.unpack_from("<HH", image, page + 10)
        if page >= 8192 and flags == 1:
            for node in struct.unpack_from(f"<{(lower - 16) // 2}H", image, page + 16):
                (key_size,) = struct.unpack_from("<H", image, page + node + 6)
                if key_size == 16:
                    found.append(page + node + 8)
    assert found
    return found
