"""Topics, kept and lost ranges and groups' offsets as the log itself has them: its newest snapshot,
and the changes noted after it."""

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.errors import CorruptBatch
from holdfast.consumequeue.state_records import (
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
from holdfast.consumequeue.state_replay import StateReplay
from holdfast.consumequeue.topics import STATE_TOPIC_ID, Topic
from holdfast.spark.errors import FilesUnreadable
from holdfast.spark.files.log_files import LogFiles

_QUEUE = 0
_FOR_EVER = 2**62


class LogState:
    """The records. `refresh` after the log was; the rest tells what they say."""

    def __init__(self, path: str, log: LogFiles) -> None:
        self._path = path
        self._log = log
        self._replay = StateReplay()
        self._following: int | None = None
        """The offset in the state's queue to go on from, None before the first look."""

    @property
    def records(self) -> dict[bytes, bytes]:
        """Every record by its key."""
        return self._replay.records

    def refresh(self) -> None:
        """Take what was noted since the last look. Raises FilesUnreadable where damage leaves it
        open which topics and offsets there are; OSError passes through."""
        if self._following is not None:
            try:
                self._following = self._apply(self._replay, self._following)
                return
            except CorruptBatch:
                pass  # perhaps a snapshot follows the damage
        self._replay, self._following = self._from_newest_snapshot()

    def _from_newest_snapshot(self) -> tuple[StateReplay, int]:
        """Return the records read from as far back as they must be, and where they end."""
        damage: CorruptBatch | None = None
        begins = [
            segment.blocks.queues(STATE_TOPIC_ID)[_QUEUE][0]
            for segment in self._log.segments
            if _QUEUE in segment.blocks.queues(STATE_TOPIC_ID)
        ]
        for begin in reversed(begins):
            replay = StateReplay()
            try:
                following = self._apply(replay, begin)
            except CorruptBatch as error:
                damage = error
                continue
            # A log that has its beginning has every change from the first on.
            if replay.has_snapshot or begin == 0:
                return replay, following
        if damage is None and not begins and self._has_beginning():
            return StateReplay(), 0
        found = "no whole snapshot of them" if damage is None else str(damage)
        reason = f"the log does not tell its topics and stored offsets: {found}"
        raise FilesUnreadable(self._path, reason)

    def _has_beginning(self) -> bool:
        segments = self._log.segments
        return bool(segments) and segments[0].file.start_offset == 0

    def _apply(self, replay: StateReplay, start: int) -> int:
        """Apply what is noted from this offset on; return where it ends. Raises CorruptBatch."""
        following = start
        for segment, rows in self._log.rows(STATE_TOPIC_ID, _QUEUE, start, _FOR_EVER):
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

    # -- what they say -----------------------------------------------------------------------

    def topics(self) -> list[str]:
        """Return the names of all topics, sorted."""
        keys = map(parse_key, self.records)
        return sorted(parts[1] for parts in keys if parts[0] == "topic")

    def topic(self, name: str) -> Topic | None:
        """Return a topic, None if there is none of this name. Raises FilesUnreadable."""
        value = self.records.get(topic_key(name))
        try:
            return None if value is None else decode_topic(name, value)
        except MalformedRecord as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def kept(self, topic_id: int) -> dict[int, int]:
        """Return where a topic's queues begin; one that is not named begins at 0."""
        value = self.records.get(kept_key(topic_id))
        try:
            return {} if value is None else decode_kept(value)
        except MalformedRecord as error:
            raise FilesUnreadable(self._path, str(error)) from error

    def lost_ends(self, topic_id: int) -> dict[int, int]:
        """Return up to where queues have lost messages: no lost offset is given out again."""
        value = self.records.get(lost_key(topic_id))
        try:
            lost = {} if value is None else decode_lost(value)
        except MalformedRecord as error:
            raise FilesUnreadable(self._path, str(error)) from error
        return {queue: ranges[-1].end_offset for queue, ranges in lost.items() if ranges}

    def offsets(self, group: str, topic_id: int) -> StoredOffsets | None:
        """Return a group's stored offsets on a topic, None when there is no such group."""
        value = self.records.get(offsets_key(group, topic_id))
        try:
            if value is not None:
                return decode_offsets(value)
        except MalformedRecord as error:
            raise FilesUnreadable(self._path, str(error)) from error
        keys = map(parse_key, self.records)
        known = any(
            parts[0] in {"offsets", "group"} and len(parts) > 1 and parts[1] == group
            for parts in keys
        )
        return StoredOffsets() if known else None
