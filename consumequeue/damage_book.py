"""What is known to be damaged, in one place: for /readyz, for the metrics, for the state.

Reads, the opening and the scrub tell it what they meet; on the event loop, but for the opening,
which is over before the loop looks. What is noted here is kept in the state, so that a broker
that was restarted still knows it, and an offset that was lost is never given to another message.
"""

import logging
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from time import monotonic

from holdfast.commitlog.log_limit import LogLimit
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges, overlaps, with_lost, without
from holdfast.consumequeue.state_records import (
    DAMAGE,
    decode_damage,
    decode_lost,
    encode_damage,
    encode_lost,
    lost_key,
    parse_key,
)
from holdfast.consumequeue.topics import STATE_TOPIC_ID, STATE_TOPIC_NAME, QueueKey

_logger = logging.getLogger(__name__)

#: Ranges of one queue that are remembered: more of them are one fault, not many.
MAX_RANGES = 1000
#: Faults that are listed; what is beyond them is told as a number.
MAX_FAULTS = 100


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that is damaged. `reason` is a stable word for machines, `detail` a sentence."""

    reason: str
    detail: str

    def __str__(self) -> str:
        return f"{self.reason}: {self.detail}"


@dataclass(slots=True)
class DamageBook:
    """The damages known. Offsets are queue offsets; `damage` has those of the log itself, where
    it is not known whose messages they cost: physical offset -> (its end, reason)."""

    lost: dict[QueueKey, LostRanges] = field(default_factory=dict)
    damage: dict[int, tuple[int, str]] = field(default_factory=dict)
    files: list[Fault] = field(default_factory=list)
    """What is wrong with files as a whole, as it was found at the start."""
    counts: Counter[str] = field(default_factory=Counter)
    """How many damaged places were found since the start, by reason."""
    changed: Callable[[], None] = lambda: None
    """Called when there is something to keep: `take_changes`."""
    _changed_topics: set[int] = field(default_factory=set)
    _is_damage_changed: bool = False
    _log_limit: LogLimit = field(default_factory=LogLimit)

    def load(self, records: Mapping[bytes, bytes]) -> None:
        """Take what the state remembers."""
        for key, value in records.items():
            kind, *rest = parse_key(key)
            if kind == "lost":
                for queue, ranges in decode_lost(value).items():
                    self.lost[int(rest[0]), queue] = ranges
            elif key == DAMAGE:
                self.damage = decode_damage(value)

    # -- what was found --------------------------------------------------------------------

    def note_lost(self, key: QueueKey, start_offset: int, end_offset: int, reason: str) -> None:
        """Note that the messages from `start_offset` to before `end_offset` are damaged or gone.
        What is known already changes nothing."""
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
        """Note that the log is damaged from one physical offset to another, and that it is not
        known which messages that costs."""
        if start in self.damage or len(self.damage) >= MAX_RANGES:
            return
        self.counts[reason] += 1
        self._log(f"the log is damaged from {start} to {end} ({reason})")
        self.damage[start] = (end, reason)
        self._is_damage_changed = True
        self.changed()

    def note_file(self, fault: Fault) -> None:
        """Note what is wrong with a file as a whole, until the next start looks again."""
        if fault not in self.files and len(self.files) < MAX_RANGES:
            self.counts[fault.reason] += 1
            self._log(str(fault))
            self.files.append(fault)

    def note_mended(self, key: QueueKey, start_offset: int, end_offset: int) -> None:
        """Note that these messages can be read: somebody put their file back."""
        known = self.lost.get(key, ())
        left = without(known, start_offset, end_offset)
        if left != known:
            self.lost[key] = left
            self._changed_topics.add(key[0])
            self.changed()

    def forget_damage(self, start: int) -> None:
        """Forget a damaged place of the log: it is gone with its segment, or was mended."""
        if self.damage.pop(start, None) is not None:
            self._is_damage_changed = True
            self.changed()

    def _log(self, line: str) -> None:
        left_out = self._log_limit.admit(monotonic())
        if left_out is not None:
            more = f" (and {left_out} more places)" if left_out else ""
            _logger.error("damage: %s%s; run 'holdfast check'", line, more)

    # -- what is told and kept -------------------------------------------------------------

    def faults(
        self,
        topic_name: Callable[[int], str | None],
        min_offset: Callable[[QueueKey], int],
    ) -> list[Fault]:
        """Return what is damaged and still kept: `topic_name` is None for a topic that is gone,
        `min_offset` is where a queue begins."""
        found = list(self.files)
        for start, (end, reason) in sorted(self.damage.items()):
            found.append(Fault(reason, f"the log is damaged from {start} to {end}"))
        for key, ranges in sorted(self.lost.items()):
            name = STATE_TOPIC_NAME if key[0] == STATE_TOPIC_ID else topic_name(key[0])
            if name is None:
                continue
            begin = min_offset(key)
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
        """Return the records of the state that have changed since they were last taken."""
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
        """Have these changes taken again: they could not be stored."""
        for key in changes:
            kind, *rest = parse_key(key)
            if kind == "lost":
                self._changed_topics.add(int(rest[0]))
            else:
                self._is_damage_changed = True
