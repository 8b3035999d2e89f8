"""Restore a backup completely or not at all.

The data directory is built and checked in a folder next to the target, and renamed to the target
at the very end. The parts that a backup does not contain (the index, footers of segments that were
being written) are rebuilt by the broker at its first start.
"""

import errno
import os
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.files import Progress, sum_progress, sync_tree, write_file
from holdfast.backup.manifest import BackupFile, Manifest, NotABackup
from holdfast.backup.stored import FolderBackup, StoredBackup
from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.disk.owned_files import DIRECTORY_MODE
from holdfast.commitlog.errors import LogError
from holdfast.consumequeue.lost_ranges import LostRange, with_lost
from holdfast.consumequeue.state.records import decode_lost, encode_lost, lost_key
from holdfast.consumequeue.state.store import StateStore
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

_STATE_MAP_BYTES = 1024**3

#: The record of a reserved range has this reason.
RESTORED = "restored"


@dataclass(eq=False, repr=False)
class RestoreRefused(LogError):
    """A backup cannot be restored to the given place. `reason` includes how to fix it."""

    sentence = "nothing is restored to {where}: {reason}"
    where: Path
    reason: str


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """The result of a restore."""

    manifest: Manifest
    restored_bytes: int


def restore_backup(
    source: Path | StoredBackup,
    data_dir: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    finish: Callable[[Path], None] = lambda built: None,
) -> RestoreReport:
    """Build the data directory `data_dir` from a backup: the folder of one, or any StoredBackup.

    Every byte is compared with the manifest before `data_dir` appears. `finish` is called with
    the built folder before the folder is renamed; an exception from it ends the restore. Raise
    NotABackup, RestoreRefused or UnknownFormatVersion; OSError and errors of the StoredBackup
    propagate. An exception before the final rename leaves `data_dir` unchanged.
    """
    stored = FolderBackup(source.resolve()) if isinstance(source, Path) else source
    data_dir = data_dir.resolve()
    manifest = stored.read_manifest()
    _require_empty(data_dir)
    make_directory(data_dir.parent)
    # The name is fixed, so that the next restore finds and removes the files of an interrupted one.
    building = data_dir.with_name(f".{data_dir.name}.restoring")
    shutil.rmtree(building, ignore_errors=True)
    try:
        building.mkdir(DIRECTORY_MODE)
    except PermissionError as error:
        raise RestoreRefused(
            data_dir,
            f"the user {os.geteuid()}, who runs this, may not write to {building.parent}; use a "
            f"new folder inside the empty one, such as {data_dir / 'data'}",
        ) from error
    try:
        total = sum(file.stored_bytes for file in manifest.files)
        advance = sum_progress(progress, total)
        (building / "commitlog").mkdir(DIRECTORY_MODE)
        for file in manifest.files:
            _restore_file(stored, building, file, advance)
        write_file(building / "VERSION", [f"{manifest.layout_version}\n".encode()])
        finish(building)
        sync_tree(building)
        _give_name(building, data_dir)
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return RestoreReport(manifest, total)


def reserve_offsets(data_dir: Path, ends: Mapping[QueueKey, int], count: int) -> None:
    """Durably reserve `count` offsets after each queue's end. No broker may have `data_dir` open.

    Messages that were published after the backup may have had these offsets, and consumers may have
    seen these messages. So no new message may get such an offset. Reserved offsets are recorded as
    an accepted loss: readers skip them, and no message gets them.

    `ends` has the queues' end offsets; a queue that is not included ends at its first offset.
    StateCorrupt, StateFull, StateUnavailable, lmdb.Error and OSError propagate."""
    if not count:
        return
    state = StateStore(data_dir / "state", _STATE_MAP_BYTES)
    try:
        table = TopicTable(state.records)
        changes: dict[bytes, bytes | None] = {}
        for topic in table.all():
            record = lost_key(topic.topic_id)
            queues = decode_lost(state.records[record]) if record in state.records else {}
            for queue in range(topic.queue_count):
                begin = table.kept.get(topic.topic_id, {}).get(queue, 0)
                end = max(ends.get((topic.topic_id, queue), 0), begin)
                found = LostRange(end, end + count, RESTORED, accepted=True)
                queues[queue] = with_lost(queues.get(queue, ()), found)
            changes[record] = encode_lost(queues)
        state.commit_now(changes)
    finally:
        state.stop()


def _require_empty(data_dir: Path) -> None:
    if not data_dir.exists():
        return
    if not data_dir.is_dir():
        raise RestoreRefused(data_dir, "it is not a folder; use a new one")
    found = next(data_dir.iterdir(), None)
    if found is not None:
        raise RestoreRefused(
            data_dir, f"it is not empty (it holds {found.name!r}); use a new or an empty folder"
        )


def _restore_file(
    source: StoredBackup, building: Path, file: BackupFile, advance: Progress
) -> None:
    size, checksum = write_file(
        building / file.name,
        source.chunks(file),
        size=file.size,
        allocate=file.role == "tail",
        progress=advance,
    )
    if (size, checksum) != (file.stored_bytes, file.sha256):
        raise NotABackup(source.where, f"{file.stored_as} has changed; nothing was restored")
    if file.role == "access":
        (building / file.name).parent.chmod(0o700)


def _give_name(building: Path, data_dir: Path) -> None:
    try:
        building.rename(data_dir)
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST):
            raise RestoreRefused(
                data_dir,
                f"it cannot be replaced ({os.strerror(error.errno)}): use a folder that does not "
                "exist yet and is not a mount point",
            ) from error
        raise
    sync_directory(data_dir.parent)
