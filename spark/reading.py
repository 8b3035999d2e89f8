"""The ways to a read: where its plan is made, and where the rows of a part of it come from."""

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager

import pyarrow as pa

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.catalog import Catalog
from holdfast.spark.fetch import read_range
from holdfast.spark.lease import LeaseKeeper
from holdfast.spark.offsets import QueueRange
from holdfast.spark.options import ReadOptions


def open_catalog(options: ReadOptions) -> AbstractContextManager[Catalog]:
    """Return the catalog that the options name; leaving its context closes it."""
    return BrokerClient.open(options.address)


def read_rows(parts: Sequence[QueueRange], options: ReadOptions) -> Iterator[pa.RecordBatch]:
    """Yield the rows of each part in turn, as `read_range` does; runs inside a task.

    Meanwhile the leases that keep them from retention are extended.
    """
    with BrokerClient.open(options.address) as client, LeaseKeeper(parts, options.address):
        for part in parts:
            yield from read_range(client, part, options)
