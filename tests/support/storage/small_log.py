"""A real commit log with small segments. The test writes it directly, without thread or clock."""

from collections.abc import Callable
from pathlib import Path

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.disk.disk import Disk, LinuxDisk
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.format.header_table import Run, headers_in
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.log_scan import Damage, scan_log
from holdfast.commitlog.segments.recovery import RecoveryResult, recover
from holdfast.commitlog.segments.segment import keyed_messages
from tests.support.storage.batches import stamped

SEGMENT_BYTES = 1024 * 1024
NOW_US = 1_700_000_000_000_000
#: The offset of the first block of a new log.
FIRST = SEGMENT_HEADER_SIZE


def raw_batch(size: int = 200, *, keys: int = 0, fill: bytes = b"x") -> bytes:
    """Return an encoded batch of `size` bytes, or one with `keys` keyed messages."""
    if keys:
        return encode_batch([b""] * keys, keys=[f"key-{i}" for i in range(keys)])
    return encode_batch([(fill * size)[:size]])


class SmallLog:
    """A log with the state that the appender keeps for it. `open` recovers it, as a start does."""

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
        """The header of every block that recovery accepted or that was appended since then."""
        self.durable_offset = 0
        self.next_offsets: dict[tuple[int, int], int] = {}
        self._reopened: list[SmallLog] = []

    def open(
        self, from_offset: int | None = None, from_counts: tuple[int, int, int] = (0, 0, 0)
    ) -> RecoveryResult:
        """Open and recover, by default from the start of the log."""
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
        """Write a batch; roll to the next segment first if the batch does not fit."""
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
        """Make written data durable. Blocks that are appended later record this."""
        for segment in self.log.segments:
            segment.sync()
        self.durable_offset = self.log.written_offset

    def close(self) -> None:
        """Close the files, also those of logs that `reopen` and `reopen_unrecovered` returned."""
        self.log.close()
        for each in self._reopened:
            each.close()

    def reopen(
        self, from_offset: int | None = None, from_counts: tuple[int, int, int] = (0, 0, 0)
    ) -> "tuple[SmallLog, RecoveryResult]":
        """Close this log; return a new one on the same files, and the result of its recovery."""
        self.close()
        log = SmallLog(self.directory, self.disk)
        self._reopened.append(log)
        return log, log.open(from_offset, from_counts)

    def reopen_unrecovered(self) -> "SmallLog":
        """Close this log; return a new one on the same files, open and not recovered."""
        self.close()
        log = SmallLog(self.directory, self.disk)
        self._reopened.append(log)
        log.log.open()
        return log


def open_small_log(directory: Path, disk: Disk | None = None) -> SmallLog:
    """Return a log that is open and recovered."""
    small = SmallLog(directory, disk)
    small.open()
    return small


def walk(log: CommitLog, start_offset: int = 0) -> list[int | Damage]:
    """Scan the log; return the physical offsets of its blocks, and the damage."""
    return [
        found if isinstance(found, Damage) else found.header.physical_offset
        for _, found in scan_log(log.segments, start_offset)
    ]


def segment_path(log: CommitLog, index: int) -> Path:
    """Return the path of a segment; index 0 is the oldest."""
    return log.segments[index].path


def change(path: Path, position: int, edit: Callable[[bytes], bytes], size: int = 1) -> None:
    """Replace `size` bytes of a file by the result of `edit`."""
    with path.open("r+b") as file:
        file.seek(position)
        old = file.read(size)
        file.seek(position)
        file.write(edit(old))


def flip_bit(path: Path, position: int, bit: int = 0) -> None:
    """Flip one bit of a file."""
    change(path, position, lambda old: bytes([old[0] ^ 1 << bit]))


def overwrite(path: Path, position: int, data: bytes) -> None:
    """Overwrite bytes of a file."""
    change(path, position, lambda old: data, 0)
