"""Reading many batches at once returns the same as reading them one by one, damaged or not."""

import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import REBUILT, BatchHeader
from holdfast.commitlog.segments import run_reader
from holdfast.commitlog.segments.run_reader import FEW
from holdfast.consumequeue.index.consume_queue import ConsumeQueue, CqUnit
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.reading import disk_reader
from holdfast.consumequeue.reading.disk_reader import DiskReader
from holdfast.consumequeue.reading.fetched import Fetched, RunSlice, Shares, Wanted
from holdfast.consumequeue.reading.reader import Place
from tests.support.storage.small_log import SmallLog, flip_bit

KEY = (1, 0)


class Stored:
    """A queue in a log, between blocks of another queue, and its index: on disk, or in memory."""

    def __init__(self, directory: Path) -> None:
        self.small = SmallLog(directory / "log", segment_bytes=256 * 1024)
        self.small.open()
        self.small.log.roll()
        self.index = Index(directory / "index", 16 * 1024 * 1024)
        self.cq = ConsumeQueue(None, 0, 0)
        self.headers: list[BatchHeader] = []

    def fill(
        self, counts: list[int], *, between: int = 0, text: int = 20, ending: bytes = b""
    ) -> None:
        for count in counts:
            at = self.cq.max_offset
            texts = [b"%d" % (at + row) + b"." * text + ending for row in range(count)]
            header = self.small.append(encode_batch(texts)).header
            self.headers.append(header)
            self.cq.show(CqUnit(at, header.physical_offset, header.total_size, count, 1, 0, 0))
            for _ in range(between):
                self.small.append(encode_batch([b"other"]), queue_id=1)

    def commit(self, keep: int = 0) -> None:
        border = len(self.cq.entries) - keep
        units, self.cq.entries = self.cq.entries[:border], self.cq.entries[border:]
        self.index.commit([(KEY, unit) for unit in units], ReputPosition())

    def read(self, offset: int, **wanted: Any) -> Fetched:
        bounds = {"max_messages": 10_000, "max_bytes": 16 * 1024 * 1024, **wanted}
        place = Place(KEY, self.cq, offset, self.cq.max_offset, ())
        return DiskReader(self.small.log, self.index).read(place, Wanted(**bounds))

    def read_many(self, starts: list[int], **wanted: Any) -> list[Fetched | CorruptRecord]:
        bounds = {"max_messages": 10_000, "max_bytes": 16 * 1024 * 1024, **wanted}
        places = [Place(KEY, self.cq, start, self.cq.max_offset, ()) for start in starts]
        shares = Shares(len(places), Wanted(**bounds), whole_batches=False)
        return DiskReader(self.small.log, self.index).read_many(places, shares)

    def flip(self, batch: int, position: int = 140) -> None:
        header = self.headers[batch]
        segment = self.small.log.segment_at(header.physical_offset)
        assert segment is not None
        flip_bit(segment.path, header.physical_offset - segment.start_offset + position)

    def close(self) -> None:
        self.small.close()
        self.index.close()


@pytest.fixture
def stored(tmp_path: Path) -> Iterator[Stored]:
    found = Stored(tmp_path)
    yield found
    found.close()


def offsets(fetched: Fetched) -> list[int]:
    found = [
        int(piece.batch.body(row).removesuffix(b"HFBT" * 5).rstrip(b"."))
        for piece in fetched.slices
        for row in piece.rows
    ]
    assert fetched.message_count == len(found)
    return found


def runs(fetched: Fetched) -> int:
    return sum(isinstance(piece, RunSlice) for piece in fetched.pieces)


def outcome(read: Any, *arguments: Any, **wanted: Any) -> Any:
    """Return the delivered messages without their division into pieces, or the error."""
    try:
        fetched = read(*arguments, **wanted)
    except CorruptRecord as error:
        return error.reason, error.next_offset
    texts = sum(slice_.text_bytes for slice_ in fetched.slices)
    return offsets(fetched), fetched.next_offset, fetched.max_offset, fetched.skipped, texts


def one_by_one(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **wanted: Any) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(disk_reader, "FEW", 10**9)
        return outcome(*arguments, **wanted)


def test_small_batches_are_read_as_one_run(stored: Stored) -> None:
    stored.fill([1] * 500, between=1)
    stored.commit()
    fetched = stored.read(0)
    assert offsets(fetched) == list(range(500))
    assert (runs(fetched), len(fetched.pieces)) == (1, 1)
    assert fetched.pieces[0].text_bytes == sum(slice_.text_bytes for slice_ in fetched.slices)


