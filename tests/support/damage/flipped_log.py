"""A log in memory with every kind of block, in which one bit is flipped, and the judge of a start.

The log looks like a log after a crash: a sealed segment, an active segment, and at its end a block
that no later block proves durable. Whichever bit is flipped: the served blocks are the stored
ones, missing blocks are declared, no byte below the durable watermark is changed, and every block
that was not hit is served.
"""

import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from holdfast.commitlog.disk.disk import Bytes
from holdfast.commitlog.errors import CorruptRecord
from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, SECTION_NAMES, BatchHeader, Section
from holdfast.commitlog.format.segment_format import BLOCK_DTYPE, END_MARK_SIZE, TRAILER_SIZE
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import read_footer, seal_segment
from holdfast.commitlog.segments.segment import read_trailer
from tests.support.storage.small_log import SmallLog

Outcome = str
""""harmless": all blocks are served. "declared": the hit block is missing, and recovery reported
it. "cut": the hit block was above the durable watermark, and recovery removed it as torn."""


class FlipViolation(AssertionError):
    """A result that a flipped bit must not cause."""


@dataclass(frozen=True, slots=True)
class Region:
    """Bytes with one meaning in one file, from `start` up to but not including `end`."""

    name: str
    path: Path
    start: int
    end: int

    @property
    def bits(self) -> range:
        """The indexes of the region's bits, counted from the first bit of the file."""
        return range(self.start * 8, self.end * 8)


class MemoryFile:
    """A File whose content is a bytearray."""

    def __init__(self, content: bytearray) -> None:
        self.content = content

    def write(self, buffers: Sequence[Bytes], position: int) -> None:
        data = b"".join(buffers)
        assert position + len(data) <= len(self.content)
        self.content[position : position + len(data)] = data

    def read(self, size: int, position: int) -> bytes:
        return bytes(self.content[position : position + size])

    def read_nowait(self, size: int, position: int) -> bytes | None:
        data = self.read(size, position)
        return data if len(data) == size else None

    def sync(self) -> None:
        pass

    def size(self) -> int:
        return len(self.content)

    def data_end(self, position: int) -> int:
        return max(position, len(self.content.rstrip(b"\0")))

    def close(self) -> None:
        pass


class MemoryDisk:
    """A Disk in memory. A start on it takes a few milliseconds."""

    def __init__(self) -> None:
        self.files: dict[Path, bytearray] = {}

    def names(self, directory: Path) -> list[str]:
        return sorted(path.name for path in self.files if path.parent == directory)

    def create(self, path: Path, size: int) -> MemoryFile:
        assert path not in self.files
        self.files[path] = bytearray(size)
        return MemoryFile(self.files[path])

    def open(self, path: Path) -> MemoryFile:
        return MemoryFile(self.files[path])

    def rename(self, source: Path, target: Path) -> None:
        self.files[target] = self.files.pop(source)

    def remove(self, path: Path) -> None:
        self.files.pop(path, None)

    def sync_names(self, directory: Path) -> None:
        """Do nothing: this disk never loses data."""


def batches(rng: random.Random, rows: int, body_bytes: int) -> Iterator[tuple[str, bytes]]:
    """Yield batches of all kinds, as (kind, bytes), without end."""
    number = 0
    while True:
        number += 1
        bodies = [rng.randbytes(rng.randint(1, body_bytes)) for _ in range(rows)]
        names = [f"{number}-{row}" for row in range(rows)]
        times = [1_700_000_000_000_000 + number * 1000 + row for row in range(rows)]
        yield "plain", encode_batch(bodies)
        yield "keys", encode_batch(bodies, keys=names)
        yield "tags", encode_batch(bodies, tags=names)
        yield "properties", encode_batch(bodies, properties=[{name: name * 2} for name in names])
        yield "times", encode_batch(bodies, born_timestamps_us=times, expires_timestamps_us=times)
        yield (
            "all",
            encode_batch(
                bodies,
                keys=[*names[1:], None],
                tags=[None, *names[1:]],
                properties=[{name: "é", "größe": name} for name in names],
                born_timestamps_us=times,
                expires_timestamps_us=times,
                producer_id=7,
                producer_epoch=1,
                sequence=number,
                request_sequence=True,
            ),
        )


