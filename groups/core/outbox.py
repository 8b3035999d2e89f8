"""What a group hands to its caller: rows to write, page notes and dead letters. Pure."""

import msgspec

from holdfast.groups.core.group_topic import DeadLetter, QueueLane
from holdfast.groups.core.members import MemberRule, Members
from holdfast.groups.cursor.cursor import NO_BOOT, Cursor
from holdfast.groups.cursor.leases import Grant
from holdfast.groups.cursor.rows import (
    ACTIVE,
    DeleteRange,
    Write,
    group_key,
    has_changes,
    key_prefix,
    take_writes,
)


class WriteBatch(msgspec.Struct):
    """The rows of one transaction, and what becomes true when they are durable."""

    #: How often the active member had changed when the rows were made.
    fencing_epoch: int = 0
    writes: list[Write | DeleteRange] = msgspec.field(default_factory=list)
    #: For each cursor: its epoch, the offset below which messages may be delivered once the rows
    #: are durable, and whether the rows record that there may be timed leases.
    reserves: dict[Cursor, tuple[int, int, bool]] = msgspec.field(default_factory=dict)
    #: Records of the progress page that are not needed once the rows are durable.
    ended_grants: list[Grant] = msgspec.field(default_factory=list)


class Outbox:
    """The changes of one group that its caller has not taken yet."""

    def __init__(self, group_id: int, activity: MemberRule, members: Members) -> None:
        self._group_id = group_id
        #: Its active member is written with the rows, except a bound member, which does not survive
        #: a restart.
        self.activity = activity
        self._members = members
        #: The active member as last written; None if it was not written.
        self.written_active: str | None = None
        #: The value of `activity.fencing_epoch` in the last commit. If it equals the current value,
        #: it is durable that the previous active member has lost its leases.
        self.durable_fencing_epoch = 0
        # Each dict is used as a set that keeps its order. Only this class may change them.
        self.lanes_with_rows: dict[QueueLane, None] = {}
        self.lanes_with_notes: dict[QueueLane, None] = {}
        """The lanes with changes for the progress page."""
        self.lanes_with_dead_letters: dict[QueueLane, None] = {}
        self.free_grants: list[Grant] = []
        """Records of the progress page that are no longer needed."""

    def add(self, lane: QueueLane) -> None:
        """Add the changes of a lane, if it has any."""
        if lane.dead_letters:
            self.lanes_with_dead_letters[lane] = None
        notes = lane.cursor.notes
        if notes.is_dirty or notes.leases:
            self.lanes_with_notes[lane] = None
        if has_changes(lane.cursor):
            self.lanes_with_rows[lane] = None

    def remove(self, lane: QueueLane) -> None:
        """Drop the changes of a lane that the group loses."""
        self.lanes_with_dead_letters.pop(lane, None)
        self.lanes_with_notes.pop(lane, None)
        self.lanes_with_rows.pop(lane, None)

    @property
    def has_writes(self) -> bool:
        """Whether `take_writes` would return rows."""
        return bool(self.lanes_with_rows) or self._active_to_write() != self.written_active

    def take_writes(self) -> WriteBatch:
        """Return all rows that changed since the last call, for one transaction."""
        batch = WriteBatch(self.activity.fencing_epoch)
        for lane in self.lanes_with_rows:
            prefix = key_prefix(self._group_id, *lane.key)
            batch.writes += take_writes(lane.cursor, prefix)
            cursor = lane.cursor
            has_timed = cursor.oldest_leased_boot != NO_BOOT
            batch.reserves[cursor] = cursor.epoch, cursor.reserved_next, has_timed
            batch.ended_grants += cursor.leases.ended_grants
            cursor.leases.ended_grants = []
        self.lanes_with_rows.clear()
        active = self._active_to_write()
        if active != self.written_active:
            value = None if active is None else active.encode()
            batch.writes.append(Write(ACTIVE, group_key(self._group_id), value))
            self.written_active = active
        return batch

    def _active_to_write(self) -> str | None:
        active = self.activity.active
        return None if active is None or self._members.is_bound(active) else active

    def mark_committed(self, batch: WriteBatch) -> None:
        """Record that a batch is durable."""
        self.durable_fencing_epoch = batch.fencing_epoch
        for cursor, (epoch, reserved_next, has_timed) in batch.reserves.items():
            cursor.may_lease_timed |= has_timed
            if cursor.epoch == epoch:
                cursor.reserved_durable = max(cursor.reserved_durable, reserved_next)
        self.free_grants += batch.ended_grants

    def take_lanes_with_notes(self) -> list[QueueLane]:
        """Return the lanes with changes for the progress page since the last call."""
        lanes = [lane for lane in self.lanes_with_notes if lane.cursor.notes]
        self.lanes_with_notes.clear()
        return lanes

    def take_free_grants(self) -> list[Grant]:
        """Return the page records of leases whose end is committed to the disk."""
        grants, self.free_grants = self.free_grants, []
        return grants

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages to append to the dead-letter topic. Each is returned by one call
        only."""
        letters = []
        for lane in self.lanes_with_dead_letters:
            letters += lane.dead_letters
            lane.dead_letters = []
        self.lanes_with_dead_letters.clear()
        return letters
