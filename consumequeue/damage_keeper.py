"""Keeps what is known to be damaged in the state, so that a restart does not forget it. On the
event loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.consumequeue.damage_book import DamageBook
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.state_store import Changes

_logger = logging.getLogger(__name__)

#: What is found within this time is stored together.
GATHER_S = 0.2


class DamageKeeper:
    """Stores what the book has noted since the last time, soon after it was noted."""

    def __init__(
        self, book: DamageBook, commit_state: Callable[[Changes], Awaitable[None]]
    ) -> None:
        self._book = book
        self._commit_state = commit_state
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        book.changed = self._changed
        self._changed()

    async def stop(self) -> None:
        """Store what is still to be stored, then stop. May be called twice."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    def _changed(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._keep(), name="damage")

    async def _keep(self) -> None:
        while changes := self._book.take_changes():
            try:
                await self._commit_state(changes)
            except StateUnavailable as error:
                # The next thing that is found tries again; a restart finds most of it itself.
                self._book.put_back(changes)
                _logger.warning("what is damaged could not be noted: %s", error)
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), GATHER_S)
            except TimeoutError:
                continue
