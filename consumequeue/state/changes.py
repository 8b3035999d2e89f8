"""Changes of the durable state. Each change is on disk before its result is reported.

Belongs to the event loop. A change that was started runs to its end even if its caller is
cancelled, so that memory and disk always agree. `wait` waits for such changes.
"""

import asyncio
import logging
from collections.abc import Coroutine
from typing import Any, TypeVar

from holdfast.commitlog.append.appender import Appender, AppendRequest
from holdfast.commitlog.errors import LogError
from holdfast.consumequeue.state.journal import encode_changes
from holdfast.consumequeue.state.store import Changes, StateStore
from holdfast.consumequeue.topics import STATE_TOPIC_ID

_logger = logging.getLogger(__name__)

_T = TypeVar("_T")


class StateChanges:
    """Commits changes to the state, and records them in the log's state topic."""

    def __init__(self, state: StateStore, appender: Appender) -> None:
        self._state = state
        self._appender = appender
        self._loop = asyncio.get_running_loop()
        self._running: set[asyncio.Task[Any]] = set()

    async def commit(self, changes: Changes) -> None:
        """Make a change of the state durable, then record it in the log's state topic. Do not
        cancel this call; `run_shielded` prevents that. Raises StateUnavailable."""
        future: asyncio.Future[None] = self._loop.create_future()

        def written(error: Exception | None) -> None:
            self._loop.call_soon_threadsafe(complete_future, future, error)

        self._state.commit(changes, written)
        await future
        self._journal(changes)

    async def run_shielded(self, change: Coroutine[Any, Any, _T]) -> _T:
        """Await a change and let it run to its end even if this call is cancelled."""
        task = self._loop.create_task(change)
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            task.add_done_callback(_log_abandoned_failure)
            raise

    async def wait(self) -> None:
        """Wait until every change of topics and stored offsets that was started has ended."""
        while self._running:
            await asyncio.wait(self._running)

    def _journal(self, changes: Changes) -> None:
        """Append records to the state topic. An error is only logged, because LMDB has the records,
        too, and the snapshot in the next segment repeats them."""
        request = AppendRequest(STATE_TOPIC_ID, [encode_changes(changes)], durable=False)
        try:
            self._appender.submit(request)
        except LogError as error:
            _logger.warning("a change of the state was not recorded in the log: %s", error)


def complete_future(future: "asyncio.Future[None]", error: Exception | None) -> None:
    """Complete a future with a result or an error, unless it is already done."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)


def _log_abandoned_failure(task: "asyncio.Task[Any]") -> None:
    """Log the error of a change whose caller was cancelled, so that asyncio does not warn of it."""
    if not task.cancelled() and task.exception() is not None:
        _logger.warning("a change whose caller was cancelled failed: %s", task.exception())
