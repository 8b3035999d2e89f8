"""Look through an index in a process of its own: what LMDB makes of a damaged page may be an error,
a wrong answer, or the end of the process.

Every entry is read and its CRC compared, in order; and looked for from the top, so that a search
that goes astray shows too. As `python -m holdfast.consumequeue.index_check DIRECTORY` it ends with
status 0 when all is well, else with a line that says what is not.
"""

import struct
import subprocess
import sys
from pathlib import Path

import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.consumequeue.lmdb_env import CORRUPT

#: A page holds more entries than this: each page is found from the top at least once.
_SEEK_EVERY = 16
_DATABASES = (b"entries", b"meta", b"producers")


def check_apart(directory: Path) -> None:
    """Look through the index in `directory` in a child process, which nothing else may have open.
    Raises lmdb.CorruptedError when it is damaged. About 8 s of a processor a GiB."""
    command = [sys.executable, "-m", "holdfast.consumequeue.index_check", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        said = found.stderr.strip().splitlines()[-1:] if found.returncode > 0 else []
        raise lmdb.CorruptedError(
            said[0] if said else f"the look at it ended with status {found.returncode}"
        )


def find_damage(directory: Path) -> str | None:
    """Return what is wrong with an index, None when nothing is. May end the process."""
    try:
        env = lmdb.open(
            str(directory), map_size=_map_size(directory), max_dbs=3, readonly=True, lock=False
        )
        with env:
            for name in _DATABASES:
                db = env.open_db(name, create=False)
                with env.begin(db=db) as txn, txn.cursor() as cursor, txn.cursor() as seeking:
                    before, count = b"", 0
                    for key, value in cursor:
                        if key <= before:
                            return f"{name!r} is out of order at {key.hex()}"
                        crc = struct.pack("<I", crc32c(key + value[:-4]))
                        if key != b"format" and crc != value[-4:]:
                            return f"the checksum of {key.hex()} does not match its value"
                        if count % _SEEK_EVERY == 0 and not seeking.set_key(key):
                            return f"{name!r} does not find {key.hex()}"
                        before, count = key, count + 1
                    if count != txn.stat(db)["entries"]:
                        return f"{name!r} has {count} entries, not as many as it says"
    except (*CORRUPT, lmdb.NotFoundError) as error:
        return str(error)
    return None


def _map_size(directory: Path) -> int:
    return max((directory / "data.mdb").stat().st_size + 0xFFFF & ~0xFFFF, 1 << 20)


if __name__ == "__main__":
    sys.exit(find_damage(Path(sys.argv[1])))
