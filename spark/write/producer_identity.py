"""The producer identity of a task. It is the same for every attempt at a partition of a batch.

    write               producer                              epoch
    stream              (query of the checkpoint, partition)  number of the batch
    named batch write   (txnAppId, partition)                 txnVersion
    other batch write   (a random name, partition)            0

The broker stores a batch with the same producer and sequence number only once, and refuses an epoch
below the highest that it knows. All attempts at a partition number their batches in the same way.
So an attempt finds the batches that another attempt has stored, even if both run at the same time.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.spark.errors import IdentityMissing
from holdfast.spark.options.write import MAX_EPOCH

#: The local properties of a task that have its query id and its micro-batch's number. Spark does
#: not document these properties.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class WriterRun:
    """Identifies one run of a write, for all its tasks: `epoch` is the number of the run."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Producer:
    """The producer that a task publishes as. `writer` is None with idempotent=false."""

    writer: WriterRun | None
    partition: int

    @property
    def epoch(self) -> int:
        return 0 if self.writer is None else self.writer.epoch

    def producer_id(self, generation: int = 0) -> int:
        """Return the producer id, or 0 without a writer. publisher.py explains generations."""
        if self.writer is None:
            return 0
        name = f"spark\n{self.writer.name}\n{self.partition}\n{generation}"
        digest = hashlib.sha256(name.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1 or 1


def identify_stream_run(local_property: Callable[[str], str | None]) -> WriterRun:
    """Return the writer of a stream's task, from the task's local properties. Raises
    IdentityMissing if the query id or the batch number is missing or unusable."""
    query, batch = local_property(QUERY_PROPERTY), local_property(BATCH_PROPERTY)
    if not query:
        raise IdentityMissing(f"query id ({QUERY_PROPERTY})")
    if batch is None or not batch.isdecimal() or int(batch) > MAX_EPOCH:
        raise IdentityMissing(f"number of the batch ({BATCH_PROPERTY})")
    return WriterRun(f"stream\n{query}", int(batch))
