"""Prometheus metrics of the storage. Gauges are read at each scrape."""

import shutil
from collections.abc import Callable, Iterator
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
        yield from self.syncs.collect()
        storage = self.storage
        if storage is None:
            return
        for name, doc, value in _GAUGES:
            yield GaugeMetricFamily(f"holdfast_{name}", doc, value=value(storage))
        for name, doc, value in _COUNTERS:
            yield CounterMetricFamily(f"holdfast_{name}", doc, value=value(storage))
        alarms = GaugeMetricFamily(
            "holdfast_alarm", "1 while this stops publishing.", labels=["alarm"]
        )
        raised = storage.raised_alarms
        for name in storage.alarms.by_name:
            alarms.add_metric([name], int(name in raised))
        yield alarms
        readers = GaugeMetricFamily(
            "holdfast_lmdb_oldest_reader_seconds",
            "For how long the oldest reader has kept pages from being used again.",
            labels=["environment"],
        )
        for name, seconds in storage.readers.oldest_s().items():
            readers.add_metric([name], seconds)
        yield readers
        corrupt = CounterMetricFamily(
            "holdfast_corrupt_records", "Damaged places found, each once.", labels=["reason"]
        )
        for reason, count in sorted(storage.opened.damage.counts.items()):
            corrupt.add_metric([reason], count)
        yield corrupt


def _behind_bytes(storage: "Storage") -> int:
    return max(storage.log.written_offset - storage.opened.reput.reput_offset, 0)


_Metrics = tuple[tuple[str, str, Callable[["Storage"], float]], ...]

#: Name, description and value of each metric without labels.
_GAUGES: _Metrics = (
    ("log_end_offset", "Physical offset where the log ends.", lambda s: s.log.written_offset),
    (
        "log_durable_offset",
        "Physical offset up to which the log is synced.",
        lambda s: s.syncer.durable_offset,
    ),
    ("log_min_offset", "Physical offset of the first byte kept.", lambda s: s.log.min_offset),
    ("log_segments", "Segment files of the log.", lambda s: len(s.log.segments)),
    ("log_size_bytes", "Bytes of all segment files.", lambda s: s.log.size_bytes),
    ("index_behind_bytes", "Bytes of the log that no queue has yet.", _behind_bytes),
    (
        "index_uncommitted_entries",
        "Index entries that are in memory only.",
        lambda s: s.opened.reput.uncommitted_count,
    ),
    (
        "reput_behind_messages",
        "Appended messages that the reput thread has not written to the index yet.",
        lambda s: s.opened.reput.behind_messages,
    ),
    (
        "append_waiting_bytes",
        "Bytes that wait for the appender.",
        lambda s: s.appender.waiting_bytes,
    ),
    ("read_only", "1 when nothing can be published.", lambda s: int(bool(s.read_only))),
    (
        "in_flight_bytes",
        "Bytes of publishes accepted and not answered yet.",
        lambda s: s.admission.in_flight_bytes,
    ),
    ("degraded", "Damages that are known.", lambda s: len(s.degraded)),
    (
        "disk_free_bytes",
        "Free bytes on the log's file system.",
        lambda s: shutil.disk_usage(s.log.directory).free,
    ),
    (
        "scrub_offset",
        "Physical offset where the scrub is.",
        lambda s: s.scrub.progress.physical_offset,
    ),
)
_COUNTERS: _Metrics = (
    (
        "segments_deleted",
        "Segments that retention deleted.",
        lambda s: s.retention.deleted_segments,
    ),
    ("scrub_bytes", "Bytes that the scrub has read.", lambda s: s.scrub.progress.bytes),
    (
        "scrub_passes",
        "How often the scrub reached the log's end.",
        lambda s: s.scrub.progress.passes,
    ),
)
