"""Prometheus metrics of the storage. Gauges are read at each scrape."""

import shutil
from collections.abc import Iterator
from typing import TYPE_CHECKING

from prometheus_client import Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

if TYPE_CHECKING:
    from holdfast.storage.storage import Storage

_SYNC_BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)


class StorageCollector(Collector):
    """Collects the metrics of an open Storage. While `storage` is None, it collects only the
    metrics of syncs."""

    def __init__(self) -> None:
        self.storage: Storage | None = None
        self.syncs = Histogram(
            "holdfast_fsync_seconds",
            "Time of a sync of the log.",
            buckets=_SYNC_BUCKETS,
            registry=None,
        )

    def collect(self) -> Iterator[Metric]:
        """Yield every metric of the storage."""
        yield from self.syncs.collect()
        storage = self.storage
        if storage is None:
            return
        log = storage.log
        yield _gauge(
            "holdfast_log_end_offset", "Physical offset where the log ends.", log.written_offset
        )
        yield _gauge(
            "holdfast_log_durable_offset",
            "Physical offset up to which the log is synced.",
            storage.syncer.durable_offset,
        )
        yield _gauge(
            "holdfast_log_min_offset", "Physical offset of the first byte kept.", log.min_offset
        )
        yield _gauge("holdfast_log_segments", "Segment files of the log.", len(log.segments))
        yield _gauge("holdfast_log_size_bytes", "Bytes of all segment files.", log.size_bytes)
        yield _gauge(
            "holdfast_index_behind_bytes",
            "Bytes of the log that no queue has yet.",
            max(log.written_offset - storage.opened.reput.reput_offset, 0),
        )
        yield _gauge(
            "holdfast_index_uncommitted_entries",
            "Index entries that are in memory only.",
            storage.opened.reput.uncommitted_count,
        )
        yield _gauge(
            "holdfast_reput_behind_messages",
            "Appended messages that the reput thread has not written to the index yet.",
            storage.opened.reput.behind_messages,
        )
        yield _gauge(
            "holdfast_append_waiting_bytes",
            "Bytes that wait for the appender.",
            storage.appender.waiting_bytes,
        )
        yield _gauge(
            "holdfast_read_only", "1 when nothing can be published.", int(bool(storage.read_only))
        )
        alarms = GaugeMetricFamily(
            "holdfast_alarm", "1 while this stops publishing.", labels=["alarm"]
        )
        raised = storage.raised_alarms
        for name in storage.alarms.by_name:
            alarms.add_metric([name], int(name in raised))
        yield alarms
        yield _gauge(
            "holdfast_in_flight_bytes",
            "Bytes of publishes accepted and not answered yet.",
            storage.admission.in_flight_bytes,
        )
        yield _gauge("holdfast_degraded", "Damages that are known.", len(storage.degraded))
        yield from _damage(storage)
        readers = GaugeMetricFamily(
            "holdfast_lmdb_oldest_reader_seconds",
            "For how long the oldest reader has kept pages from being used again.",
            labels=["environment"],
        )
        for name, seconds in storage.readers.oldest_s().items():
            readers.add_metric([name], seconds)
        yield readers
        yield _gauge(
            "holdfast_disk_free_bytes",
            "Free bytes on the log's file system.",
            shutil.disk_usage(log.directory).free,
        )
        deleted = CounterMetricFamily(
            "holdfast_segments_deleted", "Segments that retention deleted."
        )
        deleted.add_metric([], storage.retention.deleted_segments)
        yield deleted


def _damage(storage: "Storage") -> Iterator[Metric]:
    found = CounterMetricFamily(
        "holdfast_corrupt_records", "Damaged places found, each once.", labels=["reason"]
    )
    for reason, count in sorted(storage.opened.damage.counts.items()):
        found.add_metric([reason], count)
    yield found
    progress = storage.scrub.progress
    yield CounterMetricFamily(
        "holdfast_scrub_bytes", "Bytes that the scrub has looked at.", value=progress.bytes
    )
    yield CounterMetricFamily(
        "holdfast_scrub_passes", "How often the scrub came to the log's end.", value=progress.passes
    )
    yield _gauge(
        "holdfast_scrub_offset", "Physical offset where the scrub is.", progress.physical_offset
    )


def _gauge(name: str, doc: str, value: float) -> GaugeMetricFamily:
    return GaugeMetricFamily(name, doc, value=value)
