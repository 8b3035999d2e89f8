"""A simulated process, and producers that record sends and answers in one numbering of queues."""

import asyncio
import contextlib
import random
from dataclasses import dataclass, fields
from pathlib import Path

from holdfast.commitlog.append.appender import AppendResult
from holdfast.commitlog.errors import DiskFull, LogPoisoned, NoSegment, ProducerFenced, SequenceGap
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.topics import Topic
from tests.support.histories.history import History
from tests.support.simulation.simulated_clients import MOST_TRIES, Attempt, Plan, Producer
from tests.support.simulation.simulated_process import (
    BrokerViolation,
    SimulatedProcess,
    bounded,
    until,
)


@dataclass(slots=True)
class Totals:
    """Counts of events, summed over runs."""

    runs: int = 0
    sends: int = 0
    acks: int = 0
    reads: int = 0
    """Messages that consumers and the judge read."""
    closes: int = 0
    kills: int = 0
    kills_unsynced: int = 0
    """Kills while some written data was not synced yet."""
    power_losses: int = 0
    lost_written: int = 0
    """Messages acknowledged in written mode that a power loss removed."""
    lossy_power_losses: int = 0

    def add(self, other: "Totals") -> None:
        """Add the counts of other runs."""
        for each in fields(self):
            setattr(self, each.name, getattr(self, each.name) + getattr(other, each.name))


