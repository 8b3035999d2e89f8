"""A real commit log of small segments, written by the test itself: no thread, no clock."""

from collections.abc import Callable
from pathlib import Path

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.commitlog.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk import Disk, LinuxDisk
from holdfast.commitlog.header_table import Run, headers_in
from holdfast.commitlog.log_scan import Damage, scan_log
from holdfast.commitlog.recovery import Recovered, recover
from holdfast.commitlog.segment import keyed_messages
from holdfast.commitlog.segment_format import SEGMENT_HEADER_SIZE
from tests.support.batches import stamped

SEGMENT_BYTES = 1024 * 1024
NOW_US = 1_700_000_000_000_000
#: Where the first block of a new log is.
FIRST = SEGMENT_HEADER_SIZE


def raw_batch(size: int = 200, *, keys: int = 0, fill: bytes = b"x") -> bytes:
    """Return an encoded batch of about this many bytes, with so many keyed messages."""
    if keys:
        return encode_batch([b""] * keys, keys=[f"key-{i}" for i in range(keys)])
    return encode_batch([(fill * size)[:size]])


class SmallLog:
    """A log with what the appender keeps beside it. `open` recovers, as a start does."""

    def __init__(
        self, directory: Path, disk: Disk | None = None, segment_bytes: int = SEGMENT_BYTES
    ) -> None:
        self.directory = directory
        self.disk = disk if disk is not None else LinuxDisk()
        self.log = CommitLog(
            directory,
            CommitLogConfig(segment_bytes=segment_bytes),
            self.disk,
            now_us=lambda: NOW_US,
        )
        self.headers: list[BatchHeader] = []
        """Of every block that recovery accepted and that was appended since."""
        self.durable_offset = 0
        self.next_offsets: dict[tuple[int, int], int] = {}

    def open(
        self, from_offset: int | None = None, from_counts: tuple[int, int, int] = (0, 0, 0)
    ) -> Recovered:
        """Open and recover, from the log's beginning unless told."""
        self.log.open()
        recovered = recover(
            self.log,
            from_offset=self.log.min_offset if from_offset is None else from_offset,
            from_counts=from_counts,
            on_blocks=self._note_all,
        )
        self.durable_offset = recovered.written_offset
        return recovered

    def _note_all(self, run: Run) -> None:
        for header in headers_in(run):
            self._note(header)

    def _note(self, header: BatchHeader) -> None:
        self.headers.append(header)
        self.next_offsets[header.topic_id, header.queue_id] = header.end_offset

    def append(self, raw: bytes, *, topic_id: int = 1, queue_id: int = 0) -> Batch:
        """Write a batch, in the next segment if it no longer fits."""
        header = Batch.decode(raw).header
        while not self.log.has_room(header.total_size, keyed_messages(header), 1):
            self.log.roll()
        batch = stamped(
            raw,
            physical_offset=self.log.written_offset,
            durable_offset=self.durable_offset,
            base_offset=self.next_offsets.get((topic_id, queue_id), 0),
            topic_id=topic_id,
            queue_id=queue_id,
            store_timestamp_us=NOW_US + len(self.headers),
        )
        self.log.append([batch.header.encode(), batch.block[HEADER_SIZE:]], [batch.header])
        self._note(batch.header)
        return batch

    def sync(self) -> None:
        """Make durable what was written; blocks appended from now on say so."""
        for segment in self.log.segments:
            segment.sync()
        self.durable_offset = self.log.written_offset

    def close(self) -> None:
        """Close the files."""
        self.log.close()

    def reopened(self) -> "SmallLog":
        """Close this log and return another on the same files, not opened yet."""
        self.close()
        return SmallLog(self.directory, self.disk)


def walk(log: CommitLog, start_offset: int = 0) -> list[int | Damage]:
    """Return what a walk over the log finds: physical offsets of blocks, and damage."""
    return [
        found if isinstance(found, Damage) else found.header.physical_offset
        for _, found in scan_log(log.segments, start_offset)
    ]


def segment_path(log: CommitLog, index: int) -> Path:
    """Return the file of a segment, counted from the oldest."""
    return log.segments[index].path


def change(path: Path, position: int, edit: Callable[[bytes], bytes], size: int = 1) -> None:
    """Replace `size` bytes of a file by what `edit` makes of them."""
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(size)
        file.seek(position)
        file.write(edit(old))


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    change(path, position, lambda old: bytes([old[0] ^ 1 << bit]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Write other bytes into a file."""
    change(path, position, lambda old: data, 0)
