"""Open an LMDB environment without trusting its file.

LMDB reads its file through a mapping, and trusts every page: one that the file no longer has
would end the process with SIGBUS, one that is damaged may end it by an assertion. So the file is
verified before LMDB reads a page. Its lock file it writes through a mapping, which on a full disk
is a SIGBUS as well: that file's room is allocated before.
"""

import os
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

from holdfast.commitlog.disk import make_directory, sync_directory

#: What LMDB raises when its file is not as it was written.
CORRUPT = (
    lmdb.BadValsizeError,
    lmdb.CorruptedError,
    lmdb.IncompatibleError,
    lmdb.InvalidError,
    lmdb.PageFullError,
    lmdb.PageNotFoundError,
    lmdb.ProblemError,
    lmdb.VersionMismatchError,
)

#: Files up to this size are verified whole before a broker uses them: a few seconds at most, half a
#: million records. Larger ones, which would hold up every start, only when they are too short (the
#: index has quicker means, `index_seal` and `index_check`); `holdfast check` verifies any.
VERIFIED_BYTES = 64 * 1024 * 1024


_MAX_READERS = 512
#: What LMDB 0.9 makes the lock file of so many readers: 64 bytes each, and two lines of its own.
_LOCK_BYTES = (_MAX_READERS + 2) * 64


def open_env(
    directory: Path,
    map_size_bytes: int,
    *,
    max_dbs: int = 0,
    readonly: bool = False,
    is_trusted: bool = False,
) -> lmdb.Environment:
    """Open or create the environment in `directory`. With `readonly` it must exist, a file of
    any size is verified, and nothing is written, not even LMDB's lock file. With `is_trusted`
    the caller has verified it.

    Raises one of CORRUPT for a file that is no sound environment; other lmdb.Errors and
    OSError (ENOSPC: there is no room for it) pass through.
    """
    data = directory / "data.mdb"
    if not readonly:
        make_directory(directory)
        _allocate(directory / "lock.mdb", _LOCK_BYTES)

    def opened() -> lmdb.Environment:
        return lmdb.open(
            str(directory),
            map_size=map_size_bytes,
            max_dbs=max_dbs,
            max_readers=_MAX_READERS,
            readonly=readonly,
            lock=not readonly,
        )

    if is_trusted:
        return opened()
    if readonly or (data.exists() and data.stat().st_size <= VERIFIED_BYTES):
        verify_file(data)
        return opened()
    is_new = not data.exists()
    env = opened()
    if is_new:
        sync_directory(directory)  # LMDB syncs its file, but not the file's name
    # Free pages at the end may be promised without ever having been written: that is sound.
    if data.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        env.close()
        verify_file(data)
        env = opened()
    return env


def _allocate(path: Path, size: int) -> None:
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o640)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def verify_file(data: Path) -> None:
    """Look at the form of every page of a file that nothing else has open for writing. Raises one
    of CORRUPT; what the pages' keys and values say is not looked at."""
    try:
        problems: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        raise lmdb.InvalidError(str(error)) from error
    if problems:
        raise lmdb.CorruptedError(problems[0])
