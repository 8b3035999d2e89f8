"""The state in the log: topics, kept and lost ranges, and groups' offsets. It is read from the
newest snapshot of the state in the log, and from the changes after this snapshot."""

from collections.abc import Callable
from typing import TypeVar

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.state.records import (
    MalformedRecord,
    StoredOffsets,
    decode_kept,
    decode_lost,
    decode_offsets,
    decode_topic,
    kept_key,
    lost_key,
    offsets_key,
    parse_key,
    topic_key,
)
from holdfast.consumequeue.state.replay import StateReplay
from holdfast.consumequeue.topics import STATE_TOPIC_ID, Topic
from holdfast.log_files.errors import FilesUnreadable
from holdfast.log_files.log_files import LogFiles

_Record = TypeVar("_Record")

_QUEUE = 0
_MAX_OFFSET = 2**62


class LogState:
    """The state records as of the last `refresh`. Callers must first refresh `log`."""

    def __init__(self, path: str, log: LogFiles) -> None:
        self._path = path
        self._log = log
        self._replay = StateReplay()
        self._following: int | None = None
        """The next offset to read in the state's queue; None before the first refresh."""

    @property
    def records(self) -> dict[bytes, bytes]:
        return self._replay.records

    def refresh(self) -> None:
        """Read the records since the last refresh. Raises FilesUnreadable if damage makes the
        topics and offsets uncertain; OSError passes through."""
        if self._following is not None:
            try:
                self._following = self._apply(self._replay, self._following)
                return
            except CorruptBatch:
                pass  # there may be a snapshot after the damage
        self._replay, self._following = self._from_newest_snapshot()

    def _from_newest_snapshot(self) -> tuple[StateReplay, int]:
        """Return the records from the newest snapshot on, and the offset after the last record."""
        damage: CorruptBatch | None = None
        begins = [
            queues[_QUEUE][0]
            for segment in self._log.segments
            if _QUEUE in (queues := segment.blocks.queues(STATE_TOPIC_ID))
        ]
        for begin in reversed(begins):
            replay = StateReplay()
            try:
                following = self._apply(replay, begin)
            except CorruptBatch as error:
                damage = error
                continue
            # From offset 0 on, the queue of the state has every change, even without a snapshot.
            if replay.has_snapshot or begin == 0:
                return replay, following
        if damage is None and not begins and self._has_beginning():
            return StateReplay(), 0
        found = "there is no complete snapshot" if damage is None else str(damage)
        reason = f"the state in the log (topics, stored offsets) cannot be read: {found}"
        raise FilesUnreadable(self._path, reason)

    def _has_beginning(self) -> bool:
        segments = self._log.segments
        return bool(segments) and segments[0].file.start_offset == 0

    def _apply(self, replay: StateReplay, start: int) -> int:
        """Apply the records from offset `start` on, and return the offset after the last record.
        Raises CorruptBatch."""
        following = start
        for segment, rows in self._log.rows(STATE_TOPIC_ID, _QUEUE, start, _MAX_OFFSET):
            for row in rows:
                place, base = int(row["physical_offset"]), int(row["base_offset"])
                batch = Batch.decode(segment.file.read(place, int(row["size"])))
                header = batch.header
                if (header.physical_offset, header.topic_id) != (place, STATE_TOPIC_ID):
                    raise CorruptBatch("misplaced", f"the block at {place}")
                if base < following:
                    continue
                replay.apply(batch)
                following = header.end_offset
        return following

    # -- look-ups -------------------------------------------------------------------------

    def topics(self) -> list[str]:
        keys = map(parse_key, self.records)
        return sorted(parts[1] for parts in keys if parts[0] == "topic")

    def topic(self, name: str) -> Topic | None:
        """Return a topic, or None if it does not exist. Raises FilesUnreadable."""
        return self._decode(topic_key(name), lambda value: decode_topic(name, value))

    def first_offsets(self, topic_id: int) -> dict[int, int]:
        """Return the first offset that retention keeps in each queue of a topic. A queue that is
        not listed begins at 0."""
        return self._decode(kept_key(topic_id), decode_kept) or {}

    def lost_ends(self, topic_id: int) -> dict[int, int]:
        """Return the end of the last lost range of each queue. Lost offsets are never assigned
        again, so a queue's end is never lower."""
        lost = self._decode(lost_key(topic_id), decode_lost) or {}
        return {queue: ranges[-1].end_offset for queue, ranges in lost.items() if ranges}

    def offsets(self, group: str, topic_id: int) -> StoredOffsets | None:
        """Return a group's stored offsets on a topic, or None if the group does not exist."""
        stored = self._decode(offsets_key(group, topic_id), decode_offsets)
        if stored is not None:
            return stored
        keys = map(parse_key, self.records)
        known = any(
            parts[0] in {"offsets", "group"} and len(parts) > 1 and parts[1] == group
            for parts in keys
        )
        return StoredOffsets() if known else None

    def _decode(self, key: bytes, decode: Callable[[bytes], _Record]) -> _Record | None:
        """Return a decoded record, or None if there is none. Raises FilesUnreadable."""
        value = self.records.get(key)
        try:
            return None if value is None else decode(value)
        except MalformedRecord as error:
            raise FilesUnreadable(self._path, str(error)) from error
