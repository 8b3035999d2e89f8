"""Deletes groups that have had no member for as long as their setting `auto_delete_after_ms`.

A group's server reports that its group is due. Before the deletion begins, the group is checked
again: a member may have come meanwhile. On the event loop.
"""

import asyncio
import logging
from collections.abc import Callable

from holdfast.consumequeue.errors import StoreError, UnknownGroup
from holdfast.groups.serving.group_changes import GroupChanges
from holdfast.groups.serving.group_server import GroupServer

_logger = logging.getLogger(__name__)

#: If a group cannot be deleted now, the next try is after this time.
RETRY_MS = 60_000
#: At most this many groups are deleted at once; the others wait for their turn.
DELETED_AT_ONCE = 4

OnDeleted = Callable[[str, int], None]
"""Called with the name of a deleted group, and its `auto_delete_after_ms`."""


class AutoDelete:
    """Deletes the groups that `report` names."""

    def __init__(self, changes: GroupChanges, now_ms: Callable[[], int]) -> None:
        self._changes = changes
        self._now_ms = now_ms
        self._turns = asyncio.Semaphore(DELETED_AT_ONCE)
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_stopping = False
        self.on_deleted: OnDeleted = lambda group, after_ms: None

    def report(self, group: GroupServer) -> None:
        """Begin to delete a group that is due."""
        if not self._is_stopping:
            task = asyncio.create_task(self._delete(group), name="group-auto-delete")
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)

    async def stop(self) -> None:
        """Delete no further group, and wait until the deletions that have begun are done. May be
        called twice."""
        self._is_stopping = True
        if self._tasks:
            await asyncio.wait(self._tasks)

    async def _delete(self, group: GroupServer) -> None:
        name = group.record.name
        after_ms = group.record.config.auto_delete_after_ms
        async with self._turns:
            if self._is_stopping:
                return
            try:
                is_deleted = await self._changes.delete_unused(group)
            except UnknownGroup:  # deleted by a request meanwhile
                return
            except StoreError as error:
                _logger.warning(
                    "the group %r, which has no member, is not deleted yet: %s", name, error
                )
                group.postpone_auto_delete(self._now_ms() + RETRY_MS)
                return
        if is_deleted:
            _logger.info(
                "the group %r was deleted, because it had no member for %d ms "
                "(auto_delete_after_ms)",
                name,
                after_ms,
            )
            self.on_deleted(name, after_ms)
