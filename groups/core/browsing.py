"""Browsing: looking at a group's messages without leasing them. Pure: nothing changes.

A browser is a client that reads this way. Each browser has its own place: an offset for each queue.
Browsers affect neither each other nor the members. Browsers see the messages that are not settled;
leased messages are shown only with `include_leased`. The order is: topic by topic, in a topic the
queues of the highest priority level first, in a queue by offset.
"""

from collections.abc import Iterable, Mapping

import msgspec

from holdfast.commitlog.format.priority import level_of_queue
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.core.group_topic import GroupTopic, QueueLane
from holdfast.groups.core.selection import READ_AHEAD
from holdfast.groups.cursor.cursor import State
from holdfast.groups.cursor.heads import Head, HeadSource


class BrowseResult(msgspec.Struct):
    """The messages to show, and the place at which the next call continues. If `needs` is set, the
    caller must fetch the message at this queue and offset, and then repeat the call."""

    messages: list[tuple[QueueKey, int]]
    place: dict[QueueKey, int]
    needs: tuple[QueueKey, int] | None = None


def browse(
    topics: Iterable[GroupTopic],
    source: HeadSource,
    place: Mapping[QueueKey, int],
    *,
    max_messages: int,
    max_bytes: int = 1 << 62,
    filter: object | None = None,
    include_leased: bool = False,
    now_ms: int,
) -> BrowseResult:
    """Return up to `max_messages` messages from `place` on. A queue that is not in `place` is shown
    from its floor on."""
    shown = BrowseResult([], dict(place))
    hidden = {State.DONE, State.DYING}
    if not include_leased:
        hidden |= {State.LEASED, State.GRACE}
    room = max_bytes
    for lane in (lane for topic in topics for lane in _highest_first(topic)):
        key, end = lane.key, lane.cursor.end
        offset = max(place.get(key, 0), lane.cursor.floor)
        while offset < end and len(shown.messages) < max_messages:
            found = source.read(key, offset, end, READ_AHEAD, lane.view.filter)
            if found is None:
                shown.needs = key, offset
                return shown
            for head in found.heads:
                if len(shown.messages) >= max_messages:
                    break
                if _is_shown(lane, head, hidden, now_ms):
                    is_match = filter is None or source.matches(key, head.offset, filter)
                    if is_match is None:
                        shown.needs = key, head.offset
                        return shown
                    if is_match:
                        if shown.messages and head.size_bytes > room:
                            return shown
                        room -= head.size_bytes
                        shown.messages.append((key, head.offset))
                offset = shown.place[key] = head.offset + 1
            else:
                offset = shown.place[key] = found.scanned
    return shown


def _highest_first(topic: GroupTopic) -> list[QueueLane]:
    return sorted(
        topic.lanes.values(),
        key=lambda lane: (-level_of_queue(lane.key[1], topic.levels), lane.key[1]),
    )


def _is_shown(lane: QueueLane, head: Head, hidden: set[State], now_ms: int) -> bool:
    has_expired = lane.view.has_expired(head, now_ms)
    return not has_expired and lane.cursor.state(head.offset) not in hidden
