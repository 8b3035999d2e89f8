"""Copies the floors of groups to their stored offsets, periodically.

The stored offsets are in the broker's state, and also in a topic of the log. If the cursors of a
group are lost, the group continues from these offsets. On the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.slices import LoopBudget
from holdfast.consumequeue.topics import is_own
from holdfast.groups.serving.group_server import GroupServer

_logger = logging.getLogger(__name__)


class FloorExporter:
    """Copies the floors of the groups that `groups` returns."""

    def __init__(
        self, store: MessageStore, groups: Callable[[], Iterable[GroupServer]], interval_s: float
    ) -> None:
        self._store = store
        self._groups = groups
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start copying periodically."""
        self._task = asyncio.create_task(self._run(), name="group-floors")

    async def stop(self) -> None:
        """Stop, and then copy all floors once more. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self.export_all()

    async def export_all(self) -> None:
        """Store all floors that differ from the stored offsets."""
        turn = LoopBudget()
        for group in list(self._groups()):
            await self.export(group, turn)

    async def export(self, group: GroupServer, turn: LoopBudget) -> None:
        """Store the floors of a group that differ from its stored offsets. A failure is logged; the
        next round tries again. Do nothing for a group of the broker itself, which does not outlive
        the process.
        """
        name = group.record.name
        if is_own(name):
            return
        await turn.spend()
        for topic in group.topics():
            await turn.spend()
            subscribed = group.core.topics.get(topic.topic_id)
            if subscribed is None:
                continue  # the group has lost the topic meanwhile
            try:
                stored = self._store.offsets.stored_offsets(name, topic).offsets
            except StoreError:  # nothing was stored for the group yet
                stored = {}
            floors = {}
            async for lanes in turn.slices(list(subscribed.lanes.values())):
                for lane in lanes:
                    if stored.get(lane.key[1]) != lane.cursor.floor:
                        floors[lane.key[1]] = lane.cursor.floor
            if floors:
                try:
                    await self._store.offsets.store_offsets(name, topic, floors)
                except StoreError as error:
                    _logger.warning("the floors of %r were not stored as offsets: %s", name, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.export_all()
