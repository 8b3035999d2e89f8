"""Looking at what a group has, without acquiring anything. Pure: nothing changes by it.

A browser keeps its own place, an offset a queue; several never disturb each other, nor members.
It is shown what is neither settled nor, unless it asks for it, leased: topic by topic, the
highest level of priority first, in order inside a queue.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from holdfast.commitlog.priority import level_of_queue
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.cursor import State
from holdfast.groups.group_topic import GroupTopic
from holdfast.groups.heads import Head, HeadSource
from holdfast.groups.lane import Lane
from holdfast.groups.selection import READ_AHEAD


@dataclass(slots=True)
class Browsed:
    """What a browser is shown, and where it goes on. `needs`: read there first."""

    messages: list[tuple[QueueKey, int]]
    place: dict[QueueKey, int]
    needs: tuple[QueueKey, int] | None = None


def browse(
    topics: Iterable[GroupTopic],
    source: HeadSource,
    place: Mapping[QueueKey, int],
    *,
    credit: int,
    max_bytes: int = 1 << 62,
    filter: object | None = None,
    include_leased: bool = False,
    now_ms: int,
) -> Browsed:
    """Return up to `credit` messages from `place` on; a queue not in it begins at its floor."""
    shown = Browsed([], dict(place))
    hidden = {State.DONE, State.DYING}
    if not include_leased:
        hidden |= {State.LEASED, State.GRACE}
    room = max_bytes
    for topic in topics:
        for lane in _highest_first(topic):
            offset = max(place.get(lane.key, 0), lane.cursor.floor)
            while offset < lane.cursor.end and len(shown.messages) < credit:
                found = source.read(lane.key, offset, lane.cursor.end, READ_AHEAD, lane.view.filter)
                if found is None:
                    shown.needs = lane.key, offset
                    return shown
                for head in found.heads:
                    if len(shown.messages) >= credit:
                        break
                    offset = head.offset + 1
                    if _is_shown(lane, head, hidden, now_ms):
                        passes = filter is None or source.matches(lane.key, head.offset, filter)
                        if passes is None:
                            shown.needs = lane.key, head.offset
                            return shown
                        if passes:
                            if shown.messages and head.size_bytes > room:
                                return shown
                            room -= head.size_bytes
                            shown.messages.append((lane.key, head.offset))
                    shown.place[lane.key] = offset
                else:
                    offset = shown.place[lane.key] = found.scanned
    return shown


def _highest_first(topic: GroupTopic) -> list[Lane]:
    return sorted(
        topic.lanes.values(),
        key=lambda lane: (-level_of_queue(lane.key[1], topic.levels), lane.key[1]),
    )


def _is_shown(lane: Lane, head: Head, hidden: set[State], now_ms: int) -> bool:
    is_too_old = 0 < head.expires_at_ms <= now_ms
    return not is_too_old and lane.cursor.state(head.offset) not in hidden
