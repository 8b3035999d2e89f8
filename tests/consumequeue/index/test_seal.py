"""The seal of a closed index, and the full check of an index without a seal."""

import random
from collections.abc import Callable
from itertools import islice
from pathlib import Path

import lmdb
import pytest

from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.index import index as index_module
from holdfast.consumequeue.index.check import check_in_child, find_damage
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import Index, IndexCorrupt, ReputPosition
from holdfast.consumequeue.index.seal import SEAL, break_seal, seal

MAP = 64 * 1024 * 1024


def filled(directory: Path, entries: int = 2000) -> Path:
    """Make an index with many pages, closed and sealed; return its file."""
    index = Index(directory, MAP)
    units = [
        ((1, at % 3), CqUnit(at // 3, at * 100, 100, 1, at, 0, at * 100)) for at in range(entries)
    ]
    index.commit(units, ReputPosition(entries * 100, 0, entries, 0))
    index.close()
    return directory / "data.mdb"


def flip(path: Path, bit: int) -> None:
    image = bytearray(path.read_bytes())
    image[bit // 8] ^= 1 << bit % 8
    path.write_bytes(image)


def test_closing_seals_an_index_and_opening_breaks_the_seal(tmp_path: Path) -> None:
    filled(tmp_path)
    assert break_seal(tmp_path)
    assert not break_seal(tmp_path)
    seal(tmp_path)
    index = Index(tmp_path, MAP)
    assert not (tmp_path / SEAL).exists()  # while it is open, and after a crash
    index.close()
    assert break_seal(tmp_path)


def test_a_changed_bit_after_the_seal_is_detected(tmp_path: Path) -> None:
    data = filled(tmp_path)
    image, sealed = data.read_bytes(), (tmp_path / SEAL).read_bytes()
    rng = random.Random(7)
    for bit in [rng.randrange(len(image) * 8) for _ in range(50)]:
        data.write_bytes(image)
        (tmp_path / SEAL).write_bytes(sealed)
        flip(data, bit)
        with pytest.raises(IndexCorrupt, match="changed since it was closed"):
            Index(tmp_path, MAP)


@pytest.mark.parametrize("size", [0, 4096, -1])
def test_a_file_of_another_length_than_was_sealed_is_refused(tmp_path: Path, size: int) -> None:
    data = filled(tmp_path)
    image = data.read_bytes()
    data.write_bytes(image[:size] if size >= 0 else image + bytes(4096))
    with pytest.raises(IndexCorrupt):
        Index(tmp_path, MAP)


def test_a_damaged_seal_proves_nothing(tmp_path: Path) -> None:
    filled(tmp_path)
    sealed = (tmp_path / SEAL).read_bytes()
    for bit in range(len(sealed) * 8):
        (tmp_path / SEAL).write_bytes(sealed)
        flip(tmp_path / SEAL, bit)
        assert not break_seal(tmp_path)
    for size in range(len(sealed)):
        (tmp_path / SEAL).write_bytes(sealed[:size])
        assert not break_seal(tmp_path)


def test_a_condemned_index_is_not_sealed(tmp_path: Path) -> None:
    filled(tmp_path)
    index = Index(tmp_path, MAP)
    index.condemn()
    index.close()
    assert not (tmp_path / SEAL).exists()


def test_a_child_process_accepts_a_sound_index(tmp_path: Path) -> None:
    filled(tmp_path)
    assert find_damage(tmp_path) is None
    check_in_child(tmp_path)


def test_a_child_process_checks_a_large_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = filled(tmp_path)
    image = data.read_bytes()
    monkeypatch.setattr(index_module, "SMALL_BYTES", 0)
    (tmp_path / SEAL).unlink()
    Index(tmp_path, MAP).close()
    refused = 0
    rng = random.Random(11)
    for _ in range(8):
        (tmp_path / SEAL).unlink(missing_ok=True)
        (tmp_path / "condemned").unlink(missing_ok=True)
        data.write_bytes(image)
        # A page in the middle of the file: a leaf with entries, or a branch.
        page = rng.randrange(6, len(image) // 4096) * 4096
        for bit in range(page * 8, (page + 64) * 8, 37):
            flip(data, bit)
        try:
            Index(tmp_path, MAP).close()
        except IndexCorrupt:
            refused += 1
    assert refused >= 6  # some pages are free
    data.write_bytes(image)


def test_a_check_that_ends_early_counts_as_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    filled(tmp_path)
    monkeypatch.setattr("holdfast.consumequeue.index.check.sys.executable", "/bin/false")
    with pytest.raises(lmdb.CorruptedError, match="status 1"):
        check_in_child(tmp_path)


def change_entry(directory: Path, number: int, change: Callable[[bytes], bytes]) -> str:
    """Change the value of an entry, and return its key in hexadecimal."""
    with (
        lmdb.open(str(directory), map_size=MAP, max_dbs=3) as env,
        env.begin(db=env.open_db(b"entries"), write=True) as txn,
    ):
        key, value = next(islice(txn.cursor(), number, None))
        txn.put(key, change(value))
        return str(key.hex())


@pytest.mark.parametrize("number", [0, 1, 127, 128, 1000, 1999])
@pytest.mark.parametrize(
    "change",
    [
        lambda value: bytes([value[0] ^ 1]) + value[1:],
        lambda value: value[:-1] + bytes([value[-1] ^ 128]),
        lambda value: value[:-4],
        lambda value: value[:3],
        lambda value: b"",
    ],
    ids=["first bit", "last bit", "no checksum", "three bytes", "empty"],
)
def test_a_wrong_value_is_found_at_every_place(
    tmp_path: Path, number: int, change: Callable[[bytes], bytes]
) -> None:
    filled(tmp_path)
    key = change_entry(tmp_path, number, change)
    assert find_damage(tmp_path) == f"the checksum of {key} does not match its value"
    assert find_damage(tmp_path, values=False) is None
    with pytest.raises(lmdb.CorruptedError, match=key):
        check_in_child(tmp_path)


def test_the_checksum_of_a_key_does_not_stand_for_that_of_its_value(tmp_path: Path) -> None:
    filled(tmp_path)
    with (
        lmdb.open(str(tmp_path), map_size=MAP, max_dbs=3) as env,
        env.begin(db=env.open_db(b"entries"), write=True) as txn,
    ):
        key = b"\xff" * 12
        txn.put(key + crc32c(key).to_bytes(4, "little"), b"")
    assert find_damage(tmp_path) is not None
