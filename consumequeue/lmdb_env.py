"""Open an LMDB environment without trusting its file.

LMDB reads its file through a mapping, and trusts every page: one that the file no longer has
would end the process with SIGBUS, one that is damaged may end it otherwise. So the file is
looked at before LMDB is.
"""

import os
from pathlib import Path

import lmdb
from lmdb.verify import VerifyError, verify

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

#: Files up to this size are verified page by page before a broker uses them: about a second,
#: half a million entries. Larger ones would hold up every start; `holdfast check` verifies any.
VERIFIED_BYTES = 64 * 1024 * 1024


def open_env(
    directory: Path, map_size_bytes: int, *, max_dbs: int = 0, readonly: bool = False
) -> lmdb.Environment:
    """Open or create the environment in `directory`. With `readonly` it must exist, a file of
    any size is verified, and nothing is written, not even LMDB's lock file.

    Raises one of CORRUPT for a file that is no sound environment; other lmdb.Errors and
    OSError pass through.
    """
    data = directory / "data.mdb"
    if not readonly:
        directory.mkdir(parents=True, exist_ok=True)
    if readonly or (data.exists() and data.stat().st_size <= VERIFIED_BYTES):
        _verify(data)
    env = lmdb.open(
        str(directory),
        map_size=map_size_bytes,
        max_dbs=max_dbs,
        max_readers=512,
        readonly=readonly,
        lock=not readonly,
    )
    if not readonly:
        _fill_up(env, data)
    return env


def _verify(data: Path) -> None:
    try:
        problems: list[str] = verify(str(data), subdir=False)  # type: ignore[no-untyped-call]
    except VerifyError as error:
        raise lmdb.InvalidError(str(error)) from error
    if problems:
        raise lmdb.CorruptedError(problems[0])


def _fill_up(env: lmdb.Environment, data: Path) -> None:
    """Make the file as long as its meta page says. Free pages at its end may never have been
    written, which is sound; a page that is truly missing is then met as zeros, not as SIGBUS."""
    promised = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
    if data.stat().st_size < promised:
        os.truncate(data, promised)
