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
from collections.abc import Callable, Sequence
from itertools import islice
from operator import add, lt
from pathlib import Path

import lmdb

from holdfast.commitlog.format.checksum import crc32c, register_before
from holdfast.consumequeue.lmdb_env.env import CORRUPT, check_env_files

_DATABASES = (b"entries", b"meta", b"producers")
#: Entries are compared together, without a loop in Python. More at a time leave the CPU's caches.
_TOGETHER = 128
#: The CRC32C of any bytes that are followed by their own CRC32C, in little-endian order.
_RESIDUE = crc32c(crc32c(b"").to_bytes(4, "little"))
#: These bytes after any bytes and their CRC32C set the CRC register to its initial value.
_RESET = (register_before(0xFFFF_FFFF, 4) ^ _RESIDUE ^ 0xFFFF_FFFF).to_bytes(4, "little")
_CRC_BYTES = 4

_Items = Sequence[tuple[bytes, bytes]]


def check_in_child(directory: Path) -> None:
    """Check the index in `directory` in a child process. Nothing else may have the index open.
    Raises lmdb.CorruptedError if it is damaged. Takes about 10 s of CPU time per GiB."""
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
                    entries = iter(cursor)
                    while items := list(islice(entries, _TOGETHER)):
                        if not _are_sound(items, before, txn.get, values=values) and (
                            damage := _damage_of(items, name, before, txn.get, values=values)
                        ):
                            return damage
                        before, count = items[-1][0], count + len(items)
                    if count != (expected := txn.stat(db)["entries"]):
                        return f"{name!r} has {count} entries, not {expected}"
    except (*CORRUPT, lmdb.NotFoundError) as error:
        return str(error)
    return None


def _are_sound(
    items: _Items, before: bytes, get: Callable[[bytes], bytes | None], *, values: bool
) -> bool:
    """Return True if `_damage_of` would return None. This is faster. If it returns
    False, only `_damage_of` tells whether there is damage: one key has no checksum."""
    keys, found = zip(*items, strict=True)
    return (
        all(map(lt, (before, *keys), keys))
        and (not values or _have_valid_crcs(keys, found))
        # A cursor would search from its position, not from the root.
        and tuple(map(get, keys)) == found
    )


def _damage_of(
    items: _Items, name: bytes, before: bytes, get: Callable[[bytes], bytes | None], *, values: bool
) -> str | None:
    """Return a description of the first damage in entries that follow the key `before`, or None."""
    for key, value in items:
        if key <= before:
            return f"{name!r} is out of order at {key.hex()}"
        if values and key != b"format" and not _has_valid_crc(key, value):
            return f"the checksum of {key.hex()} does not match its value"
        if get(key) != value:
            return f"{name!r} does not find {key.hex()}"
        before = key
    return None


def _have_valid_crcs(keys: Sequence[bytes], values: Sequence[bytes]) -> bool:
    """Return True if each value ends in the CRC of its entry. One CRC over all entries finds any
    damage in one entry, and misses damage in several entries with a probability of 2**-32."""
    has_room = min(map(len, values)) >= _CRC_BYTES
    return has_room and crc32c(_RESET.join(map(add, keys, values))) == _RESIDUE


def _has_valid_crc(key: bytes, value: bytes) -> bool:
    return struct.pack("<I", crc32c(key + value[:-4])) == value[-4:]


def _map_size(directory: Path) -> int:
    return max((directory / "data.mdb").stat().st_size + 0xFFFF & ~0xFFFF, 1 << 20)


if __name__ == "__main__":
    sys.exit(find_damage(Path(sys.argv[1])))
