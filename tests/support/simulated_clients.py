"""The clients of a simulated broker, as data: the topics that were asked for, the producers and
their publishes. Bodies name their sends, so that the history checker can tell them apart."""

import asyncio
import random
from dataclasses import dataclass, field

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.commitlog.rows import Rows
from tests.support.history import Send

#: Batches that a producer has under way at most: as many as the broker can answer twice.
PIPELINE = 5
_QUEUES_PER_TOPIC = 10
#: How many of the answers never reach the client.
_LOST_ANSWERS = 0.03
#: The answer to this try always does.
MOST_TRIES = 3


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
        """Its queues' numbers in the row of the queues of all topics."""
        first = self.number * _QUEUES_PER_TOPIC
        return range(first, first + self.queue_count)


@dataclass(slots=True, eq=False)
class Attempt:
    """One publish, tried until it is answered."""

    batches: list[Batch | Rows]
    sends: list[list[Send]]
    """Per batch, its messages."""
    durability: str
    epoch: int
    task: "asyncio.Task[None] | None" = None
    tries: int = 0

    def loses_answer(self) -> bool:
        """Whether the answer to this try is lost on its way; never that to the last."""
        self.tries += 1
        draw = random.Random(self.sends[0][0].body[:16] + bytes([self.tries])).random()
        return self.tries < MOST_TRIES and draw < _LOST_ANSWERS

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
    sends_rows: bool = False
    """Its messages may share a batch with those of others; sequences count its requests then."""
    is_known: bool = False
    """It was answered once."""

    @property
    def can_send(self) -> bool:
        """Whether one more publish may be under way. It waits for each answer while the broker
        does not know it, since it might start at any sequence; and always where it counts
        requests, lest one stays half stored behind the next."""
        may_pipeline = self.is_known and self.queue is not None
        return len(self.unanswered) < (PIPELINE if may_pipeline else 1)

    def attempt(self, messages: int, body_bytes: int) -> Attempt:
        """Make the next publish."""
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
        # The body names its send; keys are of one length, so that batches are of few sizes.
        start = f"{self.name} {self.sent:06d} ".encode()
        rng = random.Random(start)
        body = start + rng.randbytes(max(body_bytes - len(start), 0))
        return Send(self.name, self.sent, f"key-{queue}-{rng.randrange(3)}", body)