def test_a_run_may_begin_inside_a_batch(stored: Stored) -> None:
    stored.fill([3] * FEW)
    stored.commit()
    fetched = stored.read(4)
    assert offsets(fetched) == list(range(4, 3 * FEW))
    assert fetched.next_offset == 3 * FEW


@pytest.mark.parametrize(("between", "expected"), [(0, 1), (2, 2)])
def test_a_read_joins_disk_and_memory(stored: Stored, between: int, expected: int) -> None:
    stored.fill([1] * 200, between=between)
    stored.commit(keep=100)
    fetched = stored.read(0)
    assert offsets(fetched) == list(range(200))
    assert runs(fetched) == expected


@pytest.mark.parametrize("seed", range(30))
def test_any_read_equals_reading_batch_by_batch(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, seed: int
) -> None:
    drawn = random.Random(seed)
    monkeypatch.setattr(run_reader, "MAX_RUN_BYTES", drawn.choice((5_000, 2**20)))
    monkeypatch.setattr(run_reader, "MAX_EXTENT_BYTES", drawn.choice((7_000, 2**20)))
    monkeypatch.setattr(disk_reader, "MAX_SPREAD", drawn.choice((0, 1.5, 10)))
    stored = Stored(tmp_path)
    stored.fill(
        [drawn.choice((1, 1, 1, 7)) for _ in range(300)],
        between=drawn.randrange(3),
        text=drawn.choice((0, 300)),
        ending=drawn.choice((b"", b"HFBT" * 5)),
    )
    stored.commit(keep=drawn.choice((0, 3, 100)))
    for _ in range(drawn.randrange(4)):
        stored.flip(drawn.randrange(300), drawn.choice((4, 8, 48, 140)))
    for _ in range(20):
        offset = drawn.randrange(stored.cq.max_offset)
        wanted: dict[str, Any] = {
            "max_messages": drawn.choice((1, 32, 100, 10_000)),
            "max_bytes": drawn.choice((1, 10_000, 50_000, 2**24)),
            "skip_corrupt": drawn.random() < 0.5,
        }
        # Merged blocks are smaller, so more of them are within the limit of bytes.
        wanted["rebuilt"] = wanted["max_bytes"] == 2**24 and drawn.random() < 0.5
        found = outcome(stored.read, offset, **wanted)
        assert found == one_by_one(monkeypatch, stored.read, offset, **wanted), (offset, wanted)
    stored.close()


@pytest.mark.parametrize("position", [4, 48, 140])
@pytest.mark.parametrize("count", [FEW - 1, 4 * FEW])
def test_damage_in_one_queue_affects_only_this_queue(
    stored: Stored, count: int, position: int
) -> None:
    stored.fill([1] * count)
    stored.commit()
    stored.flip(5, position)
    before, at, after = stored.read_many([0, 5, 6])
    assert isinstance(before, Fetched)
    assert isinstance(after, Fetched)
    assert offsets(before) == list(range(5))
    assert isinstance(at, CorruptRecord)
    assert at.next_offset == 6
    assert offsets(after) == list(range(6, count))


def test_the_share_of_a_damaged_queue_goes_to_the_next(stored: Stored) -> None:
    stored.fill([1] * 300)
    stored.commit()
    stored.flip(5)
    at, after = stored.read_many([5, 6], max_messages=200)
    assert isinstance(at, CorruptRecord)
    assert isinstance(after, Fetched)
    assert offsets(after) == list(range(6, 206))


def test_large_batches_are_looked_up_once(stored: Stored, monkeypatch: pytest.MonkeyPatch) -> None:
    stored.fill([100] * 2 * FEW)
    stored.commit()
    monkeypatch.delattr(Index, "columns")
    found = stored.read_many([0, 1000, 2000], max_messages=300)
    assert [offsets(each)[0] for each in found if isinstance(each, Fetched)] == [0, 1000, 2000]
    with pytest.raises(AttributeError):
        stored.read(0)


