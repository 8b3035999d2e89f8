"""Open an LMDB environment without trusting its file.

LMDB maps its file into memory and trusts every page. Reading a page after the end of a truncated
file would crash the process (SIGBUS); a damaged page may fail an assertion. So the file is verified
before LMDB reads it. LMDB also maps its lock file, and writing to this map on a full disk would
also cause a SIGBUS. So space for the lock file is allocated first.
"""

import os
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.disk.owned_files import FILE_MODE, check_file, open_file

#: The errors that LMDB raises for a damaged file.
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

#: Files up to this size are verified completely before a broker uses them. Such a file has about
#: half a million records; verifying it takes at most a few seconds. Larger files would delay every
#: start, so they are verified only if they have fewer pages than LMDB counts. (The index has faster
#: checks: `index.seal` and `index.check`.) `holdfast check` verifies files of any size.
VERIFIED_BYTES = 64 * 1024 * 1024


_MAX_READERS = 512
#: The size of LMDB 0.9's lock file: 64 bytes for each reader, and 128 bytes more.
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
    any size is verified, and nothing is written, not even LMDB's lock file. With `is_trusted` the
    file is not verified, because the caller has verified it.

    Raises one of the errors in CORRUPT if the file is damaged. Other lmdb.Errors and OSError
    (ENOSPC if the disk is full) propagate.
    """
    data = directory / "data.mdb"
    if not readonly:
        make_directory(directory)
    check_env_files(directory, readonly=readonly)
    if not readonly:
        _allocate(directory / "lock.mdb", _LOCK_BYTES)

    def opened() -> lmdb.Environment:
        return lmdb.open(
            str(directory),
            map_size=map_size_bytes,
            max_dbs=max_dbs,
            max_readers=_MAX_READERS,
            readonly=readonly,
            lock=not readonly,
            mode=FILE_MODE,
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
    # LMDB may count free pages at the end that were never written: such a file is sound.
    if data.stat().st_size < (env.info()["last_pgno"] + 1) * env.stat()["psize"]:
        env.close()
        verify_file(data)
        env = opened()
    return env


def check_env_files(directory: Path, *, readonly: bool = False) -> None:
    """Check the owner of the environment's files, and that they are no links, because LMDB opens
    files by path and follows links. With `readonly` a file may have several hard links, as in
    copies of a backup. Raises UnsafeFile; OSError propagates."""
    check_file(directory / "data.mdb", may_have_names=readonly)
    check_file(directory / "lock.mdb", may_have_names=readonly)


def _allocate(path: Path, size: int) -> None:
    descriptor = open_file(path, os.O_RDWR | os.O_CREAT)
    try:
        os.posix_fallocate(descriptor, 0, size)
    finally:
        os.close(descriptor)


def verify_file(data: Path) -> None:
    """Check the structure of every page of a file that no process has open for writing. The
    contents of keys and values are not checked. Raises UnsafeFile, or one of the errors in CORRUPT.
    """
    check_file(data, may_have_names=True)
    try:
        problems: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        raise lmdb.InvalidError(str(error)) from error
    if problems:
        raise lmdb.CorruptedError(problems[0])
