"""All known damage in one place. /readyz and the metrics show it; the state stores it.

Reads, the scrub and the opening of the data directory report damage here. The book belongs to the
event loop; before the loop runs, only the opening uses it. The state stores the damage, so that a
restarted broker still knows it, and never gives a lost offset to another message.
"""

import asyncio
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

import msgspec

from holdfast.commitlog.log_limit import LogLimit
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges, overlaps, with_lost, without
from holdfast.consumequeue.state.records import (
    DAMAGE,
    decode_damage,
    decode_lost,
    encode_damage,
    encode_lost,
    lost_key,
    parse_key,
)
from holdfast.consumequeue.state.store import Changes
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import STATE_TOPIC_ID, STATE_TOPIC_NAME, QueueKey

_logger = logging.getLogger(__name__)

#: At most this many lost ranges are recorded for each queue. In total, at most this many damaged
#: places of the log and at most this many faults of files are recorded.
MAX_RANGES = 1000
#: At most this many faults are listed. If there are more, the last item has their number.
MAX_FAULTS = 100
#: Damage that is found within this time is stored together.
GATHER_S = 0.2


class Fault(msgspec.Struct, frozen=True):
    """A damaged place or file. `reason` is a stable identifier for programs, `detail` a sentence
    for people."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@dataclass(slots=True)
class DamageBook:
    """The known damage."""

    lost: dict[QueueKey, LostRanges] = field(default_factory=dict)
    """The damaged or missing offsets of each queue."""
    damage: dict[int, tuple[int, str]] = field(default_factory=dict)
    """Damaged places of the log whose messages are unknown: physical offset -> (end, reason)."""
    files: list[Fault] = field(default_factory=list)
    """Faults of whole files, found since the start."""
    counts: Counter[str] = field(default_factory=Counter)
    """The number of damaged places found since the start, by reason."""
    changed: Callable[[], None] = lambda: None
    """Called when there are changes to store; get them from `take_changes`."""
    _changed_topics: set[int] = field(default_factory=set)
    _is_damage_changed: bool = False
    _log_limit: LogLimit = field(default_factory=LogLimit)

    def load(self, records: Mapping[bytes, bytes]) -> None:
        for key, value in records.items():
            kind, *rest = parse_key(key)
            if kind == "lost":
                for queue, ranges in decode_lost(value).items():
                    self.lost[int(rest[0]), queue] = ranges
            elif key == DAMAGE:
                self.damage = decode_damage(value)

    # -- recording damage ------------------------------------------------------------------

    def record_lost(self, key: QueueKey, start_offset: int, end_offset: int, reason: str) -> None:
        """Record that the messages from `start_offset` to before `end_offset` are damaged or lost.
        Do nothing if this is known already."""
        known = self.lost.get(key, ())
        if overlaps(known, start_offset, end_offset) is False:
            self.counts[reason] += 1
            where = f"queue {key[1]} of the topic with id {key[0]}"
            self._log(f"{where} has lost offsets {start_offset} to {end_offset} ({reason})")
        found = with_lost(known, LostRange(start_offset, end_offset, reason))
        if found == known or len(found) > MAX_RANGES:
            return
        self.lost[key] = found
        self._changed_topics.add(key[0])
        self.changed()

    def note_damage(self, start: int, end: int, reason: str) -> None:
        """Record that the log is damaged from physical offset `start` to `end`. Call this if the
        affected messages are unknown; otherwise call `record_lost`."""
        if start in self.damage or len(self.damage) >= MAX_RANGES:
            return
        self.counts[reason] += 1
        self._log(f"the log is damaged from {start} to {end} ({reason})")
        self.damage[start] = (end, reason)
        self._is_damage_changed = True
        self.changed()

    def note_file(self, fault: Fault) -> None:
        """Record a fault of a whole file, until the next start checks the file again."""
        if fault not in self.files and len(self.files) < MAX_RANGES:
            self.counts[fault.reason] += 1
            self._log(str(fault))
            self.files.append(fault)

    def record_readable(self, key: QueueKey, start_offset: int, end_offset: int) -> None:
        """Record that these messages can be read again, because their file was restored."""
        known = self.lost.get(key, ())
        left = without(known, start_offset, end_offset)
        if left != known:
            self.lost[key] = left
            self._changed_topics.add(key[0])
            self.changed()

    def forget_damage(self, start: int) -> None:
        """Forget a damaged place of the log: its segment was deleted, or it can be read again."""
        if self.damage.pop(start, None) is not None:
            self._is_damage_changed = True
            self.changed()

    def _log(self, line: str) -> None:
        left_out = self._log_limit.admit(monotonic())
        if left_out is not None:
            more = f" (and {left_out} more places)" if left_out else ""
            _logger.error("damage: %s%s; run 'holdfast check'", line, more)

    # -- reports and records ---------------------------------------------------------------

    def faults(self, table: TopicTable, queues: Mapping[QueueKey, ConsumeQueue]) -> list[Fault]:
        """Return the damage to messages that are still kept in a topic of `table`."""
        found = list(self.files)
        for start, (end, reason) in sorted(self.damage.items()):
            found.append(Fault(reason, f"the log is damaged from {start} to {end}"))
        for key, ranges in sorted(self.lost.items()):
            topic, cq = table.by_id(key[0]), queues.get(key)
            if topic is None and key[0] != STATE_TOPIC_ID:
                continue
            name = STATE_TOPIC_NAME if topic is None else topic.name
            begin = 0 if cq is None else cq.min_offset
            for each in without(ranges, 0, begin):
                if not each.accepted:
                    detail = (
                        f"queue {key[1]} of {name!r} has lost its messages from offset "
                        f"{each.start_offset} to {each.end_offset}"
                    )
                    found.append(Fault(each.reason, detail))
        if len(found) > MAX_FAULTS:
            more = len(found) - MAX_FAULTS + 1
            found = [*found[: MAX_FAULTS - 1], Fault("more", f"and {more} more damages")]
        return found

    def take_changes(self) -> dict[bytes, bytes | None]:
        """Return the state records that have changed since the last call. If a value is None, the
        record must be deleted."""
        changes: dict[bytes, bytes | None] = {}
        for topic_id in self._changed_topics:
            queues = {
                key[1]: ranges for key, ranges in self.lost.items() if key[0] == topic_id and ranges
            }
            changes[lost_key(topic_id)] = encode_lost(queues) if queues else None
        if self._is_damage_changed:
            changes[DAMAGE] = encode_damage(self.damage) if self.damage else None
        self._changed_topics.clear()
        self._is_damage_changed = False
        return changes

    def put_back(self, changes: Mapping[bytes, bytes | None]) -> None:
        """Make the next `take_changes` return these changes again, because storing them failed."""
        for key in changes:
            kind, *rest = parse_key(key)
            if kind == "lost":
                self._changed_topics.add(int(rest[0]))
            else:
                self._is_damage_changed = True


@dataclass(eq=False)
class DamageKeeper:
    """Stores the changes of the damage book, soon after they are recorded."""

    book: DamageBook
    commit_state: Callable[[Changes], Awaitable[None]]

    def __post_init__(self) -> None:
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self.book.changed = self._start_saving
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
        while changes := self.book.take_changes():
            try:
                await self.commit_state(changes)
            except StateUnavailable as error:
                # When more damage is found, try again. A restart finds most damage again, too.
                self.book.put_back(changes)
                _logger.warning("the damage could not be recorded: %s", error)
                return
            try:
                await asyncio.wait_for(self._stopping.wait(), GATHER_S)
            except TimeoutError:
                continue
