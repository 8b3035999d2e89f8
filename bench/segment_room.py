"""What an append and its sync cost in a fresh segment, and in files whose room was written before.

    python -m bench.segment_room [--json] [--bytes 1024] [--appends 100] [--rounds 9]

A fresh segment is allocated and never written: the first sync of each page makes the file system
record in its journal that the page is now written. A recycled segment is a file with the blocks of
an earlier segment, and a zeroed segment is a file that was filled with zeros. Both need no such
record. Before the first append, the pages of a "cold" file are dropped from the page cache, as
those of a segment that retention frees would be.

The log, its append and its sync are the product's own; only the disk of this benchmark makes files
that are not fresh. Each append is followed by a sync. The cases take turns every ten appends. The
first round does not count, nor do the slowest tenth of the appends of each round.
"""

import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness import arguments
from bench.rows import TIMES, Row, report
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Bytes, File, LinuxDisk, forget
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, Buffer
from holdfast.commitlog.segments.commit_log import CommitLog

_CHUNK_BYTES = 1024 * 1024
_FRESH = "fresh"
_TURN_APPENDS = 10
#: The share of each round's appends that count.
_KEPT_SHARE = 0.9


@dataclass(eq=False)
class _Case:
    """A kind of file, its log, and the mean microseconds of an append and a sync in each round."""

    name: str
    chunk: Bytes = b""
    is_cold: bool = False
    writes: list[float] = field(default_factory=list)
    syncs: list[float] = field(default_factory=list)
    _times: list[tuple[float, float]] = field(default_factory=list)

    def open(self, directory: Path, segment_bytes: int) -> None:
        """Create the log and its only segment."""
        disk = _PreparedDisk(self.chunk, is_cold=self.is_cold)
        # All segments have the full size, so that each case needs only one.
        config = CommitLogConfig(segment_bytes=segment_bytes, first_segment_bytes=segment_bytes)
        self.log = CommitLog(directory, config, disk, now_us=lambda: time.time_ns() // 1000)
        self.log.open()
        self.log.roll()

    def end_round(self) -> None:
        """Add the means of the round to `writes` and `syncs`, without its slowest appends: those
        show what else uses the disk. A median would hide the cost of small appends, because only
        the first append to a page pays it."""
        quick = sorted(self._times, key=sum)[: int(len(self._times) * _KEPT_SHARE)]
        writes, syncs = zip(*quick, strict=True)
        self.writes.append(statistics.mean(writes))
        self.syncs.append(statistics.mean(syncs))
        self._times.clear()

    @property
    def totals(self) -> list[float]:
        """Return the mean time of a write and its sync in each round that counts."""
        pairs = zip(self.writes[1:], self.syncs[1:], strict=True)
        return [write + sync for write, sync in pairs]

    def append(self, batch: Batch) -> None:
        """Append and sync, and note the times."""
        header = batch.header.stamp(
            physical_offset=self.log.written_offset,
            durable_offset=self.log.written_offset,
            base_offset=0,
            topic_id=1,
            queue_id=0,
            store_timestamp_us=0,
            tag_summary=0,
        )
        buffers: list[Buffer] = [header.encode(), batch.block[HEADER_SIZE:]]
        begun = time.perf_counter()
        self.log.append(buffers, [header])
        written = time.perf_counter()
        self.log.segments[-1].sync()
        synced = time.perf_counter()
        self._times.append(((written - begun) * 1e6, (synced - written) * 1e6))


class _PreparedDisk(LinuxDisk):
    """A disk whose new files are filled with copies of `chunk` and synced; fresh if it is empty."""

    def __init__(self, chunk: Bytes, *, is_cold: bool) -> None:
        self._chunk = chunk
        self._is_cold = is_cold

    def create(self, path: Path, size: int) -> File:
        """Create and fill a file."""
        file = super().create(path, size)
        if self._chunk:
            for at in range(0, size, len(self._chunk)):
                file.write([self._chunk[: size - at]], at)
            file.sync()
            if self._is_cold:
                forget(file, size, 0)
        return file


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", bytes=1024, appends=100, rounds=9)
    report(rows(options.bytes, options.appends, options.rounds), as_json=options.json)


def rows(body_bytes: int, appends: int, rounds: int) -> Iterator[Row]:
    """Measure; yield the times of each case, and their ratios to the fresh segment."""
    batch = Batch.decode(encode_batch([os.urandom(body_bytes)]))
    blocks = bytes(batch.block) * (_CHUNK_BYTES // batch.total_size + 1)
    cases = [
        _Case(_FRESH),
        _Case("zeroed", bytes(_CHUNK_BYTES)),
        _Case("zeroed, cold", bytes(_CHUNK_BYTES), is_cold=True),
        _Case("recycled", blocks),
        _Case("recycled, cold", blocks, is_cold=True),
    ]
    # Twice the room of the blocks: a block has a row in the footer, for which room is reserved.
    segment_bytes = _CHUNK_BYTES + 2 * batch.total_size * appends * (rounds + 1)
    with tempfile.TemporaryDirectory() as directory, ExitStack() as stack:
        for number, case in enumerate(cases):
            case.open(Path(directory) / str(number), segment_bytes)
            stack.callback(case.log.close)
        for _ in range(rounds + 1):
            for _ in range(appends // _TURN_APPENDS):
                for case in cases:
                    for _ in range(_TURN_APPENDS):
                        case.append(batch)
            for case in cases:
                case.end_round()
    base = cases[0].totals
    for case in cases:
        for what, values in (("write", case.writes[1:]), ("sync", case.syncs[1:])):
            yield Row("", f"{what}, {case.name}", "fsync", "us", values, body_bytes=body_bytes)
        ratios = [ours / theirs for ours, theirs in zip(case.totals, base, strict=True)]
        yield Row("", f"both, {case.name}, beside {_FRESH}", "fsync", TIMES, ratios)


if __name__ == "__main__":
    main()
