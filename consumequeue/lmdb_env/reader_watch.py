"""Checks LMDB's readers once a minute, and frees the reader slots of killed processes.

A reader in another process (a backup) that was killed keeps its slot in LMDB's reader table. LMDB
never reuses a page that this reader might read, so the file grows with every change.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

import lmdb

from holdfast.consumequeue.lmdb_env.live_env import LiveEnv

_logger = logging.getLogger(__name__)

INTERVAL_S = 60.0


class ReaderWatch:
    """Checks the readers of environments at an interval. Call `start` and `stop` on the event
    loop."""

    def __init__(
        self,
        environments: Mapping[str, LiveEnv],
        in_thread: Callable[[Callable[[], None]], Awaitable[None]],
    ) -> None:
        self._environments = environments
        self._in_thread = in_thread
        self._task: asyncio.Task[None] | None = None
        self._oldest_s = dict.fromkeys(environments, 0.0)

    def start(self) -> None:
        """Check every INTERVAL_S from now on."""
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

    def look(self) -> None:
        """Check once. This may wait for the disk."""
        for name, env in self._environments.items():
            try:
                env.drop_dead_readers()
                self._oldest_s[name] = env.oldest_reader_s()
            except lmdb.Error as error:
                _logger.warning("the readers of the %s cannot be checked: %s", name, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(INTERVAL_S)
            await self._in_thread(self.look)
