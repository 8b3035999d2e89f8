"""Open files of a data directory safely. The directory's owner may have planted a link or a device
under any name, to make root or another user's broker open it.

Symbolic links are never followed. A file must be a regular file without a second name (hard link),
and must belong to this process's user or to the owner of its folder. Opening never blocks, as it
could for a FIFO. All checks use the descriptor that is used afterwards. Each call checks the file
and its folder; the folders above are checked once, by `refuse_planted`. Callers must give a data
directory's path without links (`Path.resolve`).
"""

import contextlib
import errno
import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

_logger = logging.getLogger(__name__)

FILE_MODE = 0o600
DIRECTORY_MODE = 0o750

#: The names of the files at the top of a data directory.
FILES = frozenset({"lock", "VERSION", "VERSION.new", "reserve", "reserve.new"})
#: The names of the folders at the top of a data directory.
FOLDERS = frozenset({"commitlog", "consumequeue", "state", "access", "repaired"})

_LINK = "it is a symbolic link"
_DESCRIPTORS = Path("/proc/self/fd")


class UnsafeFile(OSError):
    """A file or folder of a data directory is not safe to open. It may be a link or a device, or
    have a second hard link, or belong neither to the directory's owner nor to this process's user.
    Nothing was read from it or written to it."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(errno.EPERM, f"{reason}; nothing is opened under this name", str(path))
        self.path = path
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.path}: {self.strerror}"


def open_file(path: Path, flags: int = os.O_RDONLY, *, may_have_names: bool = False) -> int:
    """Open a file, or create it with O_CREAT, and return its descriptor.

    Neither the file nor its folder may be a symbolic link. The file may have no second name,
    unless `may_have_names` (copies of a backup may share files). Raise UnsafeFile if the file
    fails a check; OSError propagates. O_TRUNC is not allowed: it would empty the file before the
    checks."""
    folder = _open_folder(path.parent)
    try:
        return _open_in(folder, path, flags, may_have_names=may_have_names)
    finally:
        os.close(folder)


def create_file(path: Path, flags: int = os.O_WRONLY) -> int:
    """Create a file and return its descriptor. An existing file of that name is unlinked, never
    written to. Raise UnsafeFile; OSError propagates."""
    folder = _open_folder(path.parent)
    try:
        return _create_in(folder, path, flags)
    finally:
        os.close(folder)


def read_file(path: Path) -> bytes:
    """Return a file's content. Raise UnsafeFile; OSError propagates."""
    with os.fdopen(open_file(path), "rb") as file:
        return file.read()


def check_file(path: Path, *, may_have_names: bool = False) -> None:
    """Check a file that a library will open by its path. A missing file is no error. Raise
    UnsafeFile; OSError propagates.

    Root must switch to the owner's uid first (`act_as_owner`), because the owner could plant a
    link between this check and the open."""
    folder = _open_folder(path.parent)
    try:
        found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        owners = {os.geteuid(), os.fstat(folder).st_uid}
        _refuse(path, found, owners, may_have_names=may_have_names)
    except FileNotFoundError:
        return
    finally:
        os.close(folder)