class SimulatedPublishing(SimulatedProcess):
    """Storage, disk and producers on one event loop."""

    def __init__(self, directory: Path, rng: random.Random) -> None:
        super().__init__(directory, rng)
        self.history = History()
        self.plans: list[Plan] = []
        self.producers: list[Producer] = []
        self.totals = Totals(runs=1)
        self._deleted_ids: set[int] = set()

    async def create_topic(self, queue_count: int, durability: str) -> Plan:
        """Create a topic."""
        number = len(self.plans)
        plan = Plan(number, f"topic-{number}", queue_count, durability)
        await self.store.topics.create(
            plan.name, queues=queue_count, fields={"durability": durability}
        )
        self.plans.append(plan)
        return plan

    async def churn_topic(self) -> None:
        """Create, use and delete a topic; neither it nor its messages may come back."""
        self.disk.release_syncs()
        topic, is_new = await self.store.topics.create("short-lived", queues=1)
        state = self.store.reading.queue_state(topic, 0)
        if not is_new or topic.topic_id in self._deleted_ids or state.max_offset:
            raise BrokerViolation(f"{topic} came back with {state}")
        batch = Batch.decode(encode_batch([b"forget me"], queue_id=0))
        with contextlib.suppress(LogPoisoned, DiskFull, NoSegment):
            await bounded(self.store.publishing.publish(topic, [batch]))
        await self.store.topics.delete(topic.name)
        self._deleted_ids.add(topic.topic_id)

    def topic(self, plan: Plan) -> Topic:
        """Return the topic from the store."""
        try:
            return self.store.table.get(plan.name)
        except UnknownTopic as error:
            raise BrokerViolation(f"{plan} is gone") from error

    def add_producer(
        self, plan: Plan, queue: int | None, *, idempotent: bool, durability: str | None = None
    ) -> Producer:
        """Add a producer. Its publishes ask for `durability` if given, else for the topic's."""
        number = len(self.producers) + 1
        producer = Producer(
            f"p{number:03d}",
            plan,
            queue,
            number if idempotent else 0,
            durability or plan.durability,
            # A producer that publishes to all queues counts requests.
            sends_rows=queue is None or self.rng.random() < 0.5,
        )
        self.producers.append(producer)
        return producer

    def publish(self, producer: Producer, messages: int, body_bytes: int) -> Attempt | None:
        """Repeat failed publishes, or send the next one unless too many are in flight (None)."""
        if repeated := self._repeat(producer):
            return repeated[-1]
        if not producer.can_send:
            return None
        attempt = producer.attempt(messages, body_bytes)
        for sends in attempt.sends:
            for send in sends:
                self.history.record_send(send)
        producer.unanswered.append(attempt)
        self._send_off(producer, attempt)
        return attempt

    def _repeat(self, producer: Producer) -> list[Attempt]:
        """Send all unanswered publishes again in order, as a client does after a failure."""
        repeated = [attempt for attempt in producer.unanswered if not attempt.is_under_way]
        for attempt in repeated:
            if attempt.task is not None:
                attempt.task.result()  # raises a violation that it found
            self._send_off(producer, attempt)
        return repeated

    async def wait_for(self, attempt: Attempt | None) -> None:
        """Wait until a publish is answered or has failed. Held syncs are released."""
        if attempt is not None and attempt.task is not None:
            self.disk.release_syncs()
            await bounded(attempt.task)

    def _send_off(self, producer: Producer, attempt: Attempt) -> None:
        attempt.task = asyncio.create_task(self._answer(producer, attempt))

    async def _answer(self, producer: Producer, attempt: Attempt) -> None:
        try:
            results = await self.store.publishing.publish(
                self.topic(producer.plan), attempt.batches, durability=attempt.durability
            )
        except (LogPoisoned, DiskFull, NoSegment):
            is_over = not producer.producer_id
        except (SequenceGap, ProducerFenced):
            is_over = self._judge_refusal(producer, attempt)
        else:
            if attempt.loses_answer():
                # The publish was stored; the client learns this only when it repeats the publish.
                is_over = not producer.producer_id
            else:
                self._note(producer.plan, attempt, results)
                is_over = producer.is_known = True
        if is_over:
            producer.unanswered.remove(attempt)

    def _note(self, plan: Plan, attempt: Attempt, results: list[AppendResult]) -> None:
        for result, sends in zip(results, attempt.sends, strict=True):
            if result.message_count != len(sends):
                raise BrokerViolation(f"{result} answers {len(sends)} messages")
            self._must_be_readable(plan, result)
            for row, send in enumerate(sends):
                place = plan.queues[result.queue_id], result.base_offset + row
                self.history.record_ack(send, *place, durable=result.durable)

    def _must_be_readable(self, plan: Plan, result: AppendResult) -> None:
        """Check that an acknowledged offset can be read, unless it waits for a sync."""
        end = self.store.reading.queue_state(self.topic(plan), result.queue_id).max_offset
        is_shown = result.durable or not plan.is_durable
        if is_shown and end < result.base_offset + result.message_count:
            raise BrokerViolation(f"{result} was answered, but {plan.name} ends at {end}")

    def _judge_refusal(self, producer: Producer, attempt: Attempt) -> bool:
        """Return whether a refused publish is given up, or repeated after an earlier one."""
        if attempt.epoch < producer.epoch:
            return True
        if producer.unanswered[0] is not attempt:
            return False
        if producer.durability == "fsync" or not self.totals.power_losses:
            raise BrokerViolation(f"{producer.name} is refused, but nothing of it was lost")
        # The lost publishes were acknowledged and are not repeated: start a new epoch.
        producer.epoch += 1
        producer.sequence = 0
        return True

    async def repeat_all(self) -> None:
        """Let every producer repeat its failed publishes until all are answered or failed again."""
        self.disk.release_syncs()
        await self._settle()
        await self.alarms_over()
        for _ in range(MOST_TRIES):
            for producer in self.producers:
                for attempt in self._repeat(producer):
                    await bounded(attempt.task)

    async def quiesce(self) -> None:
        """Wait until the process is dead, or idle with all written data synced and visible."""
        self.disk.release_syncs()
        await self._settle()
        if self.is_dead:
            return
        if not await self.all_written():
            return
        await self.keeper_done()
        await until(self.is_idle)

    async def _settle(self) -> None:
        """Wait until every publish in flight is answered or has failed."""
        for producer in self.producers:
            for attempt in list(producer.unanswered):
                if attempt.task is not None:
                    await bounded(attempt.task)
