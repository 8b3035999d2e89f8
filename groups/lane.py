"""One queue of a group: its cursor and the selection over it, kept in step. Pure.

Whatever ends a lease goes through here, so that the selection hears of it, messages that are too
old are not offered again, and what failed too often becomes a dead letter. Calls return the
leases that they ended.
"""

from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupConfig
from holdfast.groups.cursor import Cursor, End, State
from holdfast.groups.heads import Head, HeadSource
from holdfast.groups.key_order import ByKey
from holdfast.groups.leases import Lease
from holdfast.groups.rows import NOT_KEPT, REJECTED
from holdfast.groups.selection import InOrder, QueueView, Selection


class DeadLetter(NamedTuple):
    """A message to be appended to the dead letters, once: a repeat is known by `letter_id`."""

    letter_id: str
    queue: QueueKey
    offset: int
    failures: int
    is_rejected: bool


class Lane:
    """One (group, queue)."""

    def __init__(
        self,
        group_id: int,
        key: QueueKey,
        cursor: Cursor,
        source: HeadSource,
        config: GroupConfig,
        filter: object | None,
        touched: Callable[["Lane"], None],
    ) -> None:
        """`touched` is called when looking for a message has settled others on the way."""
        self.group_id = group_id
        self.key = key
        self.cursor = cursor
        self.config = config
        self.dead_letters: list[DeadLetter] = []
        #: Kept by the group: what it counted here, and the timer it set.
        self.counted = 0
        self.timer: int | None = None
        self.is_listed = False
        self._touched = touched
        self.view = QueueView(cursor, key, source)
        self.view.filter = filter
        self.selection = self._new_selection()
        for offset in sorted(cursor.dying):
            self._bury_or_send(offset)

    # -- deliveries --------------------------------------------------------------------------

    def peek(self, member: str, filter: object | None, now_ms: int) -> Head | None:
        """Return the message that a member would get next from this queue. Raises NeedsRead."""
        settled = self.cursor.done.count_all
        try:
            return self.selection.peek(member, filter, now_ms)
        finally:
            if self.cursor.done.count_all != settled:
                self._touched(self)

    def known(self, filter: object | None, now_ms: int, most: int) -> list[Head]:
        """Return what `peek` would offer next, each once the one before is taken: at most `most`,
        and no more than can be told without a look at the queue."""
        return self.selection.known(filter, now_ms, most)

    def take(
        self, heads: Sequence[Head], member: str, deadline_ms: int, now_ms: int, charge: int
    ) -> list[Lease]:
        """Lease messages as they were offered."""
        leases = self.cursor.lease(heads, member, deadline_ms, now_ms, charge)
        self.selection.took(heads, member)
        return leases

    def take_settled(self, heads: Sequence[Head], member: str) -> None:
        """Settle messages as they were offered, as they are sent."""
        for head in heads:
            self.cursor.reach(head.offset)
            self.cursor.finish(head.offset, End.ACKED)
        self.selection.took(heads, member)

    # -- ends --------------------------------------------------------------------------------

    def finish(self, offset: int, end: End, number: int) -> list[Lease]:
        """Settle an undone offset for good."""
        lease = self.cursor.leases.get(offset)
        self.cursor.finish(offset, end, number)
        self.selection.settled(offset)
        return [] if lease is None else [lease]

    def give_back(
        self, offset: int, end: End, number: int, now_ms: int, ready_at_ms: int = 0
    ) -> list[Lease]:
        """End a lease, live or of before a restart, without settling its message."""
        lease = self.cursor.leases.get(offset)
        ended = [] if lease is None else [lease]
        if lease is not None and end is not End.REJECTED and _is_too_old(lease.head, now_ms):
            self.cursor.drop_expired(offset)
            self.selection.settled(offset)
            return ended
        state = self.cursor.give_back(
            offset,
            end,
            number,
            ready_at_ms=ready_at_ms,
            most_failures=self.config.max_attempts,
        )
        if state is State.DYING:
            self.selection.settled(offset)
            self._bury_or_send(offset)
            return ended
        return ended + self._revoke(self.selection.returned(offset), now_ms)

    def reject_late(self, offset: int, number: int) -> None:
        """Reject an available message whose lease had ended."""
        self.cursor.reject_late(offset, number)
        self.selection.settled(offset)
        self._bury_or_send(offset)

    def adopt(self, offset: int, member: str, number: int, deadline_ms: int, now_ms: int) -> None:
        """Make a lease of before the restart a live one."""
        self.cursor.adopt(Head(offset), member, number, deadline_ms, now_ms)
        self.selection.adopted(offset, member)

    def dead_lettered(self, offset: int, position: int) -> bool:
        """The message is durable among the dead letters. False: it was not waited for."""
        if offset not in self.cursor.dying:
            return False
        self.cursor.bury(offset, position)
        return True

    # -- time, log and operators -------------------------------------------------------------

    def next_deadline(self) -> int | None:
        """Return when to call `tick`; None: nothing is waited for."""
        cursor = self.cursor
        times = (
            cursor.leases.next_deadline(),
            cursor.delays.next_ready(),
            cursor.grace_end_ms if cursor.grace_bound else None,
        )
        return min((each for each in times if each is not None), default=None)

    def tick(self, now_ms: int) -> list[Lease]:
        """End what has run out by now: leases, delays, the grace of old leases."""
        cursor, ended = self.cursor, []
        for lease in cursor.leases.due(now_ms):
            if cursor.leases.get(lease.head.offset) is lease:
                ended += self.give_back(lease.head.offset, End.EXPIRED, lease.number, now_ms)
        for offset in cursor.delays.take_ready(now_ms):
            ended += self._revoke(self.selection.returned(offset), now_ms)
        if cursor.grace_bound and cursor.grace_end_ms <= now_ms:
            cursor.end_grace()
            ended += self._revoke(self.selection.grace_over(), now_ms)
        return ended

    def arrived(self, end: int) -> bool:
        """The queue reaches to `end` durably. False: that was known."""
        if end <= self.cursor.end:
            return False
        self.cursor.end = end
        return True

    def trim(self, log_start: int) -> list[Lease]:
        """The log begins at `log_start` now."""
        floor = self.cursor.floor
        ended = self.cursor.trim(log_start)
        if self.cursor.floor != floor:
            self.selection.reset()
            self.dead_letters = [each for each in self.dead_letters if each.offset >= log_start]
        return ended

    def seek(self, target: int) -> None:
        """Start again at an offset; every receipt is stale."""
        self.cursor.seek(target)
        self.selection.reset()
        self.dead_letters.clear()

    def configure(self, config: GroupConfig) -> None:
        """Change the settings; what was dying goes where it was to go."""
        before, self.config = self.config, config
        if (config.mode, config.max_in_flight_per_key) != (
            before.mode,
            before.max_in_flight_per_key,
        ):
            self.selection = self._new_selection()

    def set_filter(self, filter: object | None) -> None:
        """Change what the group wants; what was passed over stays so."""
        self.view.filter = filter
        self.selection.reset()

    def letter(self, offset: int) -> DeadLetter:
        """Return a dying message as a dead letter."""
        failures = self.cursor.dying[offset]
        topic_id, queue = self.key
        letter_id = f"{self.group_id:08X}{topic_id:08X}{queue:08X}{offset:016X}"
        is_rejected = failures == REJECTED
        if is_rejected:
            failures = self.cursor.failures(offset)
        return DeadLetter(letter_id, self.key, offset, failures, is_rejected)

    # -- inside ------------------------------------------------------------------------------

    def _new_selection(self) -> Selection:
        if self.config.mode == "keyed":
            return ByKey(self.view, self.config.max_in_flight_per_key)
        return InOrder(self.view)

    def _revoke(self, offsets: Iterable[int], now_ms: int) -> list[Lease]:
        ended = []
        for offset in offsets:
            lease = self.cursor.leases.get(offset)
            if lease is not None:
                ended += self.give_back(offset, End.REVOKED, lease.number, now_ms)
        return ended

    def _bury_or_send(self, offset: int) -> None:
        if self.config.has_dead_letters:
            self.dead_letters.append(self.letter(offset))
        else:
            self.cursor.bury(offset, NOT_KEPT)


def _is_too_old(head: Head, now_ms: int) -> bool:
    return 0 < head.expires_at_ms <= now_ms
