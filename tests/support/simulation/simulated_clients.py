"""The clients of a simulated broker as data; bodies identify their sends."""

import asyncio
import random
from dataclasses import dataclass, field

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch
from tests.support.histories.history import Send

#: The most batches that a producer has in flight: the broker can answer this many a second time.
PIPELINE = 5
_QUEUES_PER_TOPIC = 10
#: The share of answers that do not reach the client.
_LOST_ANSWERS = 0.03
#: The answer to this attempt always reaches the client.
MOST_TRIES = 3


@dataclass(frozen=True, slots=True)
class Plan:
    """A topic as the test requested it."""

    number: int
    name: str
    queue_count: int
    durability: str

    @property
    def is_durable(self) -> bool:
        return self.durability == "fsync"

    @property
    def queues(self) -> range:
        """The numbers of its queues, in one numbering of the queues of all topics."""
        first = self.number * _QUEUES_PER_TOPIC
        return range(first, first + self.queue_count)


@dataclass(slots=True, eq=False)
class Attempt:
    """One publish, repeated until it is answered."""

    batches: list[Batch | Rows]
    sends: list[list[Send]]
    """The messages of each batch."""
    durability: str
    epoch: int
    task: "asyncio.Task[None] | None" = None
    tries: int = 0

    def loses_answer(self) -> bool:
        """Count an attempt; return whether its answer is lost. The last answer is never lost."""
        self.tries += 1
        draw = random.Random(self.sends[0][0].body[:16] + bytes([self.tries])).random()
        return self.tries < MOST_TRIES and draw < _LOST_ANSWERS

    @property
    def is_under_way(self) -> bool:
        return self.task is not None and not self.task.done()


@dataclass(slots=True, eq=False)
class Producer:
    """Publishes to one queue of a topic, or with `queue` None to all its queues in each request.

    An idempotent producer (`producer_id` above 0) repeats unanswered publishes. Another producer
    gives them up, because a repeated publish could be stored twice.
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
    sends_rows: bool = False
    """Whether batches hold messages of several producers; its sequences then count requests."""
    is_known: bool = False
    """Whether the broker has answered this producer once."""

    @property
    def can_send(self) -> bool:
        """Whether the producer may start one more publish. It waits for each answer if the broker
        does not know it yet, because its first sequence may be any number, or if it publishes to
        all queues."""
        may_pipeline = self.is_known and self.queue is not None
        return len(self.unanswered) < (PIPELINE if may_pipeline else 1)

    def attempt(self, messages: int, body_bytes: int) -> Attempt:
        """Return the next publish."""
        queues = [self.queue] if self.queue is not None else list(range(self.plan.queue_count))
        attempt = Attempt([], [], self.durability, self.epoch)
        for queue in queues:
            sends = [self._send(queue, body_bytes) for _ in range(messages)]
            attempt.batches.append(
                self._rows(queue, sends) if self.sends_rows else self._batch(queue, sends)
            )
            attempt.sends.append(sends)
        self.sequence += 1
        return attempt

    def _batch(self, queue: int, sends: list[Send]) -> Batch:
        encoded = encode_batch(
            [send.body for send in sends],
            keys=[send.key for send in sends],
            queue_id=queue,
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            sequence=self.sequence,
        )
        return Batch.decode(encoded)

    def _rows(self, queue: int, sends: list[Send]) -> Rows:
        return Rows(
            queue,
            [send.body for send in sends],
            1_700_000_000_000_000 + self.sent,
            keys=[send.key for send in sends],
            producer_id=self.producer_id,
            producer_epoch=self.epoch,
            sequence=self.sequence,
        )

    def _send(self, queue: int, body_bytes: int) -> Send:
        self.sent += 1
        # The body identifies its send. All keys have one length, so that few batch sizes occur.
        start = f"{self.name} {self.sent:06d} ".encode()
        rng = random.Random(start)
        body = start + rng.randbytes(max(body_bytes - len(start), 0))
        return Send(self.name, self.sent, f"key-{queue}-{rng.randrange(3)}", body)
