"""An environment that LMDB has given up is reopened, and slots of killed readers are freed."""

import multiprocessing
import os
import signal
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import lmdb
import pytest

from holdfast.consumequeue.lmdb_env.env import open_env
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv

MAP = 1 << 20


class GivenUp:
    """An environment that refuses all transactions, like LMDB's after a failed meta page write."""

    def __init__(self, env: lmdb.Environment) -> None:
        self._env = env

    def __getattr__(self, name: str) -> Any:
        return getattr(self._env, name)

    def begin(self, **arguments: Any) -> Any:
        raise lmdb.PanicError("mdb_txn_begin: MDB_PANIC")


@pytest.fixture
def env(tmp_path: Path) -> Iterator[LiveEnv]:
    made = LiveEnv(partial(open_env, tmp_path / "env", MAP, max_dbs=1), (b"db",))
    yield made
    made.close()


def _give_up(env: LiveEnv) -> None:
    env._env = GivenUp(env._env)  # type: ignore[assignment,arg-type]


def _put(env: LiveEnv, key: bytes, value: bytes = b"v") -> None:
    def put() -> None:
        with env.transaction(b"db", write=True) as txn:
            txn.put(key, value)

    env.write(put)


def _get(env: LiveEnv, key: bytes) -> bytes | None:
    with env.transaction(b"db") as txn:
        return txn.get(key)


# D1: after a failed write of LMDB's meta page every transaction was refused until a restart


def test_a_change_after_a_panic_is_stored(env: LiveEnv) -> None:
    _put(env, b"before")
    _give_up(env)
    _put(env, b"after")
    assert _get(env, b"before") == _get(env, b"after") == b"v"


def test_a_read_after_a_panic_finds_committed_data(env: LiveEnv) -> None:
    _put(env, b"before")
    _give_up(env)
    assert _get(env, b"before") == b"v"


def test_the_next_transaction_tries_to_reopen_again(
    env: LiveEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    _put(env, b"before")
    _give_up(env)
    with monkeypatch.context() as failing:

        def fail() -> lmdb.Environment:
            raise OSError(24, "Too many open files")

        failing.setattr(env, "_open_env", fail)
        for _ in range(2):
            with pytest.raises(lmdb.Error, match="Too many open files"):
                _put(env, b"refused")
    assert _get(env, b"refused") is None
    assert _get(env, b"before") == b"v"


def test_an_environment_is_not_closed_during_a_read(
    env: LiveEnv, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.consumequeue.lmdb_env.live_env._PATIENCE_S", 0.05)
    _put(env, b"before")
    with env.transaction(b"db") as reading:
        _give_up(env)
        with pytest.raises(lmdb.PanicError, match="still read"):
            _put(env, b"refused")
        assert reading.get(b"before") == b"v"
    _put(env, b"after")
    assert _get(env, b"after") == b"v"


def test_readers_in_other_threads_never_meet_a_closed_environment(env: LiveEnv) -> None:
    _put(env, b"before")
    over = threading.Event()
    failures: list[BaseException] = []

    def read() -> None:
        try:
            while not over.is_set():
                assert _get(env, b"before") == b"v"
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=read) for _ in range(3)]
    for thread in threads:
        thread.start()
    for number in range(30):
        with env._exclusive():
            _give_up(env)
        _put(env, b"%d" % number)
    over.set()
    for thread in threads:
        thread.join()
    assert not failures
    assert all(_get(env, b"%d" % number) == b"v" for number in range(30))


def test_a_closed_environment_is_not_reopened(env: LiveEnv) -> None:
    env.close()
    env.close()
    with pytest.raises(lmdb.Error, match="closed"):
        _get(env, b"before")


# D2: because of a killed reader, no page was ever reused


def _read_until_killed(directory: str, is_reading: Any) -> None:
    other = lmdb.open(directory, readonly=True, max_dbs=1)
    with other.begin() as txn:
        txn.get(b"before")
        is_reading.set()
        signal.pause()


@pytest.fixture
def reader(env: LiveEnv, tmp_path: Path) -> Iterator[Any]:
    _put(env, b"before")
    context = multiprocessing.get_context("spawn")
    is_reading = context.Event()
    process = context.Process(
        target=_read_until_killed, args=(str(tmp_path / "env"), is_reading), daemon=True
    )
    process.start()
    assert is_reading.wait(60)
    yield process
    process.kill()
    process.join()


def test_pages_of_a_killed_reader_are_reused(env: LiveEnv, reader: Any, tmp_path: Path) -> None:
    assert reader.pid is not None
    _put(env, b"after")
    env.oldest_reader_s()
    time.sleep(0.001)  # so that its age is not zero
    assert env.oldest_reader_s() > 0
    assert env.drop_dead_readers() == 0, "it lives"
    os.kill(reader.pid, signal.SIGKILL)
    reader.join()
    size = (tmp_path / "env" / "data.mdb").stat().st_size
    for number in range(40):  # while a reader is open, each change takes new pages
        _put(env, b"x", b"%04d" % number * 500)
    assert (tmp_path / "env" / "data.mdb").stat().st_size > size + 40 * 4096
    assert env.drop_dead_readers() == 1
    assert env.oldest_reader_s() == 0
    size = (tmp_path / "env" / "data.mdb").stat().st_size
    for number in range(40):
        _put(env, b"x", b"%04d" % number * 500)
    assert (tmp_path / "env" / "data.mdb").stat().st_size == size


def test_killed_readers_are_removed_before_a_map_grows(env: LiveEnv, reader: Any) -> None:
    os.kill(reader.pid, signal.SIGKILL)
    reader.join()
    for number in range(1000):
        _put(env, b"x", b"%04d" % number * 500)
    assert env._env is not None
    assert env._env.info()["map_size"] == MAP