@dataclass(frozen=True, slots=True)
class Folder:
    """An open folder. Names are relative to it ("commitlog/0001").

    Every access stays below this folder, even if other users rename or link files at the same
    time: no link is followed, and each folder below must belong to this process's user or to the
    owner of this folder. Call `close` after use; `open_folder` does that."""

    path: Path
    descriptor: int
    _owners: set[int]

    @property
    def path_by_descriptor(self) -> Path:
        """A path to the open folder, for libraries that accept only paths. No other user can
        replace a part of it."""
        return _DESCRIPTORS / str(self.descriptor)

    def close(self) -> None:
        os.close(self.descriptor)

    def names(self, name: str = ".") -> list[str]:
        """Return the sorted names in this folder, or in a folder below it. Raise UnsafeFile;
        OSError propagates."""
        with self._parent(f"{name}/.") as (folder, _):
            return sorted(os.listdir(folder))  # noqa: PTH208 - a descriptor

    def exists(self, name: str) -> bool:
        """Return whether a name exists, of any type (a link too). OSError propagates."""
        try:
            with self._parent(name) as (folder, path):
                os.stat(path.name, dir_fd=folder, follow_symlinks=False)
        except FileNotFoundError:
            return False
        return True

    def open(self, name: str, flags: int = os.O_RDONLY, *, may_have_names: bool = False) -> int:
        """Do what `open_file` does, for a name below this folder."""
        with self._parent(name) as (folder, path):
            return _open_in(folder, path, flags, may_have_names=may_have_names)

    def create(self, name: str, flags: int = os.O_WRONLY) -> int:
        """Do what `create_file` does, for a name below this folder. Create missing folders."""
        with self._parent(name, make=True) as (folder, path):
            return _create_in(folder, path, flags)

    def check(self, name: str) -> None:
        """Check that a name is a regular file of this folder's owner or of this process's user. It
        may have further hard links. Raise UnsafeFile; OSError propagates."""
        with self._parent(name) as (folder, path):
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            _refuse(path, found, self._owners, may_have_names=True)

    def remove(self, name: str) -> None:
        """Remove a file's name; a missing file is no error. Raise UnsafeFile if `check` would;
        OSError propagates."""
        with contextlib.suppress(FileNotFoundError), self._parent(name) as (folder, path):
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            _refuse(path, found, self._owners, may_have_names=True)
            os.unlink(path.name, dir_fd=folder)

    def remove_folder(self, name: str) -> None:
        """Remove a folder and everything below it. Links in it are removed, not followed. Raise
        UnsafeFile if the name is a link or a folder of another user; OSError propagates."""
        with self._parent(name) as (folder, path):
            os.close(self._open_folder(folder, path))
            shutil.rmtree(path.name, dir_fd=folder)

    def rename(self, name: str, new_name: str) -> None:
        """Rename a file in this folder. An existing file with the new name is replaced."""
        os.rename(name, new_name, src_dir_fd=self.descriptor, dst_dir_fd=self.descriptor)

    @contextmanager
    def new_folder(self, name: str) -> Iterator["Folder"]:
        """Create a folder in this folder and yield the new folder open. Raise FileExistsError if
        the name exists, or UnsafeFile; other OSErrors propagate."""
        path = self.path / name
        with _with_full_path(path):
            os.mkdir(name, DIRECTORY_MODE, dir_fd=self.descriptor)
        folder = Folder(path, self._open_folder(self.descriptor, path), self._owners)
        try:
            yield folder
        finally:
            folder.close()

    @contextmanager
    def _parent(self, name: str, *, make: bool = False) -> Iterator[tuple[int, Path]]:
        """Yield the descriptor of the folder that contains `name`, and the full path of `name`.
        With `make`, create missing folders."""
        path = self.path
        descriptor = os.dup(self.descriptor)
        try:
            *folders, last = name.split("/")
            for each in folders:
                path /= each
                if make:
                    with contextlib.suppress(FileExistsError), _with_full_path(path):
                        os.mkdir(each, DIRECTORY_MODE, dir_fd=descriptor)
                child = self._open_folder(descriptor, path) if each != "." else os.dup(descriptor)
                os.close(descriptor)
                descriptor = child
            with _with_full_path(path / last):
                yield descriptor, path / last
        finally:
            os.close(descriptor)

    def _open_folder(self, parent: int, path: Path) -> int:
        try:
            descriptor = os.open(path.name, _folder_flags(), dir_fd=parent)
        except OSError as error:
            if error.errno in (errno.ENOTDIR, errno.ELOOP):
                _refuse_no_folder(path, os.stat(path.name, dir_fd=parent, follow_symlinks=False))
            error.filename = str(path)
            raise
        try:
            _refuse_foreign(path, os.fstat(descriptor), self._owners)
        except UnsafeFile:
            os.close(descriptor)
            raise
        return descriptor


@contextmanager
def open_folder(path: Path) -> Iterator[Folder]:
    """Open a folder by a path without links (`Path.resolve`). Root refuses a folder of another
    user, because that user could make root write or remove files there. Raise UnsafeFile; OSError
    propagates."""
    try:
        descriptor = os.open(path, _folder_flags())
    except OSError as error:
        if error.errno in (errno.ENOTDIR, errno.ELOOP):
            _refuse_no_folder(path, path.lstat())
        raise
    try:
        found = os.fstat(descriptor)
        if os.geteuid() == 0:
            _refuse_foreign(path, found, {0})
        yield Folder(path, descriptor, {os.geteuid(), found.st_uid})
    finally:
        os.close(descriptor)


@contextmanager
def _with_full_path(path: Path) -> Iterator[None]:
    """Put the full path into the OSError of a call that used a descriptor and a name."""
    try:
        yield
    except UnsafeFile:
        raise
    except OSError as error:
        if error.filename == path.name:
            error.filename = str(path)
        raise


def refuse_planted(data_dir: Path) -> None:
    """Check every entry of a data directory before any file in it is opened.

    Raise UnsafeFile for the first entry that is a link, FIFO, socket or device, that is a folder
    where a file is expected or the reverse, that has a second hard link, or that belongs to a
    foreign user. OSError propagates. Unknown names at the top of the directory are ignored."""
    owners = {os.geteuid(), data_dir.stat().st_uid}
    for path, found in _entries(data_dir):
        if path.parent == data_dir and path.name in FOLDERS:
            _refuse_no_folder(path, found)
        if stat.S_ISDIR(found.st_mode):
            if path.parent == data_dir and path.name in FILES:
                raise UnsafeFile(path, "it is a folder, where a file is expected")
            _refuse_foreign(path, found, owners)
        else:
            _refuse(path, found, owners)


