"""A data directory at one moment, read while a broker may be writing to it.

The log is read without the broker. Acknowledged blocks are at least in the page cache, and each
block contains its own checksum. So a scan finds everything that was acknowledged before the scan
began, and ends at a border between batches.
"""

import hashlib
import time
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

import lmdb

from holdfast.commitlog.disk.owned_files import FILE_MODE
from holdfast.commitlog.disk.read_only import Snapshot
from holdfast.commitlog.errors import CorruptBatch, LogError
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE, TRAILER_SIZE
from holdfast.commitlog.segments.commit_log import CommitLog, open_read_only
from holdfast.commitlog.segments.log_scan import Damage, scan_log
from holdfast.commitlog.segments.segment import Segment, read_trailer
from holdfast.consumequeue.lmdb_env.env import CORRUPT, check_env_files
from holdfast.consumequeue.state.store import StateStore
from holdfast.groups.storage.cursor_store import has_rows, load_rows, mark_as_copy
from holdfast.groups.storage.restore import StoredCursors

_T = TypeVar("_T")

#: A block that is being written looks torn. It is read at most this many times, at the interval
#: _LOOK_AGAIN_S.
_LOOKS = 20
_LOOK_AGAIN_S = 0.01


@dataclass(eq=False, repr=False)
class StateGrows(LogError):
    """The broker enlarged the LMDB file in `where` at each of several attempts to read it."""

    where: Path

    def __str__(self) -> str:
        return (
            f"the broker enlarged the file in {self.where} at each of {_LOOKS} attempts to read "
            "it; try again when it stores less"
        )


@dataclass(slots=True)
class LogSnapshot:
    """The log from its first segment up to `end_offset`, a border between batches."""

    log: CommitLog
    end_offset: int
    sealed: list[Segment] = field(default_factory=list)
    """Segments that have ended and have an intact footer: they never change."""
    unsealed: list[Segment] = field(default_factory=list)
    """The other segments with blocks, oldest first."""
    damage: list[Damage] = field(default_factory=list)
    """The places below `end_offset` from which no block can be read."""
    vanished: list[Path] = field(default_factory=list)
    """Segments that retention deleted before they could be opened."""


@contextmanager
def log_snapshot(directory: Path) -> Iterator[LogSnapshot]:
    """Open the current segments and find the end of the log. The segments stay readable inside the
    context, even if retention deletes them.

    Only the unsealed segments are scanned, with their payloads. They are synced, so that they are
    on the source's disk before this function yields. Raise UnknownFormatVersion; OSError
    propagates.
    """
    with closing(Snapshot()) as files, open_read_only(directory, files) as log:
        are_sealed = [_is_sealed(segment) for segment in log.segments]
        # Segments are sealed in order. An unsealed segment before a sealed one has lost its footer.
        sealed = [segment for segment, is_ in zip(log.segments, are_sealed, strict=True) if is_]
        snapshot = LogSnapshot(log, 0, sealed, [], [], files.vanished)
        _walk(snapshot, log.segments[[*are_sealed, False].index(False) :])
        for segment in snapshot.unsealed:
            segment.file.sync()
        yield snapshot


def identity(segment: Segment) -> str:
    """Return a hash of a sealed segment's header and trailer. It identifies the segment, because
    the trailer includes a checksum of the block table."""
    header = segment.file.read(SEGMENT_HEADER_SIZE, 0)
    trailer = segment.read(segment.end_offset - TRAILER_SIZE, TRAILER_SIZE)
    return hashlib.sha256(header + trailer).hexdigest()


def _is_sealed(segment: Segment) -> bool:
    try:
        return read_trailer(segment) is not None
    except CorruptBatch:
        return False


def _walk(snapshot: LogSnapshot, segments: tuple[Segment, ...]) -> None:
    """Find the end of the log. Where a write may be in progress, read again."""
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
    # Damage that is not proven durable, and all blocks after it, are a torn tail: the next start of
    # the broker would cut them off.
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
        """Open the state. lmdb.Error propagates, and OSError if the state is missing."""
        self._env = _open_live(directory)

    def records(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        """Return the current records and the keys of the damaged ones. Raise one of
        lmdb_env.CORRUPT if this is not a state of this format."""
        return _retry_resized(self._env, self._read)

    def _read(self) -> tuple[dict[bytes, bytes], list[bytes]]:
        records: dict[bytes, bytes] = {}
        damaged = []
        with self._env.begin() as txn:
            if txn.get(b"\0format") != StateStore.FORMAT:
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
        self._env.close()


def copy_cursors(directory: Path, target: Path) -> bool:
    """Copy a consistent snapshot of the groups' cursors in `directory` into the new folder
    `target`, while a broker may be writing them. Return False if there are none. lmdb.Error
    propagates, and OSError if `directory` is missing."""
    env = _open_live(directory)

    def copy() -> bool:
        with env.begin() as txn:
            if not has_rows(txn):
                return False
        (target / "data.mdb").unlink(missing_ok=True)  # left by an interrupted attempt
        env.copy(str(target), compact=True)
        return True

    try:
        if not _retry_resized(env, copy):
            return False
    finally:
        env.close()
    mark_as_copy(target)
    (target / "lock.mdb").unlink(missing_ok=True)
    return True


def live_cursors(directory: Path) -> StoredCursors:
    """Return a consistent snapshot of the groups' cursors in `directory`, while a broker may be
    writing them. One of lmdb_env.CORRUPT propagates, and OSError if `directory` is missing."""
    env = _open_live(directory)

    def read() -> StoredCursors:
        with env.begin() as txn:
            return load_rows(txn) if has_rows(txn) else StoredCursors()

    try:
        return _retry_resized(env, read)
    finally:
        env.close()


def _retry_resized(env: lmdb.Environment, read: Callable[[], _T]) -> _T:
    """Return `read()`, repeated when the broker has enlarged the map of `env`. Raise StateGrows
    after _LOOKS attempts: a partial copy must not be accepted as a backup."""
    for _ in range(_LOOKS):
        try:
            return read()
        except lmdb.MapResizedError:
            env.set_mapsize(0)
    raise StateGrows(Path(env.path()))


def _open_live(directory: Path) -> lmdb.Environment:
    """Open for reading an LMDB environment to which a broker may be writing."""
    check_env_files(directory)
    return lmdb.open(
        str(directory),
        map_size=(directory / "data.mdb").stat().st_size + 2**24,
        readonly=True,
        max_readers=512,
        mode=FILE_MODE,
        # The broker has created the lock file. Do not create it here: its owner could be wrong.
        lock=(directory / "lock.mdb").exists(),
    )


STATE_FAILURES = (*CORRUPT, FileNotFoundError)
