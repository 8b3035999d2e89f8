"""Who a task writes as: the producer that each attempt at a partition of a batch is again.

    write               producer                              epoch
    a stream's          (query of the checkpoint, partition)  the batch's number
    a named batch write (txnAppId, partition)                 txnVersion
    any other           (a name made on the driver, partition)     0

The broker stores what a producer sends under a sequence once, and refuses a lower epoch than the
highest it knows. Attempts at the same partition count sequences the same way, so what one of them
has stored the others find stored, be they later, earlier or at once.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.spark.errors import IdentityMissing
from holdfast.spark.write_options import MAX_EPOCH

#: Where Spark's micro-batches leave their names for tasks. Spark documents neither.
QUERY_PROPERTY = "sql.streaming.queryId"
BATCH_PROPERTY = "streaming.sql.batchId"


@dataclass(frozen=True, slots=True)
class Writer:
    """All tasks of one write: a name, and which of its runs it is."""

    name: str
    epoch: int


@dataclass(frozen=True, slots=True)
class Producer:
    """A writer's task, as the broker knows it. `writer` is None for one without an identity."""

    writer: Writer | None
    partition: int

    @property
    def epoch(self) -> int:
        """Which run of the writer."""
        return 0 if self.writer is None else self.writer.epoch

    def producer_id(self, generation: int = 0) -> int:
        """Return the id that it has at the broker, 0 for none. What a `generation` is, the
        publisher says."""
        if self.writer is None:
            return 0
        name = f"spark\n{self.writer.name}\n{self.partition}\n{generation}"
        digest = hashlib.sha256(name.encode()).digest()
        return int.from_bytes(digest[:8], "big") >> 1 or 1


def stream_writer(local_property: Callable[[str], str | None]) -> Writer:
    """Return the writer that a task of a stream belongs to, by what Spark says in the task.

    Raises IdentityMissing.
    """
    query, batch = local_property(QUERY_PROPERTY), local_property(BATCH_PROPERTY)
    if not query:
        raise IdentityMissing(f"query id ({QUERY_PROPERTY})")
    if batch is None or not batch.isdecimal() or int(batch) > MAX_EPOCH:
        raise IdentityMissing(f"number of the batch ({BATCH_PROPERTY})")
    return Writer(f"stream\n{query}", int(batch))
