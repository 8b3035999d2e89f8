"""A broker's storage on a simulated disk, beside clients that write down what they are told.

The storage and its threads are the real ones, and so is LMDB (synced on commit, so a crash
leaves it as it was committed last); the log's files are on a SimulatedDisk. `restart` ends the
process in one of three ways and opens what is left; after each opening, and at the end,
everything is read back and judged by the history checker.

Queues of all topics are numbered in one row, so that one History sees the whole log.
"""

import asyncio
import contextlib
import random
import shutil
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from holdfast.check import check_data_dir
from holdfast.commitlog.batch import Batch, encode_batch
from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.errors import DiskFull, LogPoisoned, ProducerFenced, SequenceGap
from holdfast.config import Config
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.errors import OffsetTrimmed, QueueCorrupt, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore, Published
from holdfast.consumequeue.topics import Topic
from holdfast.storage import Storage, StorageEvents
from tests.support.history import Found, History, Send, check_history, settle_power_loss
from tests.support.simulated_disk import SimulatedDisk

MIB = 1024 * 1024
#: Batches that a producer has under way at most: as many as the broker can answer twice.
PIPELINE = 5
_QUEUES_PER_TOPIC = 10
_DEADLINE_S = 30.0

Ending = Literal["close", "kill", "crash"]
"""Closed in order; killed (the page cache stays); or the power is cut."""


class BrokerViolation(AssertionError):
    """The broker did what no right one does, whatever the history says."""


@dataclass(frozen=True, slots=True)
class Plan:
    """A topic as it was asked for."""

    number: int
    name: str
    queue_count: int
    durability: str

    @property
    def is_durable(self) -> bool:
        return self.durability == "fsync"

    @property
    def queues(self) -> range:
        """Its queues' numbers in the row of all queues."""
        first = self.number * _QUEUES_PER_TOPIC
        return range(first, first + self.queue_count)


@dataclass(slots=True, eq=False)
class Attempt:
    """One publish, tried until it is answered."""

    batches: list[Batch]
    sends: list[list[Send]]
    """Per batch, its messages."""
    durability: str
    epoch: int
    task: "asyncio.Task[None] | None" = None

    @property
    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()


@dataclass(slots=True, eq=False)
class Producer:
    """Publishes to one queue of a topic, or (`queue` None) with each request to all of them.

    An idempotent one (`producer_id` above 0) repeats what was not answered; another one gives
    it up, since it would store it twice.
    """

    name: str
    plan: Plan
    queue: int | None
    producer_id: int
    durability: str
    epoch: int = 0
    sequence: int = 0
    sent: int = 0
    unanswered: list[Attempt] = field(default_factory=list)
    is_known: bool = False
    """It was answered once."""

    @property
    def may_pipeline(self) -> bool:
        """Whether it may send before it was answered. An unknown producer may start at any
        sequence, and one that counts requests leaves none half stored behind the next."""
        return self.is_known and self.queue is not None

    def attempt(self, messages: int, body_bytes: int) -> Attempt:
        """Make the next publish."""
        queues = [self.queue] if self.queue is not None else list(range(self.plan.queue_count))
        attempt = Attempt([], [], self.durability, self.epoch)
        for queue in queues:
            sends = [self._send(queue, body_bytes) for _ in range(messages)]
            encoded = encode_batch(
                [send.body for send in sends],
                keys=[send.key for send in sends],
                queue_id=queue,
                producer_id=self.producer_id,
                producer_epoch=self.epoch,
                sequence=self.sequence,
                request_sequence=self.queue is None,
            )
            attempt.batches.append(Batch.decode(encoded))
            attempt.sends.append(sends)
        self.sequence += 1
        return attempt

    def _send(self, queue: int, body_bytes: int) -> Send:
        self.sent += 1
        # The body names its send; keys are of one length, so that batches are of few sizes.
        start = f"{self.name} {self.sent:06d} ".encode()
        rng = random.Random(start)
        body = start + rng.randbytes(max(body_bytes - len(start), 0))
        return Send(self.name, self.sent, f"key-{queue}-{rng.randrange(3)}", body)


