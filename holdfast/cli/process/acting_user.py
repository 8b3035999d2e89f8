"""Give a command on a data directory the rights of the directory's owner, even if root runs the
command.

The owner of a directory can replace its files and links at any moment. Root could follow a link to
any file. A process with the owner's uid reaches only files that the owner can reach anyway.
"""

import errno
import grp
import logging
import os
import pwd
import stat
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec

from holdfast.commitlog.disk.owned_files import DIRECTORY_MODE
from holdfast.commitlog.errors import LogError

_logger = logging.getLogger(__name__)

#: The files that the owner must be able to read: one of Python, one of Holdfast and one of a
#: dependency. Later imports read from the same directories.
NEEDED = (os.__file__, __file__, msgspec.__file__)

_LOOK = os.O_PATH | os.O_CLOEXEC
#: The most links in one path, as in Linux.
_MAX_LINKS = 40


@dataclass(eq=False, repr=False)
class CannotActAsOwner(LogError):
    """Root runs the command on another user's directory, but cannot become that user."""

    path: Path
    uid: int
    reason: str

    def __str__(self) -> str:
        return (
            f"{self.path} belongs to the user {user_name(self.uid)}. Root must become that user to "
            f"work on it, and cannot ({self.reason}); run this command as that user"
        )


@dataclass(eq=False, repr=False)
class BelongsToAnother(LogError):
    """Root runs the command on a data directory of root, but a backup's folder belongs to another
    user. That user could use links to make root read or write other files."""

    data_dir: Path
    folder: Path
    uid: int

    def __str__(self) -> str:
        return (
            f"{self.folder} belongs to the user {user_name(self.uid)}, {self.data_dir} to root. "
            "Root does not work in another user's folder. Use a folder of root; if you trust the "
            f"content of this one, run chown -R root {self.folder}"
        )


def act_as_owner(path: Path) -> Path:
    """If root runs this process and another user owns `path`, become that user (uid and groups)
    for the rest of the process. If `path` does not exist, its nearest existing parent counts.
    Return the path without links. Raise CannotActAsOwner; OSError propagates."""
    if os.geteuid() != 0:
        return path.resolve()
    with _open_folders(path) as place:
        _become_owner(place)
        return place.path


def act_as_owner_with(path: Path, target: Path) -> tuple[Path, Path]:
    """Do the same as `act_as_owner`, and prepare the folder `target` for the owner of `path`: if
    `target` does not exist and root owns its parent, create `target` for that user. Return both
    paths without links.

    Raise CannotActAsOwner if the owner of `path` may not write to `target`. Raise BelongsToAnother
    if root owns `path`, but another user owns `target` (or its nearest existing parent). OSError
    propagates."""
    if os.geteuid() != 0:
        return path.resolve(), target.resolve()
    with _open_folders(path) as source, _open_folders(target) as place:
        owner = source.found
        if owner.st_uid == 0:
            _refuse_foreign(source, place)
        if owner.st_uid != 0 and place.missing and place.found.st_uid == 0:
            _make_for(owner, place)
        _become_owner(source)
        path, target = source.path, place.path
    if target.exists() and not os.access(target, os.W_OK | os.X_OK, effective_ids=True):
        raise CannotActAsOwner(path, owner.st_uid, f"that user may not write to {target}")
    return path, target


def act_as_owner_from(path: Path, source: Path) -> tuple[Path, Path]:
    """Do the same as `act_as_owner`, for a command that reads the folder `source`. Return both
    paths without links. Raise CannotActAsOwner. Raise BelongsToAnother if root owns `path`, but
    another user owns `source`. OSError propagates."""
    if os.geteuid() != 0:
        return path.resolve(), source.resolve()
    with _open_folders(path) as place:
        if place.found.st_uid == 0:
            with _open_folders(source) as read:
                _refuse_foreign(place, read)
                return place.path, read.path
        _become_owner(place)
        return place.path, source.resolve()


def _refuse_foreign(data_dir: "_Place", folder: "_Place") -> None:
    if folder.found.st_uid != 0:
        raise BelongsToAnother(data_dir.path, folder.path, folder.found.st_uid)


def user_name(uid: int) -> str:
    """Return a user's name, or the uid as text if the user has no account."""
    try:
        return pwd.getpwuid(uid).pw_name
    except KeyError:
        return str(uid)


class _Place(msgspec.Struct, frozen=True):
    """The file or folder of a path. It is kept open, so that later changes of names have no
    effect."""

    path: Path
    """The whole path, without links."""
    descriptor: int
    """The open file or folder, or its nearest existing parent."""
    found: os.stat_result
    """The status of the open file or folder."""
    missing: Sequence[str]
    """The names below the open folder that do not exist."""