def tighten(data_dir: Path) -> None:
    """Remove excess permissions: files are only for the owner, folders only for owner and group.
    The files contain messages, and the key that signs receipts.

    Files of another user are skipped. If permissions cannot be changed, log one warning. Call
    `refuse_planted` first."""
    refused: OSError | None = None
    top = (data_dir, data_dir.stat())
    for path, found in (top, *_entries(data_dir)):
        is_folder = stat.S_ISDIR(found.st_mode)
        mode = stat.S_IMODE(found.st_mode)
        excess = mode & (0o777 & ~(DIRECTORY_MODE if is_folder else FILE_MODE))
        if not excess or found.st_uid != os.geteuid():
            continue
        try:
            descriptor = os.open(path, _folder_flags()) if is_folder else open_file(path)
            try:
                os.fchmod(descriptor, mode & ~excess)
            finally:
                os.close(descriptor)
        except FileNotFoundError:
            continue
        except OSError as error:
            refused = error
    if refused is not None:
        _logger.warning("other users may read files of %s: %s", data_dir, refused)


def _open_folder(path: Path) -> int:
    # A path in /proc/self/fd looks like a link, but is safe: it leads to the open folder.
    nofollow = 0 if path.parent == _DESCRIPTORS else os.O_NOFOLLOW
    try:
        return os.open(path, os.O_PATH | os.O_DIRECTORY | nofollow | os.O_CLOEXEC)
    except NotADirectoryError as error:
        if path.is_symlink():
            raise UnsafeFile(path, _LINK) from error
        raise


def _create_in(folder: int, path: Path, flags: int) -> int:
    with contextlib.suppress(FileNotFoundError):
        os.unlink(path.name, dir_fd=folder)
    return _open_in(folder, path, flags | os.O_CREAT | os.O_EXCL)


def _open_in(folder: int, path: Path, flags: int, *, may_have_names: bool = False) -> int:
    assert not flags & os.O_TRUNC, "truncate the descriptor instead"
    safe = os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
    try:
        descriptor = os.open(path.name, flags | safe, FILE_MODE, dir_fd=folder)
    except OSError as error:
        if error.errno == errno.ELOOP:
            raise UnsafeFile(path, _LINK) from error
        if error.errno in (errno.ENXIO, errno.ENODEV, errno.EISDIR):
            found = os.stat(path.name, dir_fd=folder, follow_symlinks=False)
            raise UnsafeFile(path, _no_file(found)) from error
        error.filename = str(path)
        raise
    try:
        found = os.fstat(descriptor)
        owners = {os.geteuid(), os.fstat(folder).st_uid}
        _refuse(path, found, owners, may_have_names=may_have_names)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def _entries(data_dir: Path) -> Iterator[tuple[Path, os.stat_result]]:
    """Yield the paths in a data directory with their status, without following links: the known
    names at the top, and everything below the known folders."""
    waiting = [data_dir / name for name in (*sorted(FILES), *sorted(FOLDERS))]
    waiting += sorted(data_dir.glob("state.corrupt-*"))
    while waiting:
        path = waiting.pop()
        try:
            found = path.lstat()
        except FileNotFoundError:
            continue
        yield path, found
        if stat.S_ISDIR(found.st_mode):
            # A running broker may remove the folder at the same time.
            with contextlib.suppress(FileNotFoundError):
                waiting += [Path(entry) for entry in os.scandir(path)]


def _refuse_no_folder(path: Path, found: os.stat_result) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFile(path, _LINK)
    if not stat.S_ISDIR(found.st_mode):
        raise UnsafeFile(path, "it is no folder")


def _refuse(
    path: Path, found: os.stat_result, owners: set[int], *, may_have_names: bool = False
) -> None:
    if stat.S_ISLNK(found.st_mode):
        raise UnsafeFile(path, _LINK)
    if not stat.S_ISREG(found.st_mode):
        raise UnsafeFile(path, _no_file(found))
    if found.st_nlink > 1 and not may_have_names:
        raise UnsafeFile(path, f"it has {found.st_nlink} names (hard links)")
    _refuse_foreign(path, found, owners)


#: The types that are not regular files, in the words of error messages.
_KINDS = {
    stat.S_IFDIR: "a folder",
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def _no_file(found: os.stat_result) -> str:
    kind = _KINDS.get(stat.S_IFMT(found.st_mode))
    return "it is no regular file" if kind is None else f"it is no regular file but {kind}"


def _refuse_foreign(path: Path, found: os.stat_result, owners: set[int]) -> None:
    if found.st_uid not in owners:
        raise UnsafeFile(
            path,
            f"it belongs to the user {found.st_uid}, not to the owner of the data directory or the "
            "user that runs this; chown it if you trust it",
        )


def _folder_flags() -> int:
    # A function, because clients import this module on systems without these flags.
    return os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
