"""Stores the known damage in the state, so that it survives a restart. Belongs to the event
loop."""

import asyncio
import logging
from collections.abc import Awaitable, Callable

from holdfast.consumequeue.damage.damage_book import DamageBook
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.state.store import Changes

_logger = logging.getLogger(__name__)

#: Damage that is found within this time is stored together.
GATHER_S = 0.2


class DamageKeeper:
    """Stores the changes of the damage book, soon after they are recorded."""

    def __init__(
        self, book: DamageBook, commit_state: Callable[[Changes], Awaitable[None]]
    ) -> None:
        self._book = book
        self._commit_state = commit_state
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        book.changed = self._start_saving
        self._start_saving()

    async def stop(self) -> None:
        """Store the remaining changes, then stop. May be called twice."""
        self._stopping.set()
        if self._task is not None:
            await self._task

    def _start_saving(self) -> None:
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._save(), name="damage")

    async def _save(self) -> None:
        while changes := self._book.take_changes():
            try:
                await self._commit_state(changes)
            except StateUnavailable as error:
                # When more damage is found, try again. A restart finds most damage again, too.
                self._book.put_back(changes)
                _logger.warning("the damage could not be recorded: %s", error)
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), GATHER_S)
            except TimeoutError:
                continue
