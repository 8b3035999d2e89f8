"""LMDB's file is checked before LMDB maps it, so that no damage in it kills the process."""

import errno
import os
import random
from pathlib import Path

import lmdb
import pytest

from holdfast.consumequeue.lmdb_env import env as lmdb_env
from holdfast.consumequeue.lmdb_env.env import CORRUPT, open_env

MAP = 1 << 26


@pytest.fixture
def filled(tmp_path: Path) -> Path:
    directory = tmp_path / "env"
    env = open_env(directory, MAP)
    with env.begin(write=True) as txn:
        for number in range(500):
            txn.put(b"%05d" % number, b"x" * 60)
    env.close()
    return directory


def test_an_environment_is_created_and_opened_again(tmp_path: Path) -> None:
    env = open_env(tmp_path / "new" / "env", MAP, max_dbs=1)
    with env.begin(write=True, db=env.open_db(b"one")) as txn:
        txn.put(b"k", b"v")
    env.close()
    env = open_env(tmp_path / "new" / "env", MAP, max_dbs=1)
    with env.begin(db=env.open_db(b"one")) as txn:
        assert txn.get(b"k") == b"v"
    env.close()


def test_readonly_reads_and_leaves_no_trace(filled: Path) -> None:
    (filled / "lock.mdb").unlink()
    before = (filled / "data.mdb").read_bytes()
    env = open_env(filled, MAP, readonly=True)
    with env.begin() as txn:
        assert txn.get(b"00499") == b"x" * 60
    env.close()
    assert (filled / "data.mdb").read_bytes() == before
    assert [path.name for path in filled.iterdir()] == ["data.mdb"]


@pytest.mark.parametrize("readonly", [False, True])
@pytest.mark.parametrize("size", [0, 1, 100, 4096, 8192, 20_000])
def test_a_truncated_file_is_refused(filled: Path, size: int, readonly: bool) -> None:
    os.truncate(filled / "data.mdb", size)
    with pytest.raises(CORRUPT):
        open_env(filled, MAP, readonly=readonly)


@pytest.mark.parametrize("readonly", [False, True])
def test_a_file_of_something_else_is_refused(tmp_path: Path, readonly: bool) -> None:
    (tmp_path / "data.mdb").write_bytes(b"holdfast" * 4096)
    with pytest.raises(CORRUPT):
        open_env(tmp_path, MAP, readonly=readonly)


def test_a_flipped_bit_in_a_page_header_is_refused(filled: Path) -> None:
    data = filled / "data.mdb"
    image = bytearray(data.read_bytes())
    image[4096 * 5 + 12] ^= 0x10  # a page's lower bound of free room
    data.write_bytes(image)
    with pytest.raises(CORRUPT):
        open_env(filled, MAP)


def test_a_large_file_is_verified_only_if_too_short(
    filled: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    verified: list[Path] = []
    monkeypatch.setattr(lmdb_env, "VERIFIED_BYTES", 0)
    monkeypatch.setattr(lmdb_env, "verify_file", verified.append)
    open_env(filled, MAP).close()
    assert not verified
    os.truncate(filled / "data.mdb", (filled / "data.mdb").stat().st_size - 4096)
    open_env(filled, MAP).close()
    assert verified == [filled / "data.mdb"]


def test_a_file_without_its_free_pages_is_sound(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The meta page counts pages that a transaction took and freed again, but they are never
    written."""
    _promise_too_much(tmp_path)
    for verified_bytes in (0, 1 << 30):
        monkeypatch.setattr(lmdb_env, "VERIFIED_BYTES", verified_bytes)
        env = open_env(tmp_path, MAP)
        with env.begin() as txn:
            assert sum(1 for _ in txn.cursor()) == txn.stat()["entries"]
        env.close()


def _promise_too_much(directory: Path) -> None:
    """Change an environment at random until its file is shorter than its meta page says."""
    rng = random.Random(154)  # a seed that reaches this quickly
    env = open_env(directory, MAP)
    keys: list[bytes] = []
    for _ in range(60):
        with env.begin(write=True) as txn:
            for _ in range(rng.randrange(1, 60)):
                key = b"%020d" % rng.randrange(10**6)
                txn.put(key, b"x" * rng.randrange(10, 1400))
                keys.append(key)
            if rng.random() < 0.5:
                rng.shuffle(keys)
                for key in keys[: len(keys) * rng.randrange(100) // 100]:
                    txn.delete(key)
        promised = (env.info()["last_pgno"] + 1) * env.stat()["psize"]
        if (directory / "data.mdb").stat().st_size < promised:
            env.close()
            return
    env.close()
    pytest.skip("this LMDB writes every page that it promises")


def test_lmdb_never_opens_a_refused_file(filled: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object, **__: object) -> None:
        raise AssertionError("LMDB was handed the file")

    os.truncate(filled / "data.mdb", 8192)
    monkeypatch.setattr(lmdb, "open", never)
    with pytest.raises(lmdb.CorruptedError):
        open_env(filled, MAP)


def test_the_lock_file_is_allocated_before_lmdb_maps_it(tmp_path: Path) -> None:
    open_env(tmp_path, MAP).close()
    lock = (tmp_path / "lock.mdb").stat()
    assert lock.st_size == lmdb_env._LOCK_BYTES  # otherwise LMDB would enlarge it with holes
    assert lock.st_blocks * 512 >= lock.st_size


def test_a_full_disk_does_not_end_the_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(OSError, match="No space left"):
        open_env(tmp_path, MAP)
    assert not (tmp_path / "data.mdb").exists()