def test_a_block_of_another_queue_is_not_delivered(stored: Stored) -> None:
    stored.fill([1] * FEW, between=1)
    wrong = [unit._replace(physical_offset=unit.end_physical_offset) for unit in stored.cq.entries]
    sizes = len(encode_batch([b"other"]))
    stored.cq.entries = [unit._replace(size=sizes) for unit in wrong]
    stored.commit()
    with pytest.raises(CorruptRecord, match="index-mismatch"):
        stored.read(0)


def test_a_run_needs_only_its_first_index_entries(stored: Stored) -> None:
    stored.fill([1] * 10 * FEW)
    others = [unit._replace(physical_offset=8) for unit in stored.cq.entries[FEW:]]
    stored.cq.entries[FEW:] = others
    assert offsets(stored.read(0)) == list(range(10 * FEW))


def test_a_run_ends_where_the_log_lacks_a_batch(stored: Stored) -> None:
    stored.fill([1] * 3 * FEW)
    lost = stored.cq.entries[2 * FEW]
    stored.flip(2 * FEW, 48)  # its topic id, so that it seems to belong to another queue
    assert stored.read(0).next_offset == lost.base_offset


def test_batches_that_are_not_visible_yet_are_not_read(stored: Stored) -> None:
    stored.fill([1] * 3 * FEW)
    stored.cq.max_offset -= 10
    assert stored.read(0).next_offset == 3 * FEW - 10


def test_a_filter_examines_every_batch(stored: Stored) -> None:
    class Even:
        def may_match(self, tag_summary: int) -> bool:
            return True

        def cost_us(self, messages: int, text_bytes: int) -> float:
            return 0.001

        def matching_rows(self, batch: Any, start_row: int, end_row: int) -> list[int]:
            base = batch.header.base_offset
            return [row for row in range(start_row, end_row) if (base + row) % 2 == 0]

    stored.fill([1] * 100)
    stored.commit()
    assert offsets(stored.read(0, filter=Even())) == list(range(0, 100, 2))


def test_blocks_are_the_stored_bytes(stored: Stored) -> None:
    stored.fill([1] * FEW)
    stored.commit()
    (piece,) = stored.read(0).pieces
    segment = stored.small.log.segments[0]
    first = stored.headers[0].physical_offset
    size = sum(header.total_size for header in stored.headers)
    with segment.path.open("rb") as file:
        file.seek(first - segment.start_offset)
        assert piece.blocks == file.read(size)


@pytest.mark.parametrize("counts", [[1] * 500, [3, 1] * 100])
def test_a_run_is_merged_if_the_reader_accepts_that(stored: Stored, counts: list[int]) -> None:
    stored.fill(counts, between=1)
    stored.commit()
    plain, merged = stored.read(2), stored.read(2, rebuilt=True)
    (block,) = iter_batches(b"".join(piece.blocks for piece in merged.pieces), rebuilt=True)
    assert block.header.flags & REBUILT
    assert block.header.base_offset == (2 if counts[0] == 1 else 0)
    assert len(block) == sum(counts) - block.header.base_offset
    assert (offsets(merged), merged.next_offset) == (offsets(plain), plain.next_offset)
    assert merged.block_bytes < plain.block_bytes
    for piece in plain.pieces:
        assert not [one for one in iter_batches(piece.blocks) if one.header.flags & REBUILT]


def test_a_damaged_block_is_not_merged(stored: Stored) -> None:
    stored.fill([1] * 100)
    stored.commit()
    stored.flip(60)
    merged = stored.read(0, rebuilt=True)
    assert merged.next_offset == 60
    assert offsets(merged) == list(range(60))
    with pytest.raises(CorruptRecord):
        stored.read(60, rebuilt=True)


def test_the_newest_batch_is_read_without_the_index(
    stored: Stored, monkeypatch: pytest.MonkeyPatch
) -> None:
    stored.fill([3, 4])
    stored.commit()
    monkeypatch.delattr(Index, "units")
    assert offsets(stored.read(3)) == [3, 4, 5, 6]
    for start, wanted in ((0, {}), (4, {}), (3, {"max_messages": 3}), (3, {"max_bytes": 150})):
        with pytest.raises(AttributeError):
            stored.read(start, **wanted)


def test_a_damaged_newest_batch_is_not_delivered(stored: Stored) -> None:
    stored.fill([3, 4])
    stored.commit()
    stored.flip(1)
    with pytest.raises(CorruptRecord) as caught:
        stored.read(3)
    assert caught.value.next_offset == 7
    assert stored.read(3, skip_corrupt=True).next_offset == 7
