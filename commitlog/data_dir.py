"""A data directory: its lock, its version, and the reserve that a full disk gives up.

commitlog/      segment files
consumequeue/   LMDB: the index, can be deleted
state/          LMDB: topics and stored offsets
access/         tokens and the audit log
lock            held for the process's life
VERSION         the version of this layout
reserve         room for stored offsets and retention when the disk is full
"""

import errno
import fcntl
import logging
import os
from pathlib import Path
from time import monotonic

from holdfast.commitlog.disk import make_directory, sync_directory
from holdfast.commitlog.errors import LogError, UnknownFormatVersion
from holdfast.commitlog.log_limit import LogLimit

_logger = logging.getLogger(__name__)

LAYOUT_VERSION = "1"

#: What a new directory may hold: what a start that was cut short left, a volume's own folder, and
#: access tokens that were made before the first start.
_BEFORE_VERSION = {"lock", "VERSION.new", "lost+found", "access"}


class DataDirInUse(LogError):
    """Another process holds the directory's lock."""

    def __init__(self, path: Path, holder: str) -> None:
        super().__init__(path, holder)
        self.path = path
        self.holder = holder

    def __str__(self) -> str:
        return (
            f"{self.path} is in use by another broker (process {self.holder or 'unknown'}); "
            "stop that one, or use another --data-dir"
        )


class NotADataDir(LogError):
    """A directory that holds something else."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(path, found)
        self.path = path
        self.found = found

    def __str__(self) -> str:
        if self.found == "MANIFEST":
            return f"{self.path} is a backup; 'holdfast restore' builds a data directory from it"
        return (
            f"{self.path} is no Holdfast data directory (it has no VERSION, but holds "
            f"{self.found!r}); use an empty or a new directory"
        )


class NoDataDirThere(NotADataDir):
    """A folder that was to be looked at, and is no data directory."""

    def __str__(self) -> str:
        return (
            f"{self.path} is no Holdfast data directory (it has no VERSION, but holds "
            f"{self.found!r}); name the folder that 'holdfast serve --data-dir' is given"
        )


class DamagedVersion(UnknownFormatVersion):
    """A VERSION file that says no version at all."""

    def __init__(self, path: Path, found: str) -> None:
        super().__init__(str(path), found, LAYOUT_VERSION)

    def __str__(self) -> str:
        return (
            f"{self.what} is damaged: it says {self.found!r}, which is no version. This Holdfast "
            f"writes {self.known!r} there: if it is the one that made the directory, write that "
            "again; nothing was changed"
        )


class DataDir:
    """An open data directory, locked until `close`."""

    def __init__(self, path: Path, reserve_bytes: int) -> None:
        """Create or open, and lock. Raises DataDirInUse, NotADataDir, DamagedVersion,
        UnknownFormatVersion; OSError passes through; the lock is then free. Nothing but the lock
        is changed before it is held, and nothing at all in a folder that is not a data
        directory."""
        self.path = path
        self._reserve_bytes = reserve_bytes
        self._is_given_up = False
        self._log_limit = LogLimit(most=1)
        make_directory(path)
        refuse_foreign(path)
        self._lock = _lock(path)
        try:
            _check_version(path)
            self._is_given_up = not self.restore_reserve()
        except (LogError, OSError):
            self.close()
            raise

    @property
    def commitlog(self) -> Path:
        """Where the segments are."""
        return self.path / "commitlog"

    @property
    def consumequeue(self) -> Path:
        """Where the index is."""
        return self.path / "consumequeue"

    @property
    def state(self) -> Path:
        """Where topics and stored offsets are."""
        return self.path / "state"

    @property
    def _reserve(self) -> Path:
        return self.path / "reserve"

    def release_reserve(self) -> None:
        """Give the reserve's room back to the disk; where that cannot be done it is said. Any
        thread; may be called often."""
        try:
            self._reserve.unlink()
        except FileNotFoundError:
            return
        except OSError as error:
            if self._log_limit.admit(monotonic()) is not None:
                _logger.error("the reserve of %s cannot be given up: %s", self.path, error)
            return
        self._is_given_up = True
        _logger.warning("the disk is full: the reserve of %s was given up", self.path)

    def has_reserve(self) -> bool:
        """Return False only while a reserve that was given up, also before this start, cannot be
        taken again."""
        if self._is_given_up:
            self._is_given_up = not self.restore_reserve()
        return not self._is_given_up

    def restore_reserve(self) -> bool:
        """Take the reserve again when there is room for it and as much again; return whether
        it is there."""
        if not self._reserve_bytes or self._has_whole_reserve():
            return True
        stats = os.statvfs(self.path)
        if stats.f_bavail * stats.f_frsize < 2 * self._reserve_bytes:
            return False
        unfinished = self._reserve.with_suffix(".new")
        try:
            with unfinished.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, self._reserve_bytes)
            unfinished.rename(self._reserve)
        except OSError as error:
            unfinished.unlink(missing_ok=True)
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            return False
        return True

    def _has_whole_reserve(self) -> bool:
        """Whether there is a reserve of any size that somebody may have configured; one without
        anything in it is none."""
        try:
            return self._reserve.stat().st_size > 0
        except FileNotFoundError:
            return False

    def close(self) -> None:
        """Let go of the lock; may be called twice."""
        if self._lock >= 0:
            os.close(self._lock)
            self._lock = -1


def _lock(path: Path) -> int:
    descriptor = os.open(path / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.pread(descriptor, 32, 0).decode("ascii", "replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EAGAIN, errno.EACCES):
            raise
        raise DataDirInUse(path, holder) from error
    os.ftruncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor


def require_data_dir(path: Path) -> None:
    """Raise NoDataDirThere for a folder without a VERSION; whatever that says."""
    if not (path / "VERSION").exists():
        raise NoDataDirThere(path, min((entry.name for entry in path.iterdir()), default="nothing"))


def refuse_foreign(path: Path) -> None:
    """Raise NotADataDir for a folder that holds something, but no VERSION."""
    found = {entry.name for entry in path.iterdir()}
    foreign = found - _BEFORE_VERSION
    if foreign and "VERSION" not in found:
        raise NotADataDir(path, min(foreign))


def _check_version(path: Path) -> None:
    version = path / "VERSION"
    try:
        found = version.read_text("ascii", "replace").strip()
    except FileNotFoundError:
        refuse_foreign(path)
        unfinished = path / "VERSION.new"
        with unfinished.open("w") as file:
            file.write(f"{LAYOUT_VERSION}\n")
            file.flush()
            os.fsync(file.fileno())
        unfinished.rename(version)
        sync_directory(path)
        return
    if not found.isdigit():
        raise DamagedVersion(version, found[:40])
    if found != LAYOUT_VERSION:
        raise UnknownFormatVersion(f"data directory {path}", found[:40], LAYOUT_VERSION)
