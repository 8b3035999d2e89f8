"""The members that browse a group, and how far each has read.

To browse means to receive messages without leasing them. A browse continues after the messages that
the member saw last. After an empty answer the next browse begins at the floors again. On the event
loop.
"""

from collections.abc import Sequence

from msgspec.structs import replace

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.browsing import browse
from holdfast.groups.core.group import Group
from holdfast.groups.core.group_topic import GroupTopic
from holdfast.groups.core.requests import ReceiveRequest, SelectedMessage
from holdfast.groups.cursor.cursor import Cursor, State
from holdfast.groups.cursor.leases import NO_DEADLINE
from holdfast.groups.service_types import Delivery, Holder
from holdfast.groups.serving.head_source import StoreHeads
from holdfast.groups.serving.receive_flow import ReceiveFlow

#: A place is one offset for each queue, at which the next browse of a member continues. Places of
#: at most this many members are kept. If there are more, the place that was not used for the
#: longest time is dropped, and its member begins again.
MAX_BROWSERS = 1024
#: The places of all members contain at most this many queues together, at 150 bytes each. If there
#: are more, places are dropped likewise.
MAX_PLACES = 100_000
#: One browse waits for at most this many reads.
MAX_FETCHES = 32


class Browsers:
    """The browsers of one group."""

    def __init__(self, core: Group, source: StoreHeads, flow: ReceiveFlow) -> None:
        self._core = core
        self._source = source
        self._flow = flow
        self._places: dict[str, dict[QueueKey, int]] = {}

    async def browse(self, request: ReceiveRequest, now_ms: int) -> Sequence[Delivery]:
        """Return the next messages for a member. Raises StoreError and OSError if a read fails."""
        member = request.member
        place = self._places.pop(member, {})
        for _ in range(MAX_FETCHES):
            shown = browse(
                self._topics(request),
                self._source,
                place,
                max_messages=request.max_messages,
                max_bytes=request.max_bytes,
                filter=request.filter,
                include_leased=request.include_leased,
                now_ms=now_ms,
            )
            if shown.needs is None or shown.messages:
                break
            place = shown.place
            await self._source.fetch(*shown.needs)
        messages, holders = [], {}
        for key, offset in shown.messages:
            cursor = self._core.topics[key[0]].lanes[key[1]].cursor
            attempt, failures = cursor.attempt(offset), cursor.failures(offset)
            messages.append(SelectedMessage(key, offset, attempt, False, None, failures))
            if request.include_leased:
                holders[key, offset] = holder_of(cursor, offset)
        found, _ = await self._flow.deliveries(messages)
        if request.include_leased:
            found = [
                replace(each, holder=holders[(each.topic.topic_id, each.queue), each.offset])
                for each in found
            ]
        if found or shown.needs is not None:
            self._keep(member, shown.place)
        return found

    def _keep(self, member: str, place: dict[QueueKey, int]) -> None:
        """Store a member's place, as the most recent one."""
        self._places[member] = place
        count = sum(map(len, self._places.values()))
        while len(self._places) > 1 and (len(self._places) > MAX_BROWSERS or count > MAX_PLACES):
            count -= len(self._places.pop(next(iter(self._places))))

    def forget(self, member: str) -> None:
        """Drop the place of a member that left."""
        self._places.pop(member, None)

    def _topics(self, request: ReceiveRequest) -> list[GroupTopic]:
        """Return the group's topics that are requested and permitted."""
        return [topic for topic_id, topic in self._core.topics.items() if request.takes(topic_id)]


def holder_of(cursor: Cursor, offset: int) -> Holder | None:
    """Return who holds a message; None if no member holds it."""
    lease = cursor.leases.get(offset)
    if lease is not None:
        return Holder(lease.member, None if lease.deadline_ms == NO_DEADLINE else lease.deadline_ms)
    if cursor.state(offset) is State.GRACE:
        return Holder(None, cursor.grace_end_ms)
    return None