@dataclass
class FlippedLog:
    """A log of two segments, the first full and sealed; `directory` stays empty."""

    directory: Path
    segment_bytes: int
    rows: int = 3
    body_bytes: int = 40
    kinds: dict[int, str] = field(default_factory=dict)
    """The kind of each block, by physical offset."""
    blocks: list[Batch] = field(default_factory=list)
    durable_offset: int = 0

    def __post_init__(self) -> None:
        self.disk = MemoryDisk()
        log = SmallLog(self.directory, self.disk, self.segment_bytes)
        log.open()
        kinds = batches(random.Random(1), self.rows, self.body_bytes)
        while len(log.log.segments) < 2 or len(self.blocks) % 6 != 0:
            self._append(log, *next(kinds))
            log.sync()
        for _ in range(6):
            self._append(log, *next(kinds))
            log.sync()
        # The first of these two blocks records that all earlier blocks are durable. No block
        # records that these two are durable.
        self.durable_offset = log.durable_offset
        for _ in range(2):
            self._append(log, *next(kinds))
        seal_segment(log.log.segments[0])
        self.regions = list(self._regions(log.log))
        self._tables = read_footer(log.log.segments[0])
        assert self._tables is not None
        log.close()
        self.image = {path: bytes(content) for path, content in self.disk.files.items()}
        self._stored = [bytes(batch.block) for batch in self.blocks]

    def _append(self, log: SmallLog, kind: str, raw: bytes) -> None:
        batch = log.append(raw, queue_id=len(self.blocks) % 3)
        self.blocks.append(batch)
        self.kinds[batch.header.physical_offset] = kind

    # -- what there is ---------------------------------------------------------------------

    def _regions(self, log: CommitLog) -> Iterator[Region]:
        """Yield every byte of every file, as regions with one meaning each."""
        ends: dict[Path, int] = {}
        for segment in log.segments:
            yield Region("segment header", segment.path, 0, 36)
            yield Region("rest of the header page", segment.path, 36, 4096)
            ends[segment.path] = 4096
        for batch in self.blocks:
            found = log.segment_at(batch.header.physical_offset)
            assert found is not None
            start = batch.header.physical_offset - found.start_offset
            is_proven = batch.header.physical_offset < self.durable_offset
            proven = "" if is_proven else " above the durable mark"
            yield Region(f"block header{proven}", found.path, start, start + HEADER_SIZE)
            at = HEADER_SIZE
            for name, section in columns_of(batch):
                if at < section.start:
                    yield Region(f"padding{proven}", found.path, start + at, start + section.start)
                yield Region(name + proven, found.path, start + section.start, start + section.end)
                at = section.end
            ends[found.path] = start + batch.header.total_size
            if at < batch.header.total_size:
                yield Region(f"padding{proven}", found.path, start + at, ends[found.path])
        sealed, active = log.segments
        mark = ends[sealed.path]
        yield Region("end mark", sealed.path, mark, mark + END_MARK_SIZE)
        trailer = read_trailer(sealed)
        assert trailer is not None
        footer = sealed.size - trailer.footer_size
        yield Region("zeros before the footer", sealed.path, mark + END_MARK_SIZE, footer)
        keys = footer + trailer.block_count * BLOCK_DTYPE.itemsize
        yield Region("footer: blocks", sealed.path, footer, keys)
        yield Region("footer: keys", sealed.path, keys, sealed.size - TRAILER_SIZE)
        yield Region("footer: trailer", sealed.path, sealed.size - TRAILER_SIZE, sealed.size)
        yield Region("zeros after the last block", active.path, ends[active.path], active.size)

    def hit(self, path: Path, bit: int) -> int | None:
        """Return the index of the block that contains this bit, or None."""
        offset = int(path.name) + bit // 8
        for index, batch in enumerate(self.blocks):
            if batch.header.physical_offset <= offset < batch.header.end_physical_offset:
                return index
        return None

    # -- flips -----------------------------------------------------------------------------

    def start(self, path: Path, bit: int) -> Outcome:
        """Flip a bit, start without an index, and read all; raise FlipViolation if it is wrong."""
        self.disk.files = {name: bytearray(content) for name, content in self.image.items()}
        _flip(self.disk.files[path], bit)
        log = SmallLog(self.directory, self.disk, self.segment_bytes)
        recovered = log.open()
        hit = self.hit(path, bit)
        is_cut = hit is not None and self.blocks[hit].header.physical_offset >= self.durable_offset
        kept = self.blocks[: hit if is_cut else None]
        self._judge_headers(log.headers, kept, hit)
        for index in range(len(kept)):
            self._judge_read(log.log, index, index == hit)
        self._judge_files(path, bit)
        tables = read_footer(log.log.segments[0])
        if tables is not None and not all(map(np.array_equal, tables, self._tables or ())):
            raise FlipViolation("the footer is served with other tables")
        declared = {damage.start for damage in recovered.damage}
        if hit is None or is_cut:
            may_be = {int(path.name) + bit // 8 // 8 * 8} | self._end_mark
            if declared - may_be:
                raise FlipViolation(f"what is intact was reported: {recovered.damage}")
            return "cut" if recovered.cut_bytes else "declared" if declared else "harmless"
        if declared != {self.blocks[hit].header.physical_offset}:
            raise FlipViolation(f"the damage was not reported: {recovered.damage}")
        return "declared"

    @property
    def _end_mark(self) -> set[int]:
        region = next(region for region in self.regions if region.name == "end mark")
        return {int(region.path.name) + region.start}

    def _judge_headers(self, found: list[BatchHeader], kept: list[Batch], hit: int | None) -> None:
        """Check that every block is found in order. Only the block that was hit may be missing."""
        expected = [_place(batch.header) for batch in kept]
        without = [place for index, place in enumerate(expected) if index != hit]
        if [_place(header) for header in found] not in (expected, without):
            raise FlipViolation(f"{len(found)} blocks are found, {len(expected)} there")

    def _judge_read(self, log: CommitLog, index: int, is_hit: bool) -> None:
        header = self.blocks[index].header
        try:
            block = log.read_batch(header.physical_offset, header.total_size).block
        except CorruptRecord:
            if not is_hit:
                raise FlipViolation(f"block {index} is intact, but not served") from None
        else:
            if is_hit or block != self._stored[index]:
                raise FlipViolation(f"block {index} is served with other bytes")

    def _judge_files(self, path: Path, bit: int) -> None:
        """Check that no file is missing, and no byte below the durable watermark changed."""
        if self.disk.files.keys() != self.image.keys():
            raise FlipViolation(f"the files are {sorted(self.disk.files)}")
        for name, content in self.image.items():
            expected = bytearray(content)
            if name == path:
                _flip(expected, bit)
            end = min(max(self.durable_offset - int(name.name), 0), len(expected))
            if self.disk.files[name][:end] != expected[:end]:
                raise FlipViolation(f"{name.name} was changed below the durable mark")


class FlippedReads:
    """Reads the blocks of a log one by one, with the log's own check and one flipped bit."""

    def __init__(self, flipped: FlippedLog) -> None:
        self._flipped = flipped
        self._disk = MemoryDisk()
        self._disk.files = {name: bytearray(data) for name, data in flipped.image.items()}
        self._log = SmallLog(flipped.directory, self._disk, flipped.segment_bytes).log
        self._log.open()

    def every_bit_of(self, index: int, *, read_each: int = 1) -> int:
        """Flip every bit of a block, one at a time, and read the block; return the number of bits.

        Raise FlipViolation if a damaged block is served.

        With `read_each` above 1, only the bits of every `read_each`-th payload byte are tested with
        a read. For the other payload bits only the payload's checksum is compared, which is the
        only use that a read makes of them. Header bits are always tested with a read.
        """
        header = self._flipped.blocks[index].header
        segment = self._log.segment_at(header.physical_offset)
        assert segment is not None
        content = self._disk.files[segment.path]
        start = header.physical_offset - segment.start_offset
        block = memoryview(content)[start : start + header.total_size]
        offset, size = header.physical_offset, header.total_size
        for at in range(size):
            is_read = at < HEADER_SIZE or at % read_each == 0
            for bit in range(8):
                block[at] ^= 1 << bit
                if is_read:
                    is_served = self._serves(offset, size)
                else:
                    is_served = payload_crc(block) == header.payload_crc
                if is_served:
                    raise FlipViolation(f"served with bit {bit} of byte {at} flipped")
                block[at] ^= 1 << bit
        if block != self._flipped.blocks[index].block or not self._serves(offset, size):
            raise FlipViolation("not served as it was")
        return size * 8

    def _serves(self, physical_offset: int, size: int) -> bool:
        try:
            self._log.read_batch(physical_offset, size)
        except CorruptRecord:
            return False
        return True


def _place(header: BatchHeader) -> tuple[int, ...]:
    """Return the fields of a queue entry. If the header is damaged, the footer has them too."""
    return (
        header.topic_id,
        header.queue_id,
        header.base_offset,
        header.message_count,
        header.physical_offset,
        header.total_size,
        header.store_timestamp_us,
        header.tag_summary,
    )


def columns_of(batch: Batch) -> list[tuple[str, Section]]:
    """Return the sections of a batch with their names, in order."""
    found = [(name, getattr(batch.layout, name)) for name in SECTION_NAMES]
    return [(name, section) for name, section in found if section is not None]


def _flip(content: bytearray, bit: int) -> None:
    content[bit // 8] ^= 1 << bit % 8
