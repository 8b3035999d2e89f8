"""An LMDB environment that several threads use, and that is reopened if LMDB fails.

After a failed write of its meta page, LMDB refuses every further transaction of the environment
(MDB_PANIC) until it is closed. The file is then in the state of the last commit. The first thread
that gets this error closes and reopens the environment; the failed change may be tried again.

To reopen the environment, or to grow its map (LMDB moves the map), no transaction of this process
may be open. New transactions wait meanwhile. If an open transaction does not end within
`_PATIENCE_S`, a later call tries again.

A reader in another process (a backup) that was killed keeps its slot in LMDB's reader table. LMDB
never reuses a page that this reader might read, so the file grows with every change.
`drop_dead_readers` frees such slots. `grow` and, once a minute, `ReaderWatch` call it.
"""

import asyncio
import errno
import logging
import mmap
import threading
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import lmdb

_logger = logging.getLogger(__name__)

T = TypeVar("T")

#: How long to wait for open transactions to end. New transactions are blocked meanwhile.
_PATIENCE_S = 2.0
READER_CHECK_INTERVAL_S = 60.0


class LiveEnv:
    """One environment, which must be used only through this class. Any thread may read; only one
    thread at a time may write."""

    def __init__(
        self, open_env: Callable[[], lmdb.Environment], databases: Sequence[bytes] = ()
    ) -> None:
        """`open_env` opens the environment, now and each time that it is reopened. `databases` are
        opened in the environment, and created if it is writable. Errors propagate."""
        self._open_env = open_env
        self._names = tuple(databases)
        self._changed = threading.Condition()
        self._user_count = 0
        self._is_blocked = False
        self._is_closed = False
        self._databases: dict[bytes, Any] = {}
        self._readers_since: dict[tuple[str, str, str], float] = {}
        self._env: lmdb.Environment | None = self._open()

    def _open(self) -> lmdb.Environment:
        env = self._open_env()
        try:
            is_written = not env.flags()["readonly"]
            self._databases = {name: env.open_db(name, create=is_written) for name in self._names}
        except BaseException:
            env.close()
            raise
        return env

    def close(self) -> None:
        """Close the environment; may be called twice. Reads in progress fail with lmdb.Error."""
        with self._changed:
            self._is_closed = True
            env, self._env = self._env, None
        if env is not None:
            env.close()

    def database(self, name: bytes) -> Any:
        """Return a database's handle. Valid only inside a transaction."""
        return self._databases[name]

    @contextmanager
    def transaction(
        self, database: bytes | None = None, *, write: bool = False
    ) -> Iterator["lmdb.Transaction[bytes]"]:
        """Begin a transaction. Commit it at the end of the block; abort it on an error. If LMDB
        refuses the transaction (MDB_PANIC), reopen the environment and try once more. lmdb.Error
        propagates."""
        for is_last in (False, True):
            with self._shared() as env:
                try:
                    if env is None:
                        raise lmdb.PanicError("the environment could not be opened again yet")
                    handle = None if database is None else self._databases[database]
                    txn = env.begin(db=handle, write=write)
                except lmdb.PanicError:
                    if is_last:
                        raise
                else:
                    with txn:
                        yield txn
                    return
            self._reopen(env)

    def write(self, change: Callable[[], T]) -> T:
        """Call `change`, which makes one transaction. While the map is full, let the map grow and
        call `change` again. lmdb.Error propagates; then nothing is stored."""
        while True:
            try:
                return change()
            except lmdb.MapFullError:
                if not self.grow():
                    raise

    def grow(self) -> bool:
        """Make room in the map: free the reader slots of killed processes or, if there are none,
        double the map. Return whether there is more room. Do not call this inside a transaction."""
        if self.drop_dead_readers():
            return True
        with self._exclusive() as is_exclusive:
            if not is_exclusive or self._env is None:
                _logger.warning("an LMDB map is in use and cannot grow now; it grows later")
                return False
            return grow_map(self._env)

    def copy(self, directory: Path) -> None:
        """Copy the environment in the state of its last commit into an empty directory."""
        with self._shared() as env:
            if env is None:
                raise lmdb.PanicError("the environment could not be opened again yet")
            env.copy(str(directory))

    # -- readers ---------------------------------------------------------------------------

    def drop_dead_readers(self) -> int:
        """Free the reader slots of processes that were killed; return their number."""
        with self._shared() as env:
            if env is None:
                return 0
            try:
                found = int(env.reader_check())
            except lmdb.Error as error:
                _logger.warning("the readers of %s cannot be checked: %s", env.path(), error)
                return 0
            if found:
                _logger.warning("removed %d killed readers of %s", found, env.path())
            return found

    def oldest_reader_s(self) -> float:
        """Return for how long the oldest reader of any process has kept pages from being reused.
        The time counts from the first call that saw this reader. Return 0 if there is no reader."""
        now = time.monotonic()
        found: set[tuple[str, str, str]] = set()
        with self._shared() as env, suppress(lmdb.Error):
            if env is not None:
                newest = int(env.info()["last_txnid"])
                # One line per reader: process, thread, transaction ("-" if it has none).
                for pid, thread, txn in map(str.split, env.readers().splitlines()):
                    if pid.isdigit() and txn.isdigit() and int(txn) < newest:
                        found.add((pid, thread, txn))
        with self._changed:
            self._readers_since = {each: self._readers_since.get(each, now) for each in found}
            return now - min(self._readers_since.values(), default=now)

    # -- inside ----------------------------------------------------------------------------

    @contextmanager
    def _shared(self) -> Iterator[lmdb.Environment | None]:
        """Count the caller as a user of the environment. Wait while `_exclusive` is active. Yield
        None if the environment could not be reopened yet."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_blocked)
            if self._is_closed:
                raise lmdb.Error("the environment is closed")
            self._user_count += 1
            env = self._env
        try:
            yield env
        finally:
            with self._changed:
                self._user_count -= 1
                if self._is_blocked:
                    self._changed.notify_all()

    @contextmanager
    def _exclusive(self) -> Iterator[bool]:
        """Wait until no transaction is open, and let no new one begin before the end of the block.
        Yield False if an open transaction does not end in time."""
        with self._changed:
            self._changed.wait_for(lambda: not self._is_blocked)
            self._is_blocked = True
            try:
                yield self._changed.wait_for(lambda: self._user_count == 0, _PATIENCE_S)
            finally:
                self._is_blocked = False
                self._changed.notify_all()

    def _reopen(self, is_reserve_released: lmdb.Environment | None) -> None:
        """Close and reopen an environment whose transactions LMDB refuses, unless another thread
        has reopened it. lmdb.Error propagates; then a later transaction tries again."""
        with self._exclusive() as is_exclusive:
            if self._env is not is_reserve_released or self._is_closed:
                return
            if not is_exclusive:
                raise lmdb.PanicError(
                    "LMDB refuses the environment, and a transaction still reads it"
                )
            if is_reserve_released is not None:
                _logger.error(
                    "%s is not usable after a failed write: it is opened again at its last commit",
                    is_reserve_released.path(),
                )
                self._env = None
                is_reserve_released.close()
            try:
                self._env = self._open()
            except OSError as error:
                is_full = error.errno in (errno.ENOSPC, errno.EDQUOT)
                raise (lmdb.DiskError if is_full else lmdb.Error)(str(error)) from error
            _logger.warning("%s was opened again", self._env.path())


def grow_map(env: lmdb.Environment) -> bool:
    """Double an environment's map; return False if there is not enough address space. No
    transaction of this process may be open."""
    size = 2 * int(env.info()["map_size"])
    try:
        # LMDB unmaps the old map first. If it could not map the new one, it could not continue. So
        # test first whether the system can map as much.
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_NORESERVE", 0)
        mmap.mmap(-1, size, flags=flags, prot=mmap.PROT_READ).close()
    except (OSError, ValueError, OverflowError) as error:
        _logger.error("the map of %s cannot grow to %d bytes: %s", env.path(), size, error)
        return False
    env.set_mapsize(size)
    _logger.info("the map of %s grew to %d bytes", env.path(), size)
    return True


@dataclass(eq=False)
class ReaderWatch:
    """Checks the readers of environments once a minute, in `in_thread`, and frees the reader slots
    of killed processes. Call `start` and `stop` on the event loop."""

    environments: Mapping[str, LiveEnv]
    in_thread: Callable[[Callable[[], None]], Awaitable[None]]

    def __post_init__(self) -> None:
        self._task: asyncio.Task[None] | None = None
        self._oldest_s = dict.fromkeys(self.environments, 0.0)

    def start(self) -> None:
        """Check every READER_CHECK_INTERVAL_S from now on."""
        self._task = asyncio.create_task(self._run(), name="lmdb-readers")

    async def stop(self) -> None:
        """Stop checking; may be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def oldest_s(self) -> dict[str, float]:
        """Return, for each environment, how long its oldest reader had kept pages from being reused
        at the last check. Any thread may call this."""
        return dict(self._oldest_s)

    def check_once(self) -> None:
        for name, env in self.environments.items():
            try:
                env.drop_dead_readers()
                self._oldest_s[name] = env.oldest_reader_s()
            except lmdb.Error as error:
                _logger.warning("the readers of the %s cannot be checked: %s", name, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(READER_CHECK_INTERVAL_S)
            await self.in_thread(self.check_once)
