"""A group with members, a log and a disk that crash, compared with a model: a dict entry per
offset.

The broker stops in order, is killed, or loses its power. After a stop all state is unchanged: the
end of each lease, delays, attempts, failures, the active member, and the answers to repeated
requests and settlements. After a kill the same holds, except for uncommitted changes. After a power
loss, messages that may have a timed lease wait as long as a lease can last. Bound leases end with
every stop of the broker.

`World` has one method for each kind of step. All random choices come from its `rng`, so a seed
determines a whole history. After each step the model must agree, and no request may be waiting for
available messages.
"""

import random
import shutil
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from itertools import pairwise
from pathlib import Path
from tempfile import mkdtemp
from typing import cast
from weakref import finalize

import msgspec

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import Cost, Engine, GroupConfig, Mode
from holdfast.groups.core.group import Group
from holdfast.groups.core.members import OneActive
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.core.receiving import receive, serve
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.core.settling import Status, Verb, settle
from holdfast.groups.cursor.cursor import BOOT_SHIFT, NO_BOOT, Cursor, State
from holdfast.groups.cursor.heads import UNKNOWN_SIZE
from holdfast.groups.cursor.leases import NO_DEADLINE, OVER
from holdfast.groups.cursor.rows import key_prefix, restore
from holdfast.groups.errors import ExclusiveHeld
from holdfast.groups.storage.progress_page import ProgressPage
from tests.groups.pages import abandon
from tests.groups.queues import Disk, Message, Queues

MEMBERS = ("a", "b", "c", "d")
LEASE_MS = 5_000
MAX_ATTEMPTS = 4
#: A folder in memory, where the pages of many restarts cost no disk writes.
SHARED_MEMORY = "/dev/shm" if Path("/dev/shm").is_dir() else None


@dataclass(slots=True)
class OffsetModel:
    """The model's state of one offset that is not done."""

    state: State = State.AVAILABLE
    failures: int = 0
    acquisitions: int = 0
    ready_at: int = 0
    #: The current lease.
    number: int = 0
    member: str = ""
    deadline: int = 0
    #: The last lease that ended, and the settlement that ended it.
    last: int = 0
    by: Verb | None = None
    is_rejected: bool = False
    #: Whether the last lease was revoked.
    was_revoked: bool = False
    #: Whether the lease is from before a power loss: the broker does not know its message.
    is_adopted: bool = False


@dataclass(slots=True)
class QueueModel:
    """The model of one queue. Offsets below `end` that are not in `entries` are untouched."""

    end: int = 0
    log_start: int = 0
    start: int = 0
    epoch: int = 1
    entries: dict[int, OffsetModel] = field(default_factory=dict)
    done: set[int] = field(default_factory=set)
    #: The settlement of done offsets; an offset without an entry is no longer known.
    settled: dict[int, tuple[int, Verb]] = field(default_factory=dict)
    grace_end: int = 0
    #: Offsets below this one may have been delivered before the last restart.
    seen_below: int = 0
    oldest_boot: int = 0
    #: The same for the next power loss; NO_BOOT if there was no timed lease yet.
    oldest_leased_boot: int = NO_BOOT
    #: The value in the row.
    row_boot: int = NO_BOOT
    #: The boot in which the last grace period began.
    grace_boot: int = 0
    max_sent: int = -1
    #: The last lease of each offset that was recorded in the page: number, member, end, attempt,
    #: and whether its message is unknown.
    noted: dict[int, tuple[int, str, int, int, bool]] = field(default_factory=dict)

    def copy(self) -> "QueueModel":
        entries = {offset: replace(entry) for offset, entry in self.entries.items()}
        settled = {at: each for at, each in self.settled.items() if each[0] > 0}
        return replace(
            self, entries=entries, done=set(self.done), settled=settled, noted=dict(self.noted)
        )

    def entry(self, offset: int) -> OffsetModel:
        return self.entries.setdefault(offset, OffsetModel())

    def state(self, offset: int) -> State:
        if offset < self.start or offset in self.done:
            return State.DONE
        entry = self.entries.get(offset)
        return State.AVAILABLE if entry is None else entry.state

    def finish(self, offset: int) -> None:
        self.entries.pop(offset, None)
        self.done.add(offset)
        while self.start in self.done:
            self.done.remove(self.start)
            self.start += 1


