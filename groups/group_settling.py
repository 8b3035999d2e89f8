"""What a group does with receipts and dead letters. Pure.

What becomes of each receipt by itself is settling.py's; here it is told to the whole group.
"""

from collections.abc import Sequence

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups import settling
from holdfast.groups.asking import Pick
from holdfast.groups.group_configuring import GroupConfiguring
from holdfast.groups.lane import DeadLetter, Lane
from holdfast.groups.settling import Status, Terms, Verb
from holdfast.groups.standing import Receipt


class GroupSettling(GroupConfiguring):
    """What members say of their messages."""

    def settle(
        self,
        verb: Verb,
        receipts: Sequence[Receipt | None],
        now_ms: int,
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        used_ms: float | None = None,
        cumulative: bool = False,
    ) -> list[Status]:
        """Settle each receipt; None stands for one that could not be read. Durable once
        `take_writes` is. `used_ms`: how long each message was worked on, if that is known."""
        terms = Terms(verb, now_ms, self._lease_ms(lease_ms), delay_ms, cumulative)
        touched: dict[Lane, None] = {}
        statuses = [self._settle(receipt, terms, used_ms, touched) for receipt in receipts]
        for lane in touched:
            self._touch(lane)
        return statuses

    def unreadable(self, picks: Sequence[Pick], now_ms: int) -> None:
        """What was picked cannot be read any more: it is settled, and counted as lost."""
        self.settle(Verb.ACK, [pick.receipt for pick in picks if pick.receipt is not None], now_ms)
        for pick in picks:
            lane = self._lane(pick.queue)
            if lane is not None:
                lane.cursor.count_lost()
                self._touch(lane)

    def take_dead_letters(self) -> list[DeadLetter]:
        """Return the messages that are to be appended to the dead letters, each once."""
        letters = []
        for lane in self._mourning:
            letters += lane.dead_letters
            lane.dead_letters = []
        self._mourning.clear()
        return letters

    def dead_lettered(self, key: QueueKey, offset: int, position: int) -> bool:
        """A dead letter is durable at `position`. False: it was not waited for."""
        lane = self._lane(key)
        if lane is None or not lane.dead_lettered(offset, position):
            return False
        self._touch(lane)
        return True

    # -- inside ------------------------------------------------------------------------------

    def _settle(
        self,
        receipt: Receipt | None,
        terms: Terms,
        used_ms: float | None,
        touched: dict[Lane, None],
    ) -> Status:
        """Settle one receipt. What is kept of its lane is brought up to date once for all that
        are settled together: the lane is among the `touched` then."""
        if receipt is None or receipt.group_id != self.group_id:
            return Status.INVALID
        lane = self._lane((receipt.topic_id, receipt.queue))
        if lane is None:
            return Status.STALE
        if (first := lane.cursor.leases.next_deadline()) is not None and first <= terms.now_ms:
            self._run_out(lane, terms.now_ms)
        leases_before, active = len(lane.cursor.leases), self.activity.active
        status, ended = settling.settle(lane, self.activity, receipt, terms)
        adopted = len(lane.cursor.leases) - leases_before + len(ended)
        if adopted:
            self.in_flight.add(receipt.member)
        if status is Status.DONE:
            until = terms.now_ms + terms.lease_ms if terms.verb is Verb.EXTEND else 0
            self.members.seen(receipt.member, terms.now_ms, until)
            self._ended(lane.key[0], ended, terms.now_ms, used_ms)
            if terms.verb in (Verb.NACK, Verb.RELEASE) or self.config.mode == "keyed":
                self._happened(lane)
        # Judging it may have settled unwanted messages on the way, whatever came of it.
        touched[lane] = None
        if self.activity.active != active:  # it has proven itself after a restart
            self._stir_all()
        return status
