"""Changes of the durable state: on the disk before anybody is told, and none is cut in two.

Lives on the event loop. A change that was begun goes on to its end even if whoever asked for it
is cancelled: memory and disk never part. `done` waits for such.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.commitlog.appender import Appender, AppendRequest
from holdfast.commitlog.errors import LogError
from holdfast.consumequeue.state_journal import encode_changes
from holdfast.consumequeue.state_store import Changes, StateStore
from holdfast.consumequeue.topics import STATE_TOPIC_ID

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class StateChanges:
    """Commits changes to the state, and notes them in the log's state topic."""

    def __init__(self, state: StateStore, appender: Appender) -> None:
        self._state = state
        self._appender = appender
        self._loop = asyncio.get_running_loop()
        self._under_way: set[asyncio.Task[Any]] = set()

    async def commit(self, changes: Changes) -> None:
        """Make a change of the state durable, then note it in the log's state topic. Raises
        StateUnavailable. Not to be cancelled."""
        future: asyncio.Future[None] = self._loop.create_future()

        def written(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(settle, future, error)

        self._state.commit(changes, written)
        await future
        self._journal(changes)

    async def to_its_end(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Await a change that cancelling must not cut in two."""
        task = self._loop.create_task(change)
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_pass_over)
            raise

    async def done(self) -> None:
        """Wait until every change of topics and stored offsets that was begun has ended."""
        while self._under_way:
            await asyncio.wait(self._under_way)

    def _journal(self, changes: Changes) -> None:
        """Append records to the state topic. Best effort: LMDB has them, and the snapshot at
        the next segment repeats them."""
        request = AppendRequest(STATE_TOPIC_ID, [encode_changes(changes)], durable=False)
        try:
            self._appender.submit(request)
        except LogError as error:
            _logger.warning("a change of the state was not noted in the log: %s", error)


def settle(future: "asyncio.Future[None]", error: Exception | None) -> None:
    """Give a future its result or its failure, unless it has one or was cancelled."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _pass_over(task: "asyncio.Task[Any]") -> None:
    """Take a failure that nobody is left to be told of."""
    if not task.cancelled() and task.exception() is not None:
        _logger.warning("a change that nobody waits for failed: %s", task.exception())