class World:
    """See the module. `checks` counts comparisons, so that a run without comparisons is noticed."""

    def __init__(
        self,
        seed: int,
        *,
        mode: str = "competing",
        engine: str = "sfq",
        cost: str = "count",
        strict: bool = False,
        make_group: type[Group] = Group,
        share_bound: float = 0.3,
        last_value: bool = False,
    ) -> None:
        """`share_bound` is the share of requests that ask for bound leases."""
        self.make_group = make_group
        self.share_bound = share_bound
        self.rng = random.Random(seed)
        #: For the choices about bound leases, so that a history without them is always the same.
        self.bound_rng = random.Random(~seed)
        self.config = GroupConfig(
            mode=cast(Mode, mode),
            engine=cast(Engine, engine),
            cost=cast(Cost, cost),
            lease_ms=LEASE_MS,
            longest_lease_ms=2 * LEASE_MS,
            max_in_flight=40,
            max_in_flight_per_member=25,
            max_in_flight_per_key=self.rng.choice([1, 2, 32]),
            max_attempts=MAX_ATTEMPTS,
            backoff_ms=(0, 700, 3_000),
            has_dead_letters=self.rng.random() < 0.7,
            strict_leases=strict,
            member_ttl_ms=8_000,
            last_value=last_value,
        )
        #: The number of different keys; messages with the key 0 have none.
        self.key_count = 25 if last_value else 6
        #: The offsets that were superseded at any time: a power loss may remove the later message.
        self.superseded: set[tuple[QueueKey, int]] = set()
        # Q24: the same must hold with and without priorities in one group.
        self.levels = {1: 1, 2: self.rng.choice([2, 3]), 3: 1}
        self.weights = {1: 3, 2: 1, 3: 0}
        queue_counts = {1: 2, 2: self.levels[2], 3: 1}
        self.keys = [(t, q) for t, count in queue_counts.items() for q in range(count)]
        self.filters: dict[int, str | None] = {1: None, 2: self.rng.choice([None, "x"]), 3: None}
        self.queues = Queues(step=self.rng.choice([1, 7, 1000]))
        self.queues.messages = {key: [] for key in self.keys}
        self.models = {key: QueueModel() for key in self.keys}
        self.disk = Disk()
        self.saved = {key: model.copy() for key, model in self.models.items()}
        self.now = 1_000_000
        self.boot = 0
        self.receipts: list[Receipt] = []
        self.ticket = 0
        self.last = "start"
        self.sent_settled: set[tuple[QueueKey, int, int]] = set()
        #: The leases at a power loss, by their messages: epoch and number.
        self.lost_leases: dict[tuple[QueueKey, int], tuple[int, int]] = {}
        #: The share of steps after which all offsets are compared. With 1.0 a fault is found at its
        #: step.
        self.share_compared = 1.0
        #: The last start after which all offsets were compared.
        self.compared_boot = 0
        #: The last offset of each queue that had a timed lease at a power loss.
        self.must_wait: dict[QueueKey, int] = {}
        self.checks = self.deliveries = self.crashes = self.rescues = self.stops = 0
        self.bound_deliveries = self.adjacent_acks = 0
        self.repeated = 0
        #: Requests that may be repeated, with their answers and times.
        self.asked: list[tuple[ReceiveRequest, list[SelectedMessage], int]] = []
        self.saved_active: str | None = None
        self.machine_boot = 1
        directory = Path(mkdtemp(dir=SHARED_MEMORY))
        self.path = directory / "page"
        self.pages: list[ProgressPage] = []
        finalize(self, _clean_up, directory, self.pages)
        self.start(is_trusted=False)

    # -- the broker --------------------------------------------------------------------------

    def start(self, *, is_trusted: bool, cut: frozenset[QueueKey] = frozenset()) -> None:
        self.boot += 1
        self.page = ProgressPage(self.path, self.machine_boot.to_bytes(16, "big"))
        self.pages[:] = [self.page]
        assert self.page.is_trusted == is_trusted
        self.group = self.make_group(7, self.config, self.queues)
        for topic_id, weight in self.weights.items():
            levels, filter = self.levels[topic_id], self.filters[topic_id]
            self.group.add_topic(topic_id, weight=weight, levels=levels, filter=filter)
        for key in self.keys:
            model = self.models[key]
            stored = self.disk.stored(key_prefix(7, *key))
            pages = self.page.found.get((7, *key), {}) if is_trusted else {}
            if stored is None:
                cursor = Cursor(boot=self.boot, floor=model.log_start, end=model.end)
                cursor.changes.is_cursor_dirty = True
                assert self.boot == 1
            else:
                cursor = restore(
                    stored,
                    boot=self.boot,
                    end=model.end,
                    log_start=model.log_start,
                    now_ms=self.now,
                    longest_lease_ms=self.config.longest_lease_ms,
                    most_failures=MAX_ATTEMPTS,
                    page=pages.get(stored.row.epoch),
                    is_log_cut=key in cut,
                )
            self.check_restart(key, cursor, key in cut, is_trusted=is_trusted)
            self.group.add_queue(key, cursor)
        active = self.disk.active(7)
        assert active == self.saved_active
        self.claimed = active
        if active is not None:  # R3
            self.group.resume(active, self.now)
            for key in self.keys:
                self.end_leases(key, lambda offset, entry: entry.member != active)
        self.commit()
        self.page.begin({(7, *key): self.cursor(key) for key in self.keys})
        self.expire_models()
        self.group.tick(self.now)
        for key in self.keys:
            self.drop_dying_without_letters(key)
        self.serve_and_compare()

    def active_to_restore(self) -> str | None:
        """Return the member that is active again after a restart: a bound member is not."""
        active = self.group.activity.active
        return None if active is not None and self.group.members.is_bound(active) else active

    def cursor(self, key: QueueKey) -> Cursor:
        return self.group.topics[key[0]].lanes[key[1]].cursor

    def check_restart(
        self, key: QueueKey, cursor: Cursor, is_cut: bool, *, is_trusted: bool
    ) -> None:
        """Update the model for a restart, and compare the cursor with it."""
        model = self.models[key]
        assert cursor.next > model.max_sent or model.max_sent >= model.end, "delivered, not noted"
        if cursor.epoch != model.epoch:
            assert is_cut
            self.sent_settled |= {  # the remaining log is unchanged
                (key, cursor.epoch, offset)
                for sent, epoch, offset in self.sent_settled
                if (sent, epoch) == (key, model.epoch) and offset < model.end
            }
            model.epoch = cursor.epoch
            model.settled, model.noted = {}, {}
        had_timed = model.row_boot != NO_BOOT
        if not is_trusted and not is_cut:
            assert had_timed or not cursor.grace_bound
            assert cursor.grace_bound > self.must_wait.get(key, -1)
        is_trusted = is_trusted and not is_cut
        model.settled = {at: each for at, each in model.settled.items() if each[0] > 0}
        if not is_trusted:
            model.seen_below = cursor.next
        is_grace_kept = is_trusted and model.grace_end > self.now
        model.grace_end = cursor.grace_end_ms if cursor.grace_bound else 0
        if not is_trusted:
            model.oldest_boot = model.row_boot
            if cursor.grace_bound:
                model.grace_boot = self.boot
        model.oldest_leased_boot = self.boot if had_timed else NO_BOOT
        for offset, entry in list(model.entries.items()):
            entry.number = 0
            if entry.is_rejected:
                entry.failures = 0  # the row records the rejection instead
            if entry.state is State.DELAYED and entry.ready_at > self.now:
                continue
            if entry.state is State.GRACE and is_grace_kept:
                continue
            if entry.state is not State.DYING:
                entry.state = State.AVAILABLE
            if entry == OffsetModel() or offset >= model.end:
                del model.entries[offset]
        if is_trusted:
            self.restore_leases(model)
            least = max(model.row_boot if had_timed else 0, model.grace_boot)
            leases = [
                each
                for each in model.entries.values()
                if each.state is State.LEASED and each.deadline != OVER
            ]
            boots = [model.oldest_leased_boot, *(each.number >> BOOT_SHIFT for each in leases)]
            model.oldest_leased_boot = min(boot for boot in boots if boot >= least)
            self.revoke_overtaken(key)
            return
        model.noted = {}
        if cursor.grace_bound:
            for offset in range(model.start, cursor.grace_bound):
                if model.state(offset) is State.AVAILABLE:
                    model.entry(offset).state = State.GRACE
        for offset in range(model.start, model.end):
            if offset in cursor.done and model.state(offset) is not State.DONE:
                self.record_done(key, offset)

    def restore_leases(self, model: QueueModel) -> None:
        """R1: exactly the earlier leases exist, each with its own end."""
        latest = self.now + self.config.longest_lease_ms
        for offset, (number, member, deadline, attempt, is_adopted) in model.noted.items():
            if offset >= model.end or model.state(offset) in (State.DONE, State.DYING):
                continue
            entry = model.entry(offset)
            if attempt > entry.acquisitions:  # otherwise the lease had ended
                entry.state, entry.number, entry.member = State.LEASED, number, member
                deadline = OVER if deadline == NO_DEADLINE else min(deadline, latest)
                entry.deadline, entry.is_adopted = deadline, is_adopted
                entry.acquisitions = attempt - 1

    def revoke_overtaken(self, key: QueueKey) -> None:
        """I11: revoke leases that the release of an earlier message of their key also returned.

        A message that is too old is available too, until it is examined. A later message of the key
        that was leased after it stays leased: that was possible only because this one was dropped
        before the kill.
        """
        newest: dict[int, int] = {}
        for offset, entry in sorted(self.models[key].entries.items()):
            if self.config.mode == "keyed" and entry.state is State.LEASED:
                mine, number = self.key_number(key, offset), entry.number
                if number < newest.get(mine, 0):
                    self.end_lease(key, offset, None, is_restart=True)
                newest[mine] = max(newest.get(mine, 0), number)

    def record_done(self, key: QueueKey, offset: int) -> None:
        """Record that the group settled an offset itself when it examined it.

        It may do so for a message that was settled when sent, is unwanted, or is too old.
        """
        model = self.models[key]
        was_sent = (key, model.epoch, offset) in self.sent_settled
        was_superseded = (key, offset) in self.superseded
        assert was_sent or was_superseded or self.is_useless(key, offset), (key, offset)  # I7, I14
        model.finish(offset)
        model.settled[offset] = -1, Verb.ACK

    def note_pages(self) -> None:
        """Do the service's work in the loop iteration of a change."""
        for lane in self.group.outbox.take_lanes_with_notes():
            model = self.models[lane.key]
            for lease in (each for row in lane.cursor.notes.leases for each in row):
                offset = lease.head.offset
                if lane.cursor.leases.get(offset) is lease:
                    is_unknown = lease.head.size_bytes == UNKNOWN_SIZE
                    end = lease.number, lease.member, lease.deadline_ms, lease.attempt
                    model.noted[offset] = *end, is_unknown
            self.page.note((7, *lane.key), lane.cursor)
        self.page.write()
        self.page.free(self.group.outbox.take_free_grants())

    def commit(self) -> None:
        self.note_pages()
        batch = self.group.outbox.take_writes()
        self.disk.write(batch.writes)
        self.group.outbox.mark_committed(batch)
        self.saved_active = self.active_to_restore()
        for key, model in self.models.items():
            if not self.cursor(key).grace_bound:
                model.grace_end = 0
            model.row_boot = model.oldest_boot if model.grace_end else model.oldest_leased_boot
        self.saved = {key: model.copy() for key, model in self.models.items()}

    def stop(self) -> None:
        """Stop the broker in order; its state must not change."""
        self.stops += 1
        self.commit()
        nexts = {key: self.cursor(key).next for key in self.keys}
        active = self.active_to_restore()
        self.page.close()
        if self.rng.random() < 0.5:
            self.machine_boot += 1
        self.now += self.rng.choice([0, 100, 2 * LEASE_MS])
        self.start(is_trusted=True)
        assert self.group.activity.active == active
        for key in self.keys:
            assert self.cursor(key).next >= nexts[key]

    def crash(self) -> None:
        """Kill the broker: the page survives, or the power fails, which may remove the log's
        tail."""
        self.crashes += 1
        if self.rng.random() < 0.8:
            self.note_pages()
        abandon(self.page)
        cut: set[QueueKey] = set()
        self.must_wait = {}
        has_page = self.rng.random() < 0.6
        if not has_page:
            self.machine_boot += 1
            self.asked.clear()
        for key in self.keys:
            now, saved = self.models[key], self.saved[key]
            if has_page and now.epoch == saved.epoch:
                saved.oldest_boot = now.oldest_boot
            if not has_page:
                self.record_leases_at_power_loss(key, now)
            saved.noted = now.noted if now.epoch == saved.epoch else saved.noted
            saved.max_sent = now.max_sent if now.epoch == saved.epoch else -1
            saved.end, saved.log_start = now.end, now.log_start
            self.models[key] = saved
            if not has_page and self.rng.random() < 0.1 and now.end > saved.log_start:
                self.cut_tail(key)
                cut.add(key)
            if saved.log_start > saved.start:
                self.trim_model(saved, saved.log_start)
        self.saved = {key: model.copy() for key, model in self.models.items()}
        self.now += self.rng.choice([0, 100, 2 * LEASE_MS])
        self.start(is_trusted=has_page, cut=frozenset(cut))

    def record_leases_at_power_loss(self, key: QueueKey, model: QueueModel) -> None:
        """Record the leases of members at a power loss: their receipts are valid while their
        messages are in grace.

        Leases of an earlier power loss whose grace has ended are not included.
        """
        for at in [
            at for at in self.lost_leases if at[0] == key and model.state(at[1]) is not State.GRACE
        ]:
            del self.lost_leases[at]
        for offset, entry in model.entries.items():
            if entry.state is State.LEASED and entry.number >> BOOT_SHIFT >= model.grace_boot:
                self.lost_leases[key, offset] = model.epoch, entry.number
                if entry.deadline != NO_DEADLINE:
                    self.must_wait[key] = max(offset, self.must_wait.get(key, -1))

    def cut_tail(self, key: QueueKey) -> None:
        """Remove the newest messages of the log; new messages reuse their offsets."""
        model = self.models[key]
        model.end = max(model.log_start, model.end - self.rng.randrange(1, 20))
        del self.queues.messages[key][model.end :]
        model.entries = {at: entry for at, entry in model.entries.items() if at < model.end}
        model.done = {at for at in model.done if at < model.end}
        model.start = min(model.start, model.end)
        model.max_sent = min(model.max_sent, model.end - 1)
        model.noted = {}
        self.superseded = {at for at in self.superseded if at[0] != key or at[1] < model.end}

    # -- steps -------------------------------------------------------------------------------

    def step(self) -> None:
        """Do one step, chosen by weight."""
        names, weights = zip(*STEPS.items(), strict=True)
        (self.last,) = self.rng.choices(names, weights)
        if self.bound_rng.random() < 0.05 * self.share_bound:
            self.join()
        getattr(self, self.last)()
        self.serve_and_compare()

    def publish(self) -> None:
        key = self.rng.choice(self.keys)
        model = self.models[key]
        if model.end - model.start > 120:
            return
        for _ in range(self.rng.choice([1, 1, 3, 12])):
            expires = self.now + self.rng.randrange(1, 20_000) if self.rng.random() < 0.1 else 0
            size_bytes, number = self.rng.randrange(1, 200), self.rng.randrange(0, self.key_count)
            tag = self.rng.choice(["x", "xy", "y", "xz"])
            if self.config.last_value:
                self.supersede(key, number)
            self.queues.messages[key].append(Message(size_bytes, number, tag, expires))
            model.end += 1
        self.group.note_end(key, model.end)

    def supersede(self, key: QueueKey, number: int) -> None:
        """Record that a message with the key `number` is published."""
        for offset, message in enumerate(self.queues.messages[key]):
            if number and message.key == number:
                self.superseded.add((key, offset))

    def receive(self) -> None:
        topics = None if self.rng.random() < 0.8 else frozenset(self.rng.sample([1, 2, 3], 2))
        filter = None
        if self.config.mode != "keyed" and self.rng.random() < 0.2:
            filter = self.rng.choice("xyz")
        request = ReceiveRequest(
            self.rng.choice(MEMBERS),
            self.rng.choice([1, 2, 7, 32]),
            self.rng.choice([1 << 40, 300]),
            topics,
            filter,
            lease_ms=self.rng.choice([None, 1_000, 99_000]),
            settled=self.rng.random() < 0.05,
            bound=self.bound_rng.random() < self.share_bound,
        )
        if not (request.settled or request.bound) and self.rng.random() < 0.3:
            self.ticket += 1
            request = msgspec.structs.replace(request, attempt_id=f"request {self.ticket}")
        try:
            reply = receive(self.group, request, self.now)
        except ExclusiveHeld:
            return
        self.check_reply(request, reply)
        if not reply.is_answer and self.rng.random() < 0.7:
            self.ticket += 1
            deadline_ms: int | None = self.now + self.rng.randrange(1, 20_000)
            if request.bound and self.bound_rng.random() < 0.5:
                deadline_ms = None
            self.group.park(request, self.ticket, self.now, deadline_ms)

    def repeat(self) -> None:
        """R5: a repeated request gets the same answer, as far as its leases still exist."""
        kept_ms = self.config.repeat_ms
        self.asked = [each for each in self.asked[-20:] if each[2] + kept_ms > self.now]
        if not self.asked:
            return
        request, messages, _ = self.rng.choice(self.asked)
        self.expire_models()
        self.group.tick(self.now)
        expected = [
            (message.queue, message.offset)
            for message in messages
            if (entry := self.models[message.queue].entries.get(message.offset)) is not None
            and message.receipt is not None
            and entry.state is State.LEASED
            and entry.number == message.receipt.lease_number
            and self.models[message.queue].epoch == message.receipt.epoch
        ]
        if not expected:
            return
        try:
            reply = receive(self.group, request, self.now)
        except ExclusiveHeld:
            return
        if not reply.is_active or reply.is_notice:
            assert not reply.messages
            return
        self.repeated += 1
        got = [(message.queue, message.offset) for message in reply.messages]
        assert sorted(got) == sorted(expected)
        for message in reply.messages:
            entry = self.models[message.queue].entries[message.offset]
            assert message.receipt is not None
            assert message.receipt.lease_number == entry.number
            assert message.attempt == message.receipt.attempt == entry.acquisitions + 1
            entry.deadline = message.receipt.deadline_ms

    def settle(self) -> None:
        if not self.receipts:
            return None
        verb = self.rng.choices(list(Verb), [6, 3, 2, 2, 1])[0]
        count = min(len(self.receipts), self.rng.choice([1, 1, 4, 10]))
        # The newest receipts are chosen most often, the oldest rarely.
        oldest = len(self.receipts) - 1
        selected = [min(int(self.rng.expovariate(0.08)), oldest) for _ in range(count)]
        chosen = [self.receipts[-1 - index] for index in dict.fromkeys(selected)]
        if self.config.mode == "keyed" and self.config.max_in_flight_per_key > 1:
            chosen.sort(key=lambda each: (each.topic_id, each.queue, each.offset))
            chosen = [each for each in chosen if self.is_first_of_its_key(each)]
        delay = self.rng.choice([None, 0, 900])
        if verb is Verb.ACK and self.bound_rng.random() < self.share_bound:
            return self.ack_together()
        for receipt in chosen:
            expected = self.expect(receipt, verb, delay)
            cumulative = verb is Verb.ACK and self.config.mode != "keyed"
            cumulative = cumulative and self.rng.random() < 0.1
            if cumulative and Status.DONE in expected and self.is_live(receipt):
                self.finish_below(receipt)
            (status,) = settle(
                self.group, verb, [receipt], self.now, delay_ms=delay, cumulative=cumulative
            )
            assert status in expected, (status, expected, verb, receipt)
        if self.rng.random() < 0.3:
            self.commit()
        return None

    def ack_together(self) -> None:
        """Acknowledge the newest receipts with one call: the same as one by one."""
        chosen = self.receipts[-self.bound_rng.randrange(2, 30) :]
        chosen.sort(key=lambda each: (each.topic_id, each.queue, each.offset))
        if self.config.mode == "keyed" and self.config.max_in_flight_per_key > 1:
            chosen = [each for each in chosen if self.is_first_of_its_key(each)]
        chosen += self.bound_rng.sample(chosen, min(len(chosen), 2))
        expected = [self.expect(each, Verb.ACK, None) for each in chosen]
        for one, other in pairwise(chosen):
            is_adjacent = (one.topic_id, one.queue, one.offset + 1) == (
                other.topic_id,
                other.queue,
                other.offset,
            )
            self.adjacent_acks += is_adjacent
        statuses = settle(self.group, Verb.ACK, chosen, self.now)
        for status, allowed, receipt in zip(statuses, expected, chosen, strict=True):
            assert status in allowed, (status, allowed, receipt)

    def tick(self) -> None:
        self.now += self.rng.choice([1, 10, 300, 1_000, 4_000, 9_000])
        self.expire_models()
        self.group.tick(self.now)

    def leave(self, member: str | None = None) -> None:
        member = member or self.rng.choice(MEMBERS)
        self.group.leave(member, self.now)
        for key in self.keys:
            self.end_leases(key, lambda offset, entry: entry.member == member)

    def join(self) -> None:
        with suppress(ExclusiveHeld):
            self.group.join(self.bound_rng.choice(MEMBERS))

    def retire(self) -> None:
        self.group.retire(self.rng.choice(MEMBERS))

    def trim(self) -> None:
        key = self.rng.choice(self.keys)
        model = self.models[key]
        log_start = min(model.end, model.log_start + self.rng.randrange(0, 40))
        self.group.note_log_start(key, log_start, self.now)
        model.log_start = log_start
        self.trim_model(model, log_start)

    @staticmethod
    def trim_model(model: QueueModel, log_start: int) -> None:
        for offset in range(model.start, log_start):
            if offset not in model.done:
                model.finish(offset)
                model.settled[offset] = -1, Verb.ACK

    def seek(self) -> None:
        key = self.rng.choice(self.keys)
        model = self.models[key]
        target = self.rng.randrange(model.log_start, model.end + 1)
        if self.saved[key].epoch == model.epoch:  # a kill before the commit restores these values
            self.saved[key].noted = model.noted
            self.saved[key].oldest_boot = model.oldest_boot
        self.group.seek(key, target)
        self.models[key] = QueueModel(
            model.end,
            model.log_start,
            target,
            model.epoch + 1,
            oldest_leased_boot=model.oldest_leased_boot,
            row_boot=model.row_boot,
        )

    def dead_letter(self) -> None:
        """Append and mark dead letters, with a crash in between in one of five calls.

        A higher rate of crashes would leave too few letters that are completed.
        """
        letters = self.group.outbox.take_dead_letters()
        crash_at = self.rng.randrange(len(letters)) if letters and self.rng.random() < 0.2 else -1
        for at, letter in enumerate(letters):
            model = self.models[letter.queue]
            entry = model.entries.get(letter.offset)
            is_dying = entry is not None and entry.state is State.DYING
            if at == crash_at:
                return self.crash()
            assert self.group.record_dead_letter(letter.queue, letter.offset, 5) == is_dying
            if is_dying:
                assert entry is not None
                assert letter.is_rejected == entry.is_rejected
                assert entry.is_rejected or entry.failures == MAX_ATTEMPTS  # I9
                self.mark_dead(letter.queue, letter.offset)
        return None

    def pause(self) -> None:
        topic_id = self.rng.choice([1, 2, 3])
        self.group.pause(topic_id, True)
        if self.rng.random() < 0.5:
            self.receive()
        self.group.pause(topic_id, False)

    def receive_from_cold_queues(self) -> None:
        self.queues.is_cold = True
        self.receive()
        self.publish()
        self.queues.is_cold = False

    def drain(self) -> None:
        """Receive and acknowledge until no message is left.

        Each message that was neither settled nor useless must be delivered, or become a dead
        letter.
        """
        self.share_compared = 1.0
        for member in MEMBERS:
            self.leave(member)
        for _ in range(200):
            self.now += 99_000
            self.expire_models()
            self.group.tick(self.now)
            self.dead_letter()
            self.serve_and_compare()
            if all(model.start == model.end for model in self.models.values()):
                return
            request, boot = ReceiveRequest("a", 32), self.boot
            try:
                reply = receive(self.group, request, self.now)
            except ExclusiveHeld:  # a crash happened since then: old leases may exist
                continue
            self.check_reply(request, reply)
            if self.boot == boot:
                for message in reply.messages:
                    assert message.receipt is not None
                    assert Status.DONE in self.expect(message.receipt, Verb.ACK, None)
                    (status,) = settle(self.group, Verb.ACK, [message.receipt], self.now)
                    assert status is Status.DONE
        raise AssertionError(
            [model for model in self.models.values() if model.start < model.end]
        )  # I5

    # -- checks ------------------------------------------------------------------------------

    def serve_and_compare(self) -> None:
        """Serve the waiting requests, then compare everything."""
        self.group.activate_bound()
        for _ in range(100):
            answered = serve(self.group, self.now)
            needs, boot = False, self.boot
            for waiter, reply in answered:
                if isinstance(reply, Reply):  # the commit for one reply stores the leases of all
                    self.note_timed_leases(waiter.request, reply)
                if isinstance(reply, Reply) and waiter.request.settled:
                    for message in reply.messages:  # a crash may lose settlements made when sending
                        epoch = self.models[message.queue].epoch
                        self.sent_settled.add((message.queue, epoch, message.offset))
            for waiter, reply in answered:
                if isinstance(reply, Reply):
                    self.check_reply(waiter.request, reply)
                    if self.boot != boot:
                        return  # a crash happened, and all was compared after it
                    needs |= reply.needs is not None and not reply.is_answer
            if not needs:
                break
        else:
            raise AssertionError("serving does not end")
        self.note_pages()
        is_drawn = self.last in ("crash", "stop") or self.rng.random() < self.share_compared
        # After every start the model learns the offsets that the broker settled itself before it.
        if is_drawn or self.compared_boot < self.boot:
            self.compared_boot = self.boot
            self.check_states()
            self.check_waiters()

    def note_timed_leases(self, request: ReceiveRequest, reply: Reply) -> None:
        """The first timed lease of a queue is stored before it is sent."""
        for message in reply.messages:
            model = self.models[message.queue]
            if not (request.bound or request.settled) and model.oldest_leased_boot == NO_BOOT:
                model.oldest_leased_boot = self.boot
                assert reply.commit_first

    def check_reply(self, request: ReceiveRequest, reply: Reply) -> None:
        self.note_timed_leases(request, reply)
        if reply.commit_first:
            if self.rng.random() < 0.05:
                return self.crash()  # before anything was sent
            if not reply.messages or not request.settled:
                self.commit()
        else:
            self.note_pages()  # before sending: a crash may interrupt the next answer
        self.checks += 1
        assert reply.is_active or not reply.messages
        assert not (reply.is_notice and reply.messages)
        room = request.max_messages
        if not request.settled:
            room = min(room, self.room(request.member))
        assert len(reply.messages) <= max(room, 0)  # I10
        for message in reply.messages:
            model = self.models[message.queue]
            expected = self.first_eligible(request, message.queue)
            assert message.offset == expected, (request, message)  # I3, I4, I8, Q5
            self.check_level(request, message.queue)
            entry = model.entry(message.offset)
            if message.receipt is not None:
                assert message.receipt.attempt == entry.acquisitions + 1
                was_seen = message.offset < model.seen_below or entry.acquisitions > 0
                assert message.redelivered == was_seen
                assert message.failures == entry.failures  # I9
                assert request.bound == (message.receipt.deadline_ms == NO_DEADLINE)
                self.bound_deliveries += request.bound
                entry.state, entry.member = State.LEASED, request.member
                entry.is_adopted = False
                entry.number = message.receipt.lease_number
                entry.deadline = message.receipt.deadline_ms
                self.receipts.append(message.receipt)
                if len(self.receipts) > 400:
                    del self.receipts[:100]
                self.check_alone(request.member)
            else:
                model.finish(message.offset)
                model.settled[message.offset] = -1, Verb.ACK
            model.max_sent = max(model.max_sent, message.offset)
            self.deliveries += 1
        if reply.messages and request.settled:
            self.commit()
        if reply.messages and request.attempt_id is not None:
            self.asked.append((request, list(reply.messages), self.now))
        is_cut_short = reply.needs is not None or reply.is_notice or not reply.is_active
        is_cut_short |= any(topic.is_paused for topic in self.group.topics.values())
        if not is_cut_short and len(reply.messages) < room and request.max_bytes > 1_000:
            for key in self.keys:  # P3
                assert self.first_eligible(request, key) is None, (request, reply, key)
        return None

    def check_level(self, request: ReceiveRequest, key: QueueKey) -> None:
        levels = self.levels[key[0]]
        for other in self.keys:  # Q19
            if other[0] == key[0] and other[1] % levels > key[1] % levels:
                assert self.first_eligible(request, other) is None

    def check_alone(self, member: str) -> None:
        if self.config.mode in ("single_active", "exclusive"):  # I12
            for entry in (
                each for model in self.models.values() for each in model.entries.values()
            ):
                assert entry.state is not State.GRACE or member == self.claimed
                assert entry.state is not State.LEASED or entry.member == member

    def check_states(self) -> None:
        self.checks += 1
        count = 0
        for key, model in self.models.items():
            cursor = self.cursor(key)
            assert model.epoch == cursor.epoch
            for offset in range(model.start, model.end):
                state, expected = cursor.state(offset), model.state(offset)
                if state is State.DONE and expected is not State.DONE:
                    allowed = {State.AVAILABLE, State.GRACE}
                    if (key, offset) in self.superseded:  # Q24
                        allowed.add(State.DELAYED)
                    assert expected in allowed, (key, offset, expected)
                    self.record_done(key, offset)
                else:
                    assert state is expected, (key, offset, state, expected, self.last, model)  # I1
                    count += state is State.AVAILABLE
            assert cursor.floor >= model.start, (key, cursor.floor, model, self.last)
            assert cursor.floor <= cursor.next <= cursor.end == model.end  # I2
            assert cursor.next <= cursor.reserved_next or cursor.next == cursor.floor
            for offset, entry in model.entries.items():
                assert cursor.failures(offset) == entry.failures  # I9
                assert cursor.attempt(offset) == entry.acquisitions + 1, (key, offset, entry)
                if entry.state is State.LEASED:  # the same leases, also after restarts: R1
                    lease = cursor.leases.get(offset)
                    assert lease is not None
                    assert (lease.number, lease.member) == (entry.number, entry.member)
                    assert lease.deadline_ms == entry.deadline, (key, offset, entry, self.last)
                ready_at = entry.ready_at if entry.state is State.DELAYED else 0
                assert cursor.delays.get(offset) == ready_at
        assert self.group.available() == count
        leased = len(self.leased_entries())
        assert self.group.lease_count == leased <= self.config.max_in_flight * 2  # I16

    def check_waiters(self) -> None:
        active = self.group.activity.active
        for waiter in self.group.waiters:  # I13, L15
            if isinstance(self.group.activity, OneActive):
                member = self.group.activity.next_member()
                if member == waiter.request.member and self.group.may_become_active(member):
                    self.rescues += 1
                if active != waiter.request.member:
                    continue
            if self.room(waiter.request.member) > 0 or waiter.request.settled:
                for key in self.keys:
                    if (offset := self.first_eligible(waiter.request, key)) is not None:
                        self.rescues += 1
                        raise AssertionError((self.last, waiter, key, offset))
        assert not self.rescues, "a member waits for an available message"

    # -- the model ---------------------------------------------------------------------------

    def room(self, member: str) -> int:
        leases, config = self.leased_entries(), self.config
        mine = sum(entry.member == member for entry in leases)
        return min(config.max_in_flight - len(leases), config.max_in_flight_per_member - mine)

    def leased_entries(self, *keys: QueueKey) -> list[OffsetModel]:
        models = [self.models[key] for key in keys or self.keys]
        entries = [entry for model in models for entry in model.entries.values()]
        return [entry for entry in entries if entry.state is State.LEASED]

    def key_number(self, key: QueueKey, offset: int) -> int:
        """Return a number that is equal for messages of one key; a message without a key has its
        own."""
        return self.queues.messages[key][offset].key or -1 - offset

    def is_useless(self, key: QueueKey, offset: int) -> bool:
        message = self.queues.messages[key][offset]
        is_useless = self.is_unwanted(key, message) or self.is_old(message)
        return is_useless or self.is_superseded(key, offset)

    def is_superseded(self, key: QueueKey, offset: int) -> bool:
        """Q24: return whether a later message of the queue has the same key."""
        messages = self.queues.messages[key]
        number = messages[offset].key
        if not self.config.last_value or not number:
            return False
        return any(each.key == number for each in messages[offset + 1 :])

    def is_unwanted(self, key: QueueKey, message: Message) -> bool:
        wanted = self.filters[key[0]]
        return wanted is not None and wanted not in message.tag

    def is_old(self, message: Message) -> bool:
        return 0 < message.expires_at_ms <= self.now

    def first_eligible(self, request: ReceiveRequest, key: QueueKey) -> int | None:
        if request.topics is not None and key[0] not in request.topics:
            return None
        model, messages = self.models[key], self.queues.messages[key]
        blocked: set[int] = set()
        for offset in range(model.start, model.end):
            state = model.state(offset)
            if state is State.DONE or state is State.DYING:
                continue
            message, number = messages[offset], self.key_number(key, offset)
            if state is State.GRACE and self.is_unwanted(key, message):
                continue
            if state is State.AVAILABLE:
                if not self.is_useless(key, offset):
                    if self.config.mode != "keyed":
                        if request.filter is None or str(request.filter) in message.tag:
                            return offset
                    elif (
                        number not in blocked
                        and self.has_room_for_key(key, number)
                        and not self.is_leased_to_another(key, number, request.member)
                    ):
                        return offset
                    else:
                        blocked.add(number)
            elif state is not State.LEASED or model.entries[offset].member != request.member:
                blocked.add(number)
        return None

    def has_room_for_key(self, key: QueueKey, number: int) -> bool:
        """Return whether one more message of this key may be leased.

        Later messages count as well: a kill may return an earlier one that was settled when sent.
        """
        leases = sum(
            entry.state is State.LEASED and self.key_number(key, offset) == number
            for offset, entry in self.models[key].entries.items()
        )
        return leases < self.config.max_in_flight_per_key

    def is_leased_to_another(self, key: QueueKey, number: int, member: str) -> bool:
        return any(
            entry.state is State.LEASED and entry.member != member
            for offset, entry in self.models[key].entries.items()
            if self.key_number(key, offset) == number
        )

    def is_first_of_its_key(self, receipt: Receipt) -> bool:
        key = receipt.topic_id, receipt.queue
        model = self.models[key]
        if receipt.epoch != model.epoch or receipt.offset >= model.end:
            return True
        return not any(
            model.state(offset) in (State.LEASED, State.GRACE)
            for offset in self.earlier_of_key(key, receipt.offset)
        )

    def earlier_of_key(self, key: QueueKey, offset: int) -> list[int]:
        mine, start = self.key_number(key, offset), self.models[key].start
        return [each for each in range(start, offset) if self.key_number(key, each) == mine]

    def is_live(self, receipt: Receipt) -> bool:
        model = self.models[receipt.topic_id, receipt.queue]
        entry = model.entries.get(receipt.offset)
        return receipt.epoch == model.epoch and entry is None

    def finish_below(self, receipt: Receipt) -> None:
        """T25: finish the member's own leases in that queue, and no others."""
        model = self.models[receipt.topic_id, receipt.queue]
        for offset, entry in sorted(model.entries.items()):
            is_own = entry.state is State.LEASED and entry.member == receipt.member
            if is_own and offset < receipt.offset and self.settled_now:
                model.finish(offset)
                model.settled[offset] = entry.number, Verb.ACK

    settled_now = False

    def expect(self, receipt: Receipt, verb: Verb, delay: int | None) -> set[Status]:
        """Return the correct statuses, and update the model."""
        self.settled_now = False
        self.expire_models(only=(receipt.topic_id, receipt.queue))
        key = receipt.topic_id, receipt.queue
        model, offset, number = self.models[key], receipt.offset, receipt.lease_number
        stale, done = {Status.STALE}, {Status.DONE}
        cursor = self.cursor(key)
        for each in range(model.start, model.end):  # examined and dropped since the last comparison
            if each in cursor.done and model.state(each) is not State.DONE:
                self.record_done(key, each)
        if receipt.epoch != model.epoch or offset >= model.end:
            return stale
        if model.state(offset) is State.DONE:
            if model.settled.get(offset, (-1,))[0] == -1 or offset < model.log_start:
                return stale | done
            if number >> BOOT_SHIFT < model.settled[offset][0] >> BOOT_SHIFT:
                return stale | done  # a power loss may have lost the return
            return done if model.settled[offset] == (number, verb) else stale
        entry = model.entry(offset)
        is_live = entry.state is State.LEASED and entry.number == number
        is_last_of_old = (
            model.oldest_boot <= number >> BOOT_SHIFT < self.boot
            and offset < model.seen_below
            and receipt.attempt == entry.acquisitions + 1
            and entry.last < number
        )
        is_grace = entry.state is State.GRACE and is_last_of_old
        is_out = self.lost_leases.get((key, offset)) == (model.epoch, number)
        assert is_grace or not is_out or entry.state is not State.GRACE, receipt
        has_expired = entry.last == number and entry.by is None
        is_late = entry.state is State.AVAILABLE and (is_last_of_old or has_expired)
        is_late = is_late and not (entry.last == number and entry.was_revoked)
        if entry.last == number and entry.by is not None and entry.state is not State.LEASED:
            return done if entry.by is verb else stale
        if is_late:
            counts = verb in (Verb.ACK, Verb.REJECT) and not self.config.strict_leases
            if not (counts and self.group.activity.active in (None, receipt.member)):
                return stale
        elif not is_live and not is_grace:
            return stale
        if not is_live and self.overtakes(key, offset, number):
            return stale
        if is_grace and self.group.activity.active is None and self.claimed is None:
            self.claimed = receipt.member
        self.apply(key, offset, receipt, verb, delay)
        self.settled_now = True
        return done

    def overtakes(self, key: QueueKey, offset: int, number: int) -> bool:
        """Return whether an earlier message of its key was returned since this lease."""
        model, messages = self.models[key], self.queues.messages[key]
        return self.config.mode == "keyed" and any(
            not self.is_unwanted(key, messages[each])
            for each in self.earlier_of_key(key, offset)
            if model.state(each) in (State.AVAILABLE, State.DELAYED)
            or (model.state(each) is State.LEASED and model.entry(each).number > number)
        )

    def apply(
        self, key: QueueKey, offset: int, receipt: Receipt, verb: Verb, delay: int | None
    ) -> None:
        model = self.models[key]
        entry = model.entry(offset)
        if verb is Verb.ACK:
            model.finish(offset)
            model.settled[offset] = receipt.lease_number, Verb.ACK
        elif verb is Verb.EXTEND and entry.state is State.LEASED and entry.deadline == NO_DEADLINE:
            return
        elif verb is Verb.EXTEND:
            was_grace = entry.state is State.GRACE
            entry.is_adopted |= was_grace and self.config.mode != "keyed"
            entry.state, entry.member = State.LEASED, receipt.member
            entry.number, entry.deadline = receipt.lease_number, self.now + LEASE_MS
        else:
            if entry.state is not State.LEASED:
                entry.number = receipt.lease_number
            late = entry.state is State.AVAILABLE
            self.end_lease(key, offset, verb, delay, is_late=late)

    def end_lease(
        self,
        key: QueueKey,
        offset: int,
        verb: Verb | None,
        delay: int | None = None,
        *,
        is_late: bool = False,
        is_expiry: bool = False,
        is_restart: bool = False,
    ) -> None:
        model = self.models[key]
        entry = model.entry(offset)
        was_leased = entry.state is State.LEASED
        old = self.is_old(self.queues.messages[key][offset]) and not is_restart
        if was_leased and verb is not Verb.REJECT and old and not entry.is_adopted:
            model.finish(offset)  # Q18
            model.settled[offset] = 0, Verb.RELEASE
            return
        if verb is not Verb.REJECT and self.is_superseded(key, offset):
            model.finish(offset)  # Q24
            model.settled[offset] = 0, Verb.RELEASE
            return
        if not is_late:
            entry.acquisitions += 1
        entry.last, entry.by, entry.number = entry.number, verb, 0
        entry.deadline, entry.was_revoked = 0, not is_expiry and verb is None
        entry.state = State.AVAILABLE
        if verb is Verb.NACK:
            entry.failures += 1
            table = self.config.backoff_ms
            wait = table[min(entry.failures, len(table)) - 1] if delay is None else delay
            if entry.failures >= MAX_ATTEMPTS:
                entry.state = State.DYING
            elif wait:
                entry.state, entry.ready_at = State.DELAYED, self.now + wait
        if verb is Verb.REJECT:
            entry.state, entry.is_rejected = State.DYING, True
        if entry.state is State.DYING:
            if not self.config.has_dead_letters:
                self.mark_dead(key, offset)
        elif not is_restart:
            self.revoke_later(key, offset)

    def mark_dead(self, key: QueueKey, offset: int) -> None:
        model = self.models[key]
        entry = model.entries[offset]
        model.finish(offset)
        if entry.by is not None:
            model.settled[offset] = entry.last, entry.by

    def drop_dying_without_letters(self, key: QueueKey) -> None:
        model = self.models[key]
        if not self.config.has_dead_letters:
            for offset, entry in list(model.entries.items()):
                if entry.state is State.DYING:
                    self.mark_dead(key, offset)

    def expire_models(self, only: QueueKey | None = None) -> None:
        for key, model in self.models.items():
            if only is not None:
                if key != only:
                    continue
                first = self.cursor(key).leases.next_deadline()
                if first is None or first > self.now:
                    return
            self.end_leases(key, lambda offset, each: each.deadline <= self.now, is_expiry=True)
            for entry in model.entries.values():
                if entry.state is State.DELAYED and entry.ready_at <= self.now:
                    entry.state = State.AVAILABLE
            if model.grace_end and model.grace_end <= self.now:
                model.grace_end = 0
                for entry in model.entries.values():
                    if entry.state is State.GRACE:
                        entry.state = State.AVAILABLE
                done = self.cursor(key).done
                for offset in range(model.start, model.end):  # also after a kill
                    is_free = model.state(offset) is State.AVAILABLE and offset not in done
                    if is_free and not self.is_unwanted(key, self.queues.messages[key][offset]):
                        self.revoke_later(key, offset)

    def revoke_later(self, key: QueueKey, offset: int) -> None:
        if self.config.mode == "keyed":
            mine = self.key_number(key, offset)
            self.end_leases(
                key, lambda other, _: other > offset and self.key_number(key, other) == mine
            )

    def end_leases(
        self,
        key: QueueKey,
        is_chosen: Callable[[int, OffsetModel], bool],
        *,
        is_expiry: bool = False,
    ) -> None:
        """End the chosen leases of a queue. The end of a lease may end further leases."""
        model = self.models[key]
        for offset, entry in sorted(model.entries.items()):
            is_here = model.entries.get(offset) is entry
            if is_here and entry.state is State.LEASED and is_chosen(offset, entry):
                self.end_lease(key, offset, None, is_expiry=is_expiry)


def _clean_up(directory: Path, pages: list[ProgressPage]) -> None:
    for page in pages:
        abandon(page)
    shutil.rmtree(directory)


#: The steps, with their weights.
STEPS = {
    "publish": 20,
    "receive": 30,
    "settle": 40,
    "tick": 12,
    "commit": 6,
    "dead_letter": 4,
    "leave": 2,
    "retire": 1,
    "crash": 2,
    "stop": 1,
    "repeat": 4,
    "trim": 1,
    "seek": 0.5,
    "pause": 1,
    "receive_from_cold_queues": 1,
}
