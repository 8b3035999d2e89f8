"""Members that look at what a group has, and how far each of them has come.

A browse goes on behind what its member was shown before; after an empty answer it begins again.
Nothing is acquired. On the event loop.
"""

from collections.abc import Sequence

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.asking import Pick
from holdfast.groups.browsing import browse
from holdfast.groups.delivering import Delivering
from holdfast.groups.group import Group
from holdfast.groups.group_topic import GroupTopic
from holdfast.groups.head_source import StoreHeads
from holdfast.groups.service_types import Delivery

#: Members whose places are kept; beyond it the one that browsed least lately begins again.
MAX_BROWSERS = 1024
#: Reads that one browse waits for.
MAX_FETCHES = 32


class Browsers:
    """The browsers of one group."""

    def __init__(self, core: Group, source: StoreHeads, delivering: Delivering) -> None:
        self._core = core
        self._source = source
        self._delivering = delivering
        self._places: dict[str, dict[QueueKey, int]] = {}

    async def browse(
        self,
        member: str,
        topics: frozenset[int] | None,
        filter: object | None,
        *,
        max_messages: int,
        max_bytes: int,
        now_ms: int,
    ) -> Sequence[Delivery]:
        """Return what comes next for a member."""
        place = self._places.pop(member, {})
        for _ in range(MAX_FETCHES):
            shown = browse(
                self._topics(topics),
                self._source,
                place,
                credit=max_messages,
                max_bytes=max_bytes,
                filter=filter,
                now_ms=now_ms,
            )
            if shown.needs is None or shown.messages:
                break
            place = shown.place
            await self._source.fetch(*shown.needs)
        found, _ = await self._delivering.deliveries(
            [
                Pick(key, offset, self._attempt(key, offset), False, None)
                for key, offset in shown.messages
            ]
        )
        if found or shown.needs is not None:
            if len(self._places) >= MAX_BROWSERS:
                del self._places[next(iter(self._places))]
            self._places[member] = shown.place
        return found

    def forget(self, member: str) -> None:
        """A member has gone."""
        self._places.pop(member, None)

    def _topics(self, asked: frozenset[int] | None) -> list[GroupTopic]:
        """Return the topics that are asked for, as far as the group has them now."""
        topics = self._core.topics.items()
        return [topic for topic_id, topic in topics if asked is None or topic_id in asked]

    def _attempt(self, queue: QueueKey, offset: int) -> int:
        return self._core.topics[queue[0]].lanes[queue[1]].cursor.attempt(offset)
