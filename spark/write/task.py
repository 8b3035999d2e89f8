"""Write one partition's rows to the broker. Runs inside a task, but does not import pyspark.

While one window (a section of the partition, see windows.py) is being sent, the rows of the next
window are read from Spark and encoded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.format.header_table import Int64s
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import BrokerRefused
from holdfast.spark.options.write import WriteOptions
from holdfast.spark.write.columns import Column
from holdfast.spark.write.outgoing import BatchEncoder, OutgoingBatch
from holdfast.spark.write.partitioner import TargetTopic
from holdfast.spark.write.producer_identity import Producer
from holdfast.spark.write.publisher import Publisher, WriteCounts
from holdfast.spark.write.rows import check_rows
from holdfast.spark.write.windows import Window, cut_windows


def write_partition(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    columns: Mapping[str, Column],
    producer: Producer,
    *,
    sort_by: Sequence[Column] = (),
) -> WriteCounts:
    """Store all rows of a partition. Return once they are as durable as requested.

    With `sort_by`, all rows are read and sorted before the first row is sent. After an error, rows
    that were stored remain. The next attempt of the same producer finds them and does not store
    them again. Raises UnwritableRow, WriteRefused, ReplayDiffers, BrokerUnavailable, BrokerRefused.
    """
    with (
        BrokerClient.open(options.address) as lookup_client,
        BrokerClient.open(options.address) as publish_client,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-publish") as executor,
    ):
        publisher = Publisher(publish_client, producer, options.durability)
        targets = TargetTopics(lookup_client, options)
        encoder = BatchEncoder(producer)
        pending: Future[None] | None = None
        for window in cut_windows(
            _check_batches(_sort_rows(batches, sort_by), columns, producer.partition),
            max_rows=options.max_batch_rows,
            max_bytes=options.max_batch_bytes,
            digest=encoder.digest,
        ):
            outgoing = list(_encode_window(window, targets, encoder))
            if pending is not None:
                pending.result()
            pending = executor.submit(publisher.send, outgoing)
        if pending is not None:
            pending.result()
    return publisher.finish()


class TargetTopics:
    """The topics of a write. Their states are requested from the broker on first use."""

    def __init__(self, client: BrokerClient, options: WriteOptions) -> None:
        self._client = client
        self._create = options.create_topic
        self._topic = options.topic
        self._found: dict[str, TargetTopic] = {}

    def of(self, window: Window) -> Iterator[tuple[TargetTopic, Int64s | None]]:
        """Yield each topic of a window, in the order of their first rows, with the positions of its
        rows in the window; None means all rows. Raises BrokerRefused for a topic that does not
        exist, or that the token may not access."""
        if self._topic is not None:
            yield self.get(self._topic), None
            return
        coded = window.rows.column("topic").dictionary_encode()
        indexes = coded.indices.to_numpy()
        for at, name in enumerate(coded.dictionary.to_pylist()):
            chosen = None if len(coded.dictionary) == 1 else np.flatnonzero(indexes == at)
            yield self.get(name), chosen

    def get(self, name: str) -> TargetTopic:
        """Return a topic. Create it if it is missing and createTopic is set."""
        if name not in self._found:
            try:
                found = self._client.describe(name)
            except BrokerRefused as refused:
                if refused.type != "/problems/unknown-topic" or not self._create:
                    raise
                self._client.create_topic(name)
                found = self._client.describe(name)
            levels = found.priority_levels or 1
            self._found[name] = TargetTopic(name, found.topic_id, len(found.queues), levels)
        return self._found[name]


def _sort_rows(
    batches: Iterable[pa.RecordBatch], columns: Sequence[Column]
) -> Iterable[pa.RecordBatch]:
    """Return the rows sorted by these columns, nulls last; unchanged if there are no columns."""
    if not columns:
        return batches
    read = list(batches)
    if not read:
        return read
    table = pa.Table.from_batches(read)
    order = pc.sort_indices(table, [(column.name, "ascending") for column in columns])
    in_order: list[pa.RecordBatch] = table.take(order).to_batches()
    return in_order


def _check_batches(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, Column], partition: int
) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for batch in batches:
        if len(batch):
            yield check_rows(batch, columns, partition=partition, first_row=first_row)
        first_row += len(batch)


def _encode_window(
    window: Window, targets: TargetTopics, encoder: BatchEncoder
) -> Iterator[OutgoingBatch]:
    for target, indexes in targets.of(window):
        yield from encoder.encode(window, target, indexes)
