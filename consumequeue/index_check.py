"""Look through an index in a process of its own: what LMDB makes of a damaged page may be an error,
a wrong answer, or the end of the process.

Every entry is read and its CRC compared, in order; and looked for from the top, each of them: a
damaged key in an inner page may lead astray the search for one entry alone. As
`python -m holdfast.consumequeue.index_check DIRECTORY` it ends with status 0 when all is well, else
with a line that says what is not.
"""

import struct
import subprocess
import sys
from pathlib import Path

import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.consumequeue.lmdb_env import CORRUPT

_DATABASES = (b"entries", b"meta", b"producers")


def check_apart(directory: Path) -> None:
    """Look through the index in `directory` in a child process, which nothing else may have open.
    Raises lmdb.CorruptedError when it is damaged. About 16 s of a processor a GiB."""
    command = [sys.executable, "-m", "holdfast.consumequeue.index_check", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        said = found.stderr.strip().splitlines()[-1:] if found.returncode > 0 else []
        raise lmdb.CorruptedError(
            said[0] if said else f"the look at it ended with status {found.returncode}"
        )


def find_damage(directory: Path, *, values: bool = True) -> str | None:
    """Return what is wrong with an index, None when nothing is; without `values` what they hold is
    left to their readers. May end the process, unless every page is known to have its form."""
    try:
        env = lmdb.open(
            str(directory), map_size=_map_size(directory), max_dbs=3, readonly=True, lock=False
        )
        with env:
            for name in _DATABASES:
                db = env.open_db(name, create=False)
                with env.begin(db=db) as txn, txn.cursor() as cursor:
                    before, count = b"", 0
                    for key, value in cursor:
                        if key <= before:
                            return f"{name!r} is out of order at {key.hex()}"
                        if values and key != b"format" and not _fits(key, value):
                            return f"the checksum of {key.hex()} does not match its value"
                        # Not by a cursor: that begins where it is, not at the top.
                        if txn.get(key) is None:
                            return f"{name!r} does not find {key.hex()}"
                        before, count = key, count + 1
                    if count != txn.stat(db)["entries"]:
                        return f"{name!r} has {count} entries, not as many as it says"
    except (*CORRUPT, lmdb.NotFoundError) as error:
        return str(error)
    return None


def _fits(key: bytes, value: bytes) -> bool:
    return struct.pack("<I", crc32c(key + value[:-4])) == value[-4:]


def _map_size(directory: Path) -> int:
    return max((directory / "data.mdb").stat().st_size + 0xFFFF & ~0xFFFF, 1 << 20)


if __name__ == "__main__":
    sys.exit(find_damage(Path(sys.argv[1])))
