"""A data directory as it is at one moment, while a broker may be writing to it.

The log is read as a reader without a broker reads it: what was acknowledged before is in the
page cache at the latest, and blocks prove themselves. So the walk, begun at any time, finds all
that was acknowledged before it began, and ends at a batch's border.
"""

import hashlib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.log_scan import Damage, scan_log
from holdfast.commitlog.read_only import ReadOnlyDisk, Snapshot
from holdfast.commitlog.segment import Segment, read_trailer
from holdfast.commitlog.segment_format import SEGMENT_HEADER_SIZE, TRAILER_SIZE
from holdfast.consumequeue.lmdb_env import CORRUPT
from holdfast.consumequeue.state_store import FORMAT as STATE_FORMAT
from holdfast.groups.cursor_store import has_rows, load_rows, mark_as_copy
from holdfast.groups.stored_cursors import StoredCursors

#: A block that is being written looks torn. It is looked at again so often, so long apart.
_LOOKS = 20
_LOOK_AGAIN_S = 0.01


@dataclass(slots=True)
class LogSnapshot:
    """The log from its first segment up to `end_offset`, a border between batches."""

    log: CommitLog
    end_offset: int
    sealed: list[Segment] = field(default_factory=list)
    """Ended, with an intact footer: they never change."""
    unsealed: list[Segment] = field(default_factory=list)
    """The rest of those that hold blocks, oldest first."""
    damage: list[Damage] = field(default_factory=list)
    """What no block can be read from, below `end_offset`."""
    vanished: list[Path] = field(default_factory=list)
    """Segments that retention deleted before they could be opened."""


@contextmanager
def log_snapshot(directory: Path) -> Iterator[LogSnapshot]:
    """Open the segments that are there now and find where the log ends. What was found stays
    readable inside the context, whatever retention deletes.

    Only what is not sealed is walked, with its payloads. All of it is synced before this returns,
    so that it is on the source's disk too. Raises UnknownFormatVersion; OSError passes through.
    """
    files = Snapshot()
    log = CommitLog(directory, CommitLogConfig(), ReadOnlyDisk(files), now_us=lambda: 0)
    try:
        log.open()
        first = next(
            (i for i, segment in enumerate(log.segments) if not _is_sealed(segment)),
            len(log.segments),
        )
        # Segments are sealed in turn. One without a footer before sealed ones has lost it.
        sealed = [segment for segment in log.segments if _is_sealed(segment)]
        snapshot = LogSnapshot(log, 0, sealed, [], [], files.vanished)
        _walk(snapshot, log.segments[first:])
        for segment in snapshot.unsealed:
            segment.file.sync()
        yield snapshot
    finally:
        log.close()
        files.close()


def identity(segment: Segment) -> str:
    """Return what tells a sealed segment from every other: its header and its trailer, which
    covers the table of its blocks."""
    header = segment.file.read(SEGMENT_HEADER_SIZE, 0)
    trailer = segment.read(segment.end_offset - TRAILER_SIZE, TRAILER_SIZE)
    return hashlib.sha256(header + trailer).hexdigest()


def _is_sealed(segment: Segment) -> bool:
    try:
        trailer = read_trailer(segment)
    except CorruptBatch:
        return False
    return trailer is not None and trailer.start_offset == segment.start_offset


def _walk(snapshot: LogSnapshot, segments: tuple[Segment, ...]) -> None:
    """Fill in where the log ends, looking again at what may be a write under way."""
    durable = 0
    if segments:
        end = segments[0].first_offset
    else:
        end = snapshot.log.segments[-1].end_offset if snapshot.log.segments else 0
    at = segments[0].start_offset if segments else 0
    with_blocks: set[int] = set()
    for look in range(_LOOKS):
        damage: list[Damage] = []
        for segment, found in scan_log(segments, at):
            if isinstance(found, Damage):
                damage.append(found)
                continue
            end = max(end, found.header.end_physical_offset)
            durable = max(durable, found.header.durable_offset)
            with_blocks.add(segment.start_offset)
        doubtful = [
            found
            for found in damage
            if found.start < max(durable, end) or found.reason != "unwritten"
        ]
        if not doubtful or look == _LOOKS - 1:
            break
        at = doubtful[0].start
        time.sleep(_LOOK_AGAIN_S)
    # What was not proven durable and follows damage is a torn tail: a start would cut it.
    torn = [found.start for found in damage if found.start >= durable]
    snapshot.end_offset = min([end, *torn])
    snapshot.damage = [found for found in damage if found.start < snapshot.end_offset]
    snapshot.unsealed = [
        segment
        for segment in segments
        if segment not in snapshot.sealed
        and segment.start_offset < snapshot.end_offset
        and (segment.start_offset in with_blocks or segment.end_offset <= snapshot.end_offset)
    ]


class LiveState:
    """The records of `state/`, read while a broker may be writing them."""

    def __init__(self, directory: Path) -> None:
        """Open. lmdb.Error passes through, OSError for one that is not there."""
        self._env = _open_live(directory)

    def records(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the records as they are now, and the keys of damaged ones. Raises one of
        lmdb_env.CORRUPT for what is no state of this format."""
        try:
            return self._read()
        except lmdb.MapResizedError:
            self._env.set_mapsize(0)
            return self._read()

    def _read(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        records: dict[bytes, bytes] = {}
        damaged = []
        with self._env.begin() as txn:
            if txn.get(b"\0format") != STATE_FORMAT:
                raise lmdb.InvalidError("no state of this format")
            for key, value in txn.cursor():
                if key == b"\0format":
                    continue
                if len(value) < 4 or crc32c(key + value[:-4]).to_bytes(4, "little") != value[-4:]:
                    damaged.append(key)
                else:
                    records[key] = value[:-4]
        return records, damaged

    def close(self) -> None:
        """Close; may be called twice."""
        self._env.close()


def copy_cursors(directory: Path, target: Path) -> bool:
    """Copy the groups' cursors in `directory`, as of one moment, into the new folder `target`,
    while a broker may be writing them; return whether there are any. lmdb.Error passes through,
    OSError for what is not there."""
    env = _open_live(directory)
    try:
        for _ in range(_LOOKS):
            try:
                with env.begin() as txn:
                    if not has_rows(txn):
                        return False
                env.copy(str(target), compact=True)
                break
            except lmdb.MapResizedError:
                env.set_mapsize(0)
    finally:
        env.close()
    mark_as_copy(target)
    (target / "lock.mdb").unlink(missing_ok=True)
    return True


def live_cursors(directory: Path) -> StoredCursors:
    """Return the groups' cursors in `directory` as of one moment, while a broker may be writing
    them. One of lmdb_env.CORRUPT passes through, OSError for what is not there."""
    env = _open_live(directory)
    try:
        while True:
            try:
                with env.begin() as txn:
                    return load_rows(txn) if has_rows(txn) else StoredCursors()
            except lmdb.MapResizedError:
                env.set_mapsize(0)
    finally:
        env.close()


def _open_live(directory: Path) -> lmdb.Environment:
    """Open what a broker may be writing, to read it."""
    return lmdb.open(
        str(directory),
        map_size=(directory / "data.mdb").stat().st_size + 2**24,
        readonly=True,
        max_readers=512,
        # Whoever writes has made it. It is not made here, or it might be somebody else's.
        lock=(directory / "lock.mdb").exists(),
    )


STATE_FAILURES = (*CORRUPT, FileNotFoundError)
