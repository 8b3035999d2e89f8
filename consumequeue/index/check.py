"""Check an index in a separate process, because LMDB may raise an error, return a wrong answer or
crash the process when it reads a damaged page.

Every entry is read in order, its CRC is compared, and its key is searched from the root, because a
damaged key in an inner page may misdirect the search for a single entry. Run as `python -m
holdfast.consumequeue.index.check DIRECTORY`, this module exits with status 0 if the index is sound;
otherwise it prints the damage and exits with status 1.
"""

import struct
import subprocess
import sys
from pathlib import Path

import lmdb

from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.lmdb_env.env import CORRUPT, check_env_files

_DATABASES = (b"entries", b"meta", b"producers")


def check_in_child(directory: Path) -> None:
    """Check the index in `directory` in a child process. Nothing else may have the index open.
    Raises lmdb.CorruptedError if it is damaged. Takes about 16 s of CPU time per GiB."""
    command = [sys.executable, "-m", "holdfast.consumequeue.index.check", str(directory)]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        errors = found.stderr.strip().splitlines() if found.returncode > 0 else []
        raise lmdb.CorruptedError(
            errors[-1] if errors else f"its check ended with status {found.returncode}"
        )


def find_damage(directory: Path, *, values: bool = True) -> str | None:
    """Return a description of the damage in an index, or None if there is none. If `values` is
    False, do not check the values, because every reader checks them. Reading a damaged page may
    crash this process, so call this in a child process unless every page is known to be
    well-formed."""
    check_env_files(directory, readonly=True)
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
                        if values and key != b"format" and not _has_valid_crc(key, value):
                            return f"the checksum of {key.hex()} does not match its value"
                        # A cursor would search from its position, not from the root.
                        if txn.get(key) is None:
                            return f"{name!r} does not find {key.hex()}"
                        before, count = key, count + 1
                    if count != (expected := txn.stat(db)["entries"]):
                        return f"{name!r} has {count} entries, not {expected}"
    except (*CORRUPT, lmdb.NotFoundError) as error:
        return str(error)
    return None


def _has_valid_crc(key: bytes, value: bytes) -> bool:
    return struct.pack("<I", crc32c(key + value[:-4])) == value[-4:]


def _map_size(directory: Path) -> int:
    return max((directory / "data.mdb").stat().st_size + 0xFFFF & ~0xFFFF, 1 << 20)


if __name__ == "__main__":
    sys.exit(find_damage(Path(sys.argv[1])))
