"""Put a backup back, whole or not at all.

Everything is built and checked in a folder beside the target, and gets the target's name at the
very end. What a backup does not have (the index, footers of segments that were being written) the
broker builds at its first start.
"""

import errno
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.backup.files import file_chunks, sync_tree, write_file
from holdfast.backup.manifest import BackupFile, Manifest, NotABackup
from holdfast.backup.stored import read_manifest
from holdfast.commitlog.disk import make_directory, sync_directory
from holdfast.commitlog.errors import LogError


class RestoreRefused(LogError):
    """A place that nothing is restored to. `reason` names the mend."""

    def __init__(self, where: Path, reason: str) -> None:
        super().__init__(where, reason)
        self.where = where
        self.reason = reason

    def __str__(self) -> str:
        return f"nothing is restored to {self.where}: {self.reason}"


@dataclass(frozen=True, slots=True)
class RestoreReport:
    """What was put back."""

    manifest: Manifest
    restored_bytes: int


def restore_backup(
    source: Path,
    data_dir: Path,
    *,
    progress: Callable[[int, int], None] = lambda done, total: None,
    finish: Callable[[Path], None] = lambda built: None,
) -> RestoreReport:
    """Build the data directory `data_dir` from a backup.

    Every byte is compared with the manifest before `data_dir` appears. `finish` is called with
    the folder that is built before it gets its name; what it raises ends the restore. Raises
    NotABackup, RestoreRefused, UnknownFormatVersion; OSError passes through. `data_dir` is then
    as it was.
    """
    manifest = read_manifest(source)
    _refuse_taken(data_dir)
    make_directory(data_dir.absolute().parent)
    # Of one name, so that what a restore that was cut short left is found by the next one.
    building = data_dir.absolute().with_name(f".{data_dir.absolute().name}.restoring")
    shutil.rmtree(building, ignore_errors=True)
    building.mkdir(mode=0o750)
    try:
        total = sum(file.stored_bytes for file in manifest.files)
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            progress(min(done, total), total)

        (building / "commitlog").mkdir()
        for file in manifest.files:
            _put_back(source, building, file, advance)
        write_file(building / "VERSION", [f"{manifest.layout_version}\n".encode()])
        finish(building)
        sync_tree(building)
        _give_name(building, data_dir.absolute())
    except BaseException:
        shutil.rmtree(building, ignore_errors=True)
        raise
    return RestoreReport(manifest, sum(file.stored_bytes for file in manifest.files))


def _refuse_taken(data_dir: Path) -> None:
    if not data_dir.exists():
        return
    if not data_dir.is_dir():
        raise RestoreRefused(data_dir, "it is no folder; name a new one")
    found = next(data_dir.iterdir(), None)
    if found is not None:
        raise RestoreRefused(
            data_dir, f"it is not empty (it holds {found.name!r}); name a new or an empty folder"
        )


def _put_back(
    source: Path, building: Path, file: BackupFile, advance: Callable[[int], None]
) -> None:
    stored = source / file.stored_as
    try:
        size, checksum = write_file(
            building / file.name,
            file_chunks(stored),
            size=file.size,
            allocate=file.role == "tail",
            progress=advance,
        )
    except FileNotFoundError as error:
        if stored.exists():
            raise
        raise NotABackup(source, f"{file.stored_as} is missing") from error
    if (size, checksum) != (file.stored_bytes, file.sha256):
        raise NotABackup(source, f"{file.stored_as} is not what was written; nothing was restored")
    if file.role == "access":
        (building / file.name).chmod(0o600)
        (building / file.name).parent.chmod(0o700)


def _give_name(building: Path, data_dir: Path) -> None:
    try:
        building.rename(data_dir)
    except OSError as error:
        if error.errno in (errno.EBUSY, errno.EXDEV, errno.ENOTEMPTY, errno.EEXIST):
            raise RestoreRefused(
                data_dir,
                f"it cannot be replaced ({os.strerror(error.errno)}): name a folder that is not "
                "there yet, in a place that is no mount point itself",
            ) from error
        raise
    sync_directory(data_dir.parent)