class SimulatedBroker:
    """Storage, disk and clients. Everything happens on one event loop; `rng` decides what a
    crash leaves, and how far the threads lag where the two intervals, read at each start, do
    not say. Anything that a right broker cannot do raises an AssertionError."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        self.rng = rng
        self.disk = SimulatedDisk()
        self.history = History()
        self.plans: list[Plan] = []
        self.producers: list[Producer] = []
        self.restarts: dict[str, int] = {"close": 0, "kill": 0, "crash": 0}
        self.power_losses = 0
        self.lost = 0
        """Messages acknowledged in written mode that power losses took."""
        self.flush_interval_ms: int | None = None
        self.commit_interval_ms: int | None = None
        self._data_dir = directory / "data"
        self._kept_lmdb = directory / "lmdb"
        self._stored_offsets: dict[str, dict[int, int]] = {}
        self._consumed: dict[int, int] = {}
        self._min_offsets: dict[int, int] = {}
        self._trimming = False
        self._deleted_ids: set[int] = set()

    # -- the process -----------------------------------------------------------------------

    async def start(self) -> None:
        """Open the storage for the first time."""
        await self._open()

    async def restart(
        self,
        ending: Ending,
        *,
        forget: Sequence[str] = (),
        recovery_crashes: float = 0.3,
        hold_syncs: bool = False,
    ) -> None:
        """End the process, open what is left of it, and judge that.

        `forget` names LMDB environments ("consumequeue", "state") that are deleted in between;
        `recovery_crashes` is how likely another power loss is while the storage opens; with
        `hold_syncs` the disk is slow from then on.
        """
        if ending == "close":
            await self.quiesce()
            await self.storage.close()
            if self.disk.frozen:
                ending = "crash"
                self.disk = self.disk.crash(self._fork())
        else:
            await self._end_process()
            self.disk = self.disk.kill() if ending == "kill" else self.disk.crash(self._fork())
        self.restarts[ending] += 1
        self.disk.mend()
        self._check_data_dir()
        for name in forget:
            shutil.rmtree(self._data_dir / name)
        # Now and then the power goes while recovering, or soon after it.
        again = self.rng.random() < recovery_crashes
        self.disk.freeze_after(self.rng.randint(0, 6) if again else None)
        power_lost = await self._open() or ending == "crash"
        if hold_syncs:
            self.disk.hold_syncs()
        await self._verify(power_lost=power_lost)

    async def finish(self) -> None:
        """Close in order, open again twice, the second time without the index; judge each."""
        await self.repeat_all()
        await self.restart("close", recovery_crashes=0)
        await self.restart("close", forget=["consumequeue"], recovery_crashes=0)
        await self.quiesce()
        await self.storage.close()
        self._check_data_dir()

    async def abandon(self) -> None:
        """End the threads, whatever state they are in."""
        self.disk.freeze()
        await self._settle()
        await self.storage.close()

    @property
    def is_dead(self) -> bool:
        """Whether only a restart helps: the power is gone, or a write or sync failed."""
        return (
            self.disk.frozen
            or self.storage.read_only is not None
            or self.storage.appender.poisoned is not None
        )

    @property
    def recovered_blocks(self) -> int:
        """How many blocks the last opening found that the index did not have."""
        assert self.storage._opened is not None
        return self.storage._opened.recovered.blocks

    async def _open(self) -> bool:
        """Open the storage; return whether the power went once more in between."""
        power_lost = False
        while True:
            self.storage = Storage(self._config(), self._events(), disk=self.disk)
            self.storage.lock()
            try:
                self.store: MessageStore = await self.storage.open()
            except OSError:
                await self.storage.close()
                if not self.disk.frozen:
                    raise
                power_lost = True
                self.disk = self.disk.crash(self._fork())
                continue
            break
        if self.storage.degraded or self.storage.read_only:
            raise BrokerViolation(
                f"a crash was taken for damage: {self.storage.degraded} {self.storage.read_only}"
            )
        return power_lost

    async def _end_process(self) -> None:
        """Freeze the disk, keep LMDB as it is committed now, end the threads."""
        self.disk.freeze()
        opened = self.storage._opened
        assert opened is not None
        shutil.rmtree(self._kept_lmdb, ignore_errors=True)
        for name, env in (("consumequeue", opened.index._env), ("state", opened.state._env)):
            (self._kept_lmdb / name).mkdir(parents=True)
            env.copy(str(self._kept_lmdb / name))
        await self._settle()
        await self.storage.close()
        for name in ("consumequeue", "state"):
            shutil.rmtree(self._data_dir / name)
            (self._kept_lmdb / name).rename(self._data_dir / name)

    def _config(self) -> Config:
        """Small segments, and threads that are now ahead, now far behind."""
        return Config(
            data_dir=self._data_dir,
            commitlog=CommitLogConfig(
                segment_bytes=MIB,
                reserve_bytes=0,
                flush_interval_ms=self.flush_interval_ms or self.rng.choice((1, 10, 50)),
                retention_interval_ms=3_600_000,
                max_total_bytes=self.rng.choice((0, 4 * MIB)),
            ),
            consumequeue=ConsumeQueueConfig(
                commit_interval_ms=self.commit_interval_ms or self.rng.choice((1, 10, 10_000)),
                map_size_bytes=64 * MIB,
                state_map_size_bytes=64 * MIB,
                tail_entries=2,
                hot_cache_bytes=self.rng.choice((0, MIB)),
            ),
            topics=TopicsConfig(default_retention_ms=0),
        )

    def _events(self) -> StorageEvents:
        return StorageEvents(arrived=lambda advanced: None, failed=lambda error: None)

    def _check_data_dir(self) -> None:
        report = check_data_dir(self._data_dir, disk=self.disk)
        if not report.is_sound:
            raise BrokerViolation(f"check found {report.findings}")

    # -- topics ----------------------------------------------------------------------------

    async def create_topic(self, queue_count: int, durability: str) -> Plan:
        """Create a topic."""
        number = len(self.plans)
        plan = Plan(number, f"topic-{number}", queue_count, durability)
        await self.store.create_topic(
            plan.name, queues=queue_count, fields={"durability": durability}
        )
        self.plans.append(plan)
        return plan

    async def churn_topic(self) -> None:
        """Create a topic, publish to it, delete it. It must not come back, nor what it held."""
        self.disk.release_syncs()
        topic, is_new = await self.store.create_topic("short-lived", queues=1)
        state = self.store.queue_state(topic, 0)
        if not is_new or topic.topic_id in self._deleted_ids or state.max_offset:
            raise BrokerViolation(f"{topic} came back with {state}")
        batch = Batch.decode(encode_batch([b"forget me"], queue_id=0))
        with contextlib.suppress(LogPoisoned, DiskFull):
            await _bounded(self.store.publish(topic, [batch]))
        await self.store.delete_topic(topic.name)
        self._deleted_ids.add(topic.topic_id)

    def topic(self, plan: Plan) -> Topic:
        """Return the topic as the store has it."""
        try:
            return self.store.topic(plan.name)
        except UnknownTopic as error:
            raise BrokerViolation(f"{plan} is gone") from error

    async def trim(self, retention_bytes: int) -> None:
        """Trim every topic to so many bytes, and delete the segments that nobody needs or that
        are too many; publishes may be under way."""
        if self.is_dead:
            return
        self.disk.release_syncs()  # a segment that is being prepared waits for one
        self._trimming = True
        for plan in self.plans:
            await self.store.change_topic(plan.name, fields={"retention_bytes": retention_bytes})
        try:
            await self.storage.retention.run_once()
        except OSError:
            if not self.disk.frozen:
                raise
            return
        for plan in self.plans:
            await self.store.change_topic(plan.name, fields={"retention_bytes": None})
        self._trimming = False
        self._min_offsets = self._begins()

    def _begins(self) -> dict[int, int]:
        return {
            number: self.store.queue_state(self.topic(plan), queue).min_offset
            for plan in self.plans
            for queue, number in enumerate(plan.queues)
        }

    # -- publishing ------------------------------------------------------------------------

    def add_producer(
        self, plan: Plan, queue: int | None, *, idempotent: bool, durability: str | None = None
    ) -> Producer:
        """Add a producer; `durability` if its publishes ask for another than the topic's."""
        number = len(self.producers) + 1
        producer = Producer(
            f"p{number:03d}",
            plan,
            queue,
            number if idempotent else 0,
            durability or plan.durability,
        )
        self.producers.append(producer)
        return producer

    def publish(self, producer: Producer, messages: int, body_bytes: int) -> Attempt | None:
        """Send off the next publish, or first again what failed; None when too many of this
        producer are under way."""
        if repeated := self._repeat(producer):
            return repeated[-1]
        if len(producer.unanswered) >= (PIPELINE if producer.may_pipeline else 1):
            return None
        attempt = producer.attempt(messages, body_bytes)
        for sends in attempt.sends:
            for send in sends:
                self.history.sent(send)
        producer.unanswered.append(attempt)
        self._send_off(producer, attempt)
        return attempt

    def _repeat(self, producer: Producer) -> list[Attempt]:
        """What a client does after a failure: send again what was not answered, in order."""
        repeated = [attempt for attempt in producer.unanswered if not attempt.is_under_way]
        for attempt in repeated:
            self._send_off(producer, attempt)
        return repeated

    async def wait_for(self, attempt: Attempt | None) -> None:
        """Wait until a publish is answered or failed; syncs that are held are let go."""
        if attempt is not None and attempt.task is not None:
            self.disk.release_syncs()
            await _bounded(attempt.task)

    def _send_off(self, producer: Producer, attempt: Attempt) -> None:
        attempt.task = asyncio.create_task(self._answer(producer, attempt))

    async def _answer(self, producer: Producer, attempt: Attempt) -> None:
        try:
            results = await self.store.publish(
                self.topic(producer.plan), attempt.batches, durability=attempt.durability
            )
        except (LogPoisoned, DiskFull):
            is_over = not producer.producer_id
        except (SequenceGap, ProducerFenced):
            is_over = self._judge_refusal(producer, attempt)
        else:
            self._note(producer.plan, attempt, results)
            is_over = producer.is_known = True
        if is_over:
            producer.unanswered.remove(attempt)

    def _note(self, plan: Plan, attempt: Attempt, results: list[Published]) -> None:
        for result, sends in zip(results, attempt.sends, strict=True):
            if result.count != len(sends):
                raise BrokerViolation(f"{result} answers {len(sends)} messages")
            for row, send in enumerate(sends):
                self.history.acknowledged(
                    send,
                    plan.queues[result.queue],
                    result.base_offset + row,
                    durable=result.durable,
                )

    def _judge_refusal(self, producer: Producer, attempt: Attempt) -> bool:
        """Return whether a refused publish is given up. A gap follows from a publish before
        that failed and will be repeated, or from what a power loss took."""
        if attempt.epoch < producer.epoch:
            return True
        if producer.unanswered[0] is not attempt:
            return False
        if producer.durability == "fsync" or not self.power_losses:
            raise BrokerViolation(f"{producer.name} is refused, but nothing of it was lost")
        # What is lost was acknowledged and will not come again: begin anew.
        producer.epoch += 1
        producer.sequence = 0
        return True

    async def repeat_all(self) -> None:
        """Let every producer send again what failed, until all is answered."""
        self.disk.release_syncs()
        await self._settle()
        for producer in self.producers:
            for attempt in self._repeat(producer):
                await _bounded(attempt.task)

    # -- consuming -------------------------------------------------------------------------

    async def consume(self, plan: Plan, queue: int, max_messages: int) -> None:
        """Pull once from where this queue's consumer is. What a durable topic shows is noted:
        no crash may take it back."""
        number = plan.queues[queue]
        offset = self._consumed.get(number, 0)
        try:
            found, following = await self._pull(plan, queue, offset, max_messages)
        except OffsetTrimmed as error:
            self._consumed[number] = error.min_offset
            return
        self._consumed[number] = following
        for message in found:
            if message.body not in self.history.sent_at:
                raise BrokerViolation(f"{message} was never sent")
            if plan.is_durable:
                self.history.consumed(message)

    async def store_offsets(self, plan: Plan) -> None:
        """Store where this topic's consumers are."""
        offsets = {
            queue: self._consumed[number]
            for queue, number in enumerate(plan.queues)
            if number in self._consumed
        }
        if offsets:
            await self.store.store_offsets("group", self.topic(plan), offsets)
            self._stored_offsets.setdefault(plan.name, {}).update(offsets)

    async def search(self) -> None:
        """Find one acknowledged message by its key."""
        await self.quiesce()
        if self.is_dead:
            return
        promised = [
            (send, place)
            for send in self.history.sends
            if (place := self.history.acks.get(send.body)) is not None
            and place[1] >= self._min_offsets.get(place[0], 0)
        ]
        if not promised or self._trimming:
            return
        send, (number, offset) = self._fork().choice(promised)
        plan = self.plans[number // _QUEUES_PER_TOPIC]
        assert send.key is not None
        found = await self.store.search_key(self.topic(plan), send.key, 1_000_000)
        places = {
            (plan.queues[batch.header.queue_id], batch.header.base_offset + row): batch.body(row)
            for batch, row in found
        }
        if places.get((number, offset)) != send.body:
            raise BrokerViolation(f"{send.producer} {send.number} is not found by its key")

    async def _pull(
        self, plan: Plan, queue: int, offset: int, max_messages: int
    ) -> tuple[list[Found], int]:
        try:
            fetched = await self.store.read(
                self.topic(plan), queue, offset, max_messages=max_messages, max_bytes=MIB
            )
        except QueueCorrupt as error:
            raise BrokerViolation(f"a crash left damage: {error}") from error
        found = [
            Found(
                plan.queues[queue],
                piece.batch.header.base_offset + row,
                piece.batch.key(row),
                piece.batch.body(row),
            )
            for piece in fetched.slices
            for row in piece.rows
        ]
        return found, fetched.next_offset

    async def _read_all(self) -> list[Found]:
        """Read every queue from its first offset to its last."""
        everything: list[Found] = []
        for plan in self.plans:
            for queue in range(plan.queue_count):
                state = self.store.queue_state(self.topic(plan), queue)
                offset = state.min_offset
                while offset < state.max_offset:
                    found, following = await self._pull(plan, queue, offset, 1000)
                    if [message.offset for message in found] != list(range(offset, following)):
                        raise BrokerViolation(f"a pull of {plan.name}/{queue} from {offset} skips")
                    everything += found
                    offset = following
        return everything

    # -- judging ---------------------------------------------------------------------------

    async def _verify(self, *, power_lost: bool) -> None:
        """Judge what a restart left. Nothing of it may be lost later: recovery synced it."""
        begins = self._begins()
        for number, begin in begins.items():
            before = self._min_offsets.get(number, 0)
            if begin < before or (begin > before and not self._trimming):
                raise BrokerViolation(f"queue {number} began at {before}, begins at {begin} now")
        self._trimming = False
        self._min_offsets = begins
        found = await self._read_all()
        if power_lost:
            self.power_losses += 1
            self.lost += settle_power_loss(self.history, found, min_offsets=begins)
        check_history(self.history, found, min_offsets=begins)
        self.history.written.clear()
        if {topic.name for topic in self.store.topics()} != {plan.name for plan in self.plans}:
            raise BrokerViolation(f"there are the topics {self.store.topics()}")
        for plan in self.plans:
            self._verify_topic(plan)

    def _verify_topic(self, plan: Plan) -> None:
        topic = self.topic(plan)
        if (topic.queue_count, topic.config.durability) != (plan.queue_count, plan.durability):
            raise BrokerViolation(f"{topic} is not {plan}")
        expected = self._stored_offsets.get(plan.name)
        if expected is not None:
            stored = self.store.stored_offsets("group", topic).offsets
            if stored != expected:
                raise BrokerViolation(f"stored offsets of {plan.name}: {stored}, not {expected}")
        for queue, number in enumerate(plan.queues):
            end = self.store.queue_state(topic, queue).max_offset
            if self._consumed.get(number, 0) > end:
                if plan.is_durable:
                    raise BrokerViolation(
                        f"{plan.name}/{queue} ends at {end}, was consumed to "
                        f"{self._consumed[number]}"
                    )
                self._consumed[number] = end

    def _fork(self) -> random.Random:
        """Return a source of as many draws as it takes, for one draw of `rng`: what is drawn
        later must not depend on what the threads had done by now."""
        return random.Random(self.rng.getrandbits(64))

    # -- waiting ---------------------------------------------------------------------------

    async def quiesce(self) -> None:
        """Wait until every thread is idle and all that was written is synced and visible. Returns
        early when the process turns out to be dead."""
        self.disk.release_syncs()
        await self._settle()
        if self.is_dead:
            return
        if not await self.all_written():
            return
        await self.keeper_done()
        await until(self._is_idle)

    async def all_written(self) -> bool:
        """Wait until all that was handed to the appender is written; return whether it is."""
        try:
            # The appender takes its work in turn: this comes after all that.
            await _bounded(self.store.publish(self.topic(self.plans[0]), [], durability="written"))
        except LogPoisoned:
            return False
        return True

    async def keeper_done(self) -> None:
        """Wait until the segment thread has done what it was told so far."""
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        self.storage.keeper.submit(lambda: loop.call_soon_threadsafe(done.set))
        await _bounded(done.wait())

    def _is_idle(self) -> bool:
        return self.is_dead or (
            self.storage.syncer.durable_offset == self.storage.log.written_offset
            and self.storage.reput.reput_offset >= self._end_of_blocks()
            and all(cq.pending == 0 for cq in self.storage.reput.queues.values())
        )

    def _end_of_blocks(self) -> int:
        """Where the last block ends; the segment that takes the next one may be empty yet."""
        for segment in self.storage.log.segments[:-3:-1]:
            if segment.written > segment.first_offset:
                return segment.written
        return 0

    async def _settle(self) -> None:
        """Wait until every publish under way is answered or failed."""
        for producer in self.producers:
            for attempt in list(producer.unanswered):
                if attempt.task is not None:
                    await _bounded(attempt.task)


async def _bounded(awaitable: Awaitable[object] | None) -> None:
    """Await something that must not take long, whatever the disk does."""
    assert awaitable is not None
    async with asyncio.timeout(_DEADLINE_S):
        await awaitable


async def until(condition: Callable[[], bool]) -> None:
    """Wait until a condition of the broker's threads holds; raises TimeoutError."""
    async with asyncio.timeout(_DEADLINE_S):
        while not condition():
            await asyncio.sleep(0.001)
