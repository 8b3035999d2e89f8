"""A data directory: its lock, its version, and the reserve file that is released on a full disk.

commitlog/      segment files
consumequeue/   LMDB: the index, can be deleted
state/          LMDB: topics and stored offsets
access/         tokens and the audit log
lock            locked while the broker runs
VERSION         the version of this layout
reserve         room for stored offsets and retention when the disk is full
"""

import errno
import fcntl
import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from time import monotonic

from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.disk.owned_files import (
    create_file,
    open_file,
    read_file,
    refuse_planted,
    tighten,
)
from holdfast.commitlog.errors import LogError, UnknownFormatVersion
from holdfast.commitlog.log_limit import LogLimit

_logger = logging.getLogger(__name__)

LAYOUT_VERSION = "2"
#: Older layouts that can be read. A broker start upgrades them to the current layout (`renew`).
OLD_LAYOUTS = frozenset({"1"})

#: Names that a directory without VERSION may contain: files of an interrupted first start, the
#: lost+found folder of a volume, and access tokens that were created before the first start.
_BEFORE_VERSION = {"lock", "VERSION.new", "lost+found", "access"}


@dataclass(eq=False, repr=False)
class DataDirInUse(LogError):
    """Another process has locked the directory. `holder` is the id of that process, or "" if it is
    unknown. `remedy` is the advice for the user."""

    path: Path
    holder: str
    remedy: str

    def __str__(self) -> str:
        holder = self.holder or "unknown"
        return f"{self.path} is in use by another broker (process {holder}); {self.remedy}"


@dataclass(eq=False, repr=False)
class NotADataDir(LogError):
    """The directory contains files but is not a data directory. `found` is the name of one of the
    files."""

    path: Path
    found: str
    remedy: str = "use an empty or a new directory"

    def __str__(self) -> str:
        if self.found == "MANIFEST":
            return f"{self.path} is a backup; 'holdfast restore' builds a data directory from it"
        return (
            f"{self.path} is not a Holdfast data directory (it has no VERSION, but contains "
            f"{self.found!r}); {self.remedy}"
        )


