"""Stores the floors of groups with leases as their offsets too, now and then.

So they are in the state and in the log's own topic: a group whose cursors are lost goes on from
there. On the event loop.
"""

import asyncio
import logging
from collections.abc import Callable, Iterable

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.message_store import MessageStore
from holdfast.groups.served_group import ServedGroup

_logger = logging.getLogger(__name__)


class Mirror:
    """Mirrors the groups that `groups` tells of."""

    def __init__(
        self,
        store: MessageStore,
        groups: Callable[[], Iterable[ServedGroup]],
        interval_s: float,
    ) -> None:
        self._store = store
        self._groups = groups
        self._interval_s = interval_s
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to mirror now and then."""
        self._task = asyncio.create_task(self._run(), name="group-mirror")

    async def stop(self) -> None:
        """Mirror once more, and end. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])
            await self.mirror_all()

    async def mirror_all(self) -> None:
        """Store what differs from what is stored."""
        for group in list(self._groups()):
            await self.mirror(group)

    async def mirror(self, group: ServedGroup) -> None:
        """Store a group's floors where they differ. What fails is tried the next time."""
        name = group.record.name
        for topic in group.topics():
            subscribed = group.core.topics.get(topic.topic_id)
            if subscribed is None:
                continue  # the group has let go of it meanwhile
            try:
                stored = self._store.stored_offsets(name, topic).offsets
            except StoreError:  # nothing was stored for the group yet
                stored = {}
            floors = {
                queue: lane.cursor.floor
                for queue, lane in subscribed.lanes.items()
                if stored.get(queue) != lane.cursor.floor
            }
            if floors:
                try:
                    await self._store.store_offsets(name, topic, floors)
                except StoreError as error:
                    _logger.warning("the floors of %r were not mirrored: %s", name, error)

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.mirror_all()