@contextmanager
def _open_folders(path: Path) -> Iterator[_Place]:
    """Open the folders of a path one after another, from "/" on. Root does not follow links that
    other users have made, because these could lead to directories of root. Raise CannotActAsOwner;
    OSError propagates."""
    names = deque(path.absolute().parts[1:])
    at, above, links = Path("/"), [Path("/").stat()], 0
    descriptor = os.open("/", _LOOK)
    try:
        while names:
            try:
                child = os.open(names[0], _LOOK | os.O_NOFOLLOW, dir_fd=descriptor)
            except FileNotFoundError:
                break
            name, found = names.popleft(), os.fstat(child)
            if stat.S_ISLNK(found.st_mode):
                try:
                    leads_to = os.readlink("", dir_fd=child)
                finally:
                    os.close(child)
                if found.st_uid != 0:
                    raise CannotActAsOwner(
                        path, found.st_uid, f"{at / name} is a link of that user"
                    )
                if (links := links + 1) > _MAX_LINKS:
                    raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
                if leads_to.startswith("/"):
                    at, above = Path("/"), above[:1]
                    os.close(descriptor)
                    descriptor = os.open("/", _LOOK)
                names.extendleft(each for each in reversed(leads_to.split("/")) if each)
                continue
            os.close(descriptor)
            descriptor = child
            if name == "..":
                at, above = at.parent, above[:-1] or above
            elif name != ".":
                at /= name
                above.append(found)
        if ".." not in names:
            _check_stays(path, at, above)
            yield _Place(at.joinpath(*names), descriptor, above[-1], tuple(names))
            return
    finally:
        os.close(descriptor)
    with _open_folders(Path(os.path.normpath(at.joinpath(*names)))) as place:
        yield place


def _check_stays(path: Path, at: Path, above: Sequence[os.stat_result]) -> None:
    """Check that no other user can replace a path that belongs to root. `above` has the status of
    all folders above `at`, from "/" on, and of `at` itself. Raise CannotActAsOwner."""
    if above[-1].st_uid != 0:
        return  # the process takes this owner's rights, so the owner gains nothing by replacing it
    for folder, found in zip(reversed(at.parents), above, strict=False):
        if found.st_uid != 0:
            raise CannotActAsOwner(
                path, found.st_uid, f"{at} is of root, but that user can replace it in {folder}"
            )


def _make_for(owner: os.stat_result, place: _Place) -> None:
    """Create the missing folders; the last one gets `owner` as its owner."""
    descriptor = os.dup(place.descriptor)
    try:
        for name in place.missing:
            is_last = name is place.missing[-1]
            os.mkdir(name, DIRECTORY_MODE if is_last else 0o777, dir_fd=descriptor)
            flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
            made = os.open(name, flags, dir_fd=descriptor)
            os.close(descriptor)
            descriptor = made
            uid = os.fstat(made).st_uid
            if uid != 0:
                raise CannotActAsOwner(place.path, uid, f"that user replaced the new {name}")
        os.fchown(descriptor, owner.st_uid, _groups_of(owner)[0])
    finally:
        os.close(descriptor)


def _become_owner(place: _Place) -> None:
    found = place.found
    if found.st_uid == 0:
        return
    _become(found.st_uid, _groups_of(found), place.path)
    _logger.info(
        "root runs this: it works as the user %s, who owns %s", user_name(found.st_uid), place.path
    )


def _groups_of(found: os.stat_result) -> list[int]:
    """Return the groups of a directory's owner, the primary group first. A user without an account
    gets the directory's group; if that is the group of root, the uid is the group id."""
    try:
        user = pwd.getpwuid(found.st_uid)
    except KeyError:
        return [found.st_gid or found.st_uid]
    others = [group.gr_gid for group in grp.getgrall() if user.pw_name in group.gr_mem]
    return [user.pw_gid, *others]


def _become(uid: int, groups: list[int], path: Path) -> None:
    try:
        os.setgroups(groups)
        os.setresgid(groups[0], groups[0], groups[0])
        # Test this before the uid changes for good: to report an error, Python may have to import
        # modules, and this user might be unable to read them.
        os.seteuid(uid)
        try:
            missing = [each for each in NEEDED if not _can_read(each)]
        finally:
            os.seteuid(0)
        if missing:
            raise CannotActAsOwner(
                path, uid, f"that user cannot read {missing[0]}, which this command needs"
            )
        os.setresuid(uid, uid, uid)
    except OSError as error:
        raise CannotActAsOwner(path, uid, error.strerror or str(error)) from error


def _can_read(file: str) -> bool:
    return os.access(file, os.R_OK, effective_ids=True)
