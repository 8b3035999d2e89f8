"""One partition's rows -> the broker. Runs inside a task; no pyspark.

While one window is on its way, the next is taken from Spark and encoded.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.errors import BrokerRefused
from holdfast.spark.identity import Producer
from holdfast.spark.outgoing import Encoder, Outgoing
from holdfast.spark.publisher import Publisher, Tally
from holdfast.spark.routing import Int64s, Target
from holdfast.spark.windows import Window, cut_windows
from holdfast.spark.write_columns import Column
from holdfast.spark.write_options import WriteOptions
from holdfast.spark.write_rows import check_rows


def write_partition(
    batches: Iterable[pa.RecordBatch],
    options: WriteOptions,
    columns: Mapping[str, Column],
    producer: Producer,
    *,
    sort_by: Sequence[Column] = (),
) -> Tally:
    """Store all rows of a partition; return once they are stored as durably as asked.

    With `sort_by` they are all taken and sorted before the first is sent.

    What was stored when it raises stays, and is found stored when the same producer's rows come
    again. Raises UnwritableRow, WriteRefused, ReplayDiffers, BrokerUnavailable, BrokerRefused.
    """
    with (
        BrokerClient.open(options.address) as looking_up,
        BrokerClient.open(options.address) as storing,
        ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-publish") as behind,
    ):
        publisher = Publisher(storing, producer, options.durability)
        targets = Targets(looking_up, options)
        encoder = Encoder(producer)
        under_way: Future[None] | None = None
        for window in cut_windows(
            _checked(_sorted(batches, sort_by), columns, producer.partition),
            max_rows=options.max_batch_rows,
            max_bytes=options.max_batch_bytes,
            digest=encoder.digest,
        ):
            outgoing = list(_encoded(window, targets, encoder))
            if under_way is not None:
                under_way.result()
            under_way = behind.submit(publisher.send, outgoing)
        if under_way is not None:
            under_way.result()
    return publisher.finish()


class Targets:
    """The topics that are written to, each looked up when it is first met."""

    def __init__(self, client: BrokerClient, options: WriteOptions) -> None:
        self._client = client
        self._create = options.create_topic
        self._topic = options.topic
        self._found: dict[str, Target] = {}

    def of(self, window: Window) -> Iterator[tuple[Target, Int64s | None]]:
        """Yield each topic of a window with the indexes of its rows; None: all of them.

        Topics come in the order of their first rows. Raises BrokerRefused for one that is not
        there, or that this token may not see.
        """
        if self._topic is not None:
            yield self.get(self._topic), None
            return
        coded = window.rows.column("topic").dictionary_encode()
        indexes = coded.indices.to_numpy()
        for at, name in enumerate(coded.dictionary.to_pylist()):
            chosen = None if len(coded.dictionary) == 1 else np.flatnonzero(indexes == at)
            yield self.get(name), chosen

    def get(self, name: str) -> Target:
        """Return a topic, created if that was asked for."""
        if name not in self._found:
            try:
                found = self._client.describe(name)
            except BrokerRefused as refused:
                if refused.type != "/problems/unknown-topic" or not self._create:
                    raise
                self._client.create_topic(name)
                found = self._client.describe(name)
            levels = found.priority_levels or 1
            self._found[name] = Target(name, found.topic_id, len(found.queues), levels)
        return self._found[name]


def _sorted(
    batches: Iterable[pa.RecordBatch], columns: Sequence[Column]
) -> Iterable[pa.RecordBatch]:
    """Return the rows in the order of these columns, nulls last; as they come without any."""
    if not columns:
        return batches
    taken = list(batches)
    if not taken:
        return taken
    table = pa.Table.from_batches(taken)
    order = pc.sort_indices(table, [(column.name, "ascending") for column in columns])
    in_order: list[pa.RecordBatch] = table.take(order).to_batches()
    return in_order


def _checked(
    batches: Iterable[pa.RecordBatch], columns: Mapping[str, Column], partition: int
) -> Iterator[pa.RecordBatch]:
    first_row = 0
    for batch in batches:
        if len(batch):
            yield check_rows(batch, columns, partition=partition, first_row=first_row)
        first_row += len(batch)


def _encoded(window: Window, targets: Targets, encoder: Encoder) -> Iterator[Outgoing]:
    for target, indexes in targets.of(window):
        yield from encoder.encode(window, target, indexes)