class DamagedVersion(UnknownFormatVersion):
    """The VERSION file does not contain a version number."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(str(path), found, LAYOUT_VERSION)

    def __str__(self) -> str:
        return (
            f"{self.what} is damaged: it contains {self.found!r}, which is not a version. This "
            f"Holdfast writes {self.known!r} into this file. If this Holdfast created the "
            "directory, write that again. Nothing was changed."
        )


class DataDir:
    """An open data directory, locked until `close`."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        """Create or open the directory, and lock it.

        Raise DataDirInUse, NotADataDir, DamagedVersion, UnknownFormatVersion or UnsafeFile;
        OSError propagates. After an error the lock is released. Before the lock is held, only the
        lock file is changed. Nothing is changed in a folder that is not a data directory, or that
        has an unsafe file (`refuse_planted`)."""
        path = path.resolve()
        self.path = path
        self.commitlog = path / "commitlog"
        self.consumequeue = path / "consumequeue"
        self.state = path / "state"
        self._reserve = path / "reserve"
        self._reserve_bytes = reserve_bytes
        self._is_released = False
        self._log_limit = LogLimit(most=1)
        make_directory(path)
        refuse_foreign(path)
        refuse_planted(path)
        self._lock = lock_data_dir(
            path, os.O_RDWR | os.O_CREAT, "stop that one, or use another --data-dir"
        )
        try:
            os.ftruncate(self._lock, 0)
            os.pwrite(self._lock, f"{os.getpid()}\n".encode(), 0)
            _check_version(path)
            tighten(path)
            self._is_released = not self.restore_reserve()
        except (LogError, OSError):
            self.close()
            raise

    def renew(self) -> None:
        """Write the current layout version durably. Call it before writing anything that older
        code would misread. OSError propagates."""
        if read_version(self.path) != LAYOUT_VERSION:
            _write_version(self.path)

    def release_reserve(self) -> None:
        """Delete the reserve file, so that its room becomes free. If that fails, log an error. Do
        nothing if there is no reserve. Any thread; may be called often."""
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            if self._log_limit.admit(monotonic()) is not None:
                _logger.error("the disk reserve of %s cannot be deleted: %s", self.path, error)
            return
        self._is_released = True
        _logger.warning("the disk is full: the disk reserve of %s was deleted", self.path)

    def has_reserve(self) -> bool:
        """Return whether the reserve exists, or True if none is configured. If the broker
        released it, or could not allocate it at its start, first try to allocate it again."""
        if self._is_released:
            self._is_released = not self.restore_reserve()
        return not self._is_released

    def restore_reserve(self) -> bool:
        """Allocate the reserve if it is missing and the disk has at least twice its size free.

        Return whether the reserve exists, or True if none is configured. OSError propagates,
        except for a full disk."""
        if not self._reserve_bytes or self._has_whole_reserve():
            return True
        stats = os.statvfs(self.path)
        if stats.f_bavail * stats.f_frsize < 2 * self._reserve_bytes:
            return False
        unfinished = self._reserve.with_suffix(".new")
        try:
            with os.fdopen(create_file(unfinished), "wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._reserve_bytes)
            unfinished.rename(self._reserve)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True

    def _has_whole_reserve(self) -> bool:
        """Return whether the reserve file exists and is not empty. It may have the size that an
        earlier configuration asked for."""
        try:
            return self._reserve.stat().st_size > 0
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Release the lock; may be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def lock_data_dir(path: Path, flags: int, remedy: str) -> int:
    """Lock a data directory against brokers, and return the descriptor of its lock file. The lock
    is held until the descriptor is closed. `flags` are those to open the lock file with. Raise
    DataDirInUse with `remedy` if another process holds the lock, or UnsafeFile; OSError
    propagates."""
    descriptor = open_file(path / "lock", flags)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise DataDirInUse(path, holder, remedy) from error
    return descriptor


@contextmanager
def hold_lock(path: Path, flags: int, remedy: str) -> Iterator[None]:
    """Hold the lock of `lock_data_dir` inside the context."""
    descriptor = lock_data_dir(path, flags, remedy)
    try:
        yield
    finally:
        os.close(descriptor)


def require_data_dir(path: Path) -> None:
    """Raise NotADataDir for a folder without a VERSION file. The content of the VERSION file is
    not checked."""
    if not os.path.lexists(path / "VERSION"):
        found = min((entry.name for entry in path.iterdir()), default="nothing")
        raise NotADataDir(path, found, "use the folder that is the broker's --data-dir")


def read_version(path: Path) -> str:
    """Return the content of a data directory's VERSION file. Raise UnsafeFile; OSError
    propagates."""
    return read_file(path / "VERSION").decode("ascii", "replace").strip()


def refuse_foreign(path: Path) -> None:
    """Raise NotADataDir for a folder that has no VERSION file, but has files that do not belong to
    a new data directory."""
    found = {entry.name for entry in path.iterdir()}
    foreign = found - _BEFORE_VERSION
    if foreign and "VERSION" not in found:
        raise NotADataDir(path, min(foreign))


def _check_version(path: Path) -> None:
    version = path / "VERSION"
    try:
        found = read_version(path)
    except FileNotFoundError:
        refuse_foreign(path)
        _write_version(path)
        return
    if not found.isdigit():
        raise DamagedVersion(version, found[:40])
    if not is_readable(found):
        raise UnknownFormatVersion(f"data directory {path}", found[:40], LAYOUT_VERSION)


def is_readable(version: str) -> bool:
    """Return whether this code can read a directory of this layout version."""
    return version == LAYOUT_VERSION or version in OLD_LAYOUTS


def _write_version(path: Path) -> None:
    unfinished = path / "VERSION.new"
    with os.fdopen(create_file(unfinished), "wb") as file:
        file.write(f"{LAYOUT_VERSION}\n".encode())
        file.flush()
        os.fsync(file.fileno())
    unfinished.rename(path / "VERSION")
    sync_directory(path)
