"""A broker's status, read from its readiness endpoint and its metrics."""

import time
from collections import defaultdict
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.client import Client

#: A certificate that expires within this time is reported as a problem.
CERTIFICATE_WARNING_S = 14 * 86_400


@dataclass(slots=True)
class TopicStatus:
    """The metrics of one topic. The counts of messages and bytes in and out begin at the start of
    the broker."""

    topic: str
    messages: int = 0
    bytes: int = 0
    oldest_seconds: float | None = None
    messages_in: int = 0
    messages_out: int = 0
    bytes_in: int = 0
    bytes_out: int = 0


@dataclass(slots=True)
class GroupStatus:
    """A group's lag on a topic, according to its stored offsets."""

    group: str
    topic: str
    lag_messages: int
    lag_seconds: float | None = None


@dataclass(slots=True)
class BrokerFigures:
    """The values that are read from the broker's metrics."""

    version: str = ""
    uptime_seconds: float = 0.0
    resident_bytes: int = 0
    connections: int = 0
    held_pulls: int = 0
    held_receives: int = 0
    in_flight: int = 0
    disk_free_bytes: int = 0
    log_bytes: int = 0
    log_segments: int = 0
    topic_count: int = 0
    group_count: int = 0
    groups_at_limit: list[str] = field(default_factory=list)
    certificate_expires_seconds: float | None = None  # from now; None without TLS
    topics: list[TopicStatus] = field(default_factory=list)
    groups: list[GroupStatus] = field(default_factory=list)


@dataclass(slots=True)
class BrokerStatus:
    """A broker's status. `figures` is None if the token does not permit reading the metrics."""

    url: str
    phase: str
    read_at: float  # in seconds, on the monotonic clock
    degraded: list[dict[str, str]]
    read_only: str | None
    alarms: Mapping[str, str]
    figures: BrokerFigures | None = None

    @property
    def problems(self) -> list[str]:
        found = [] if self.phase == "ready" else [f"the broker is {self.phase}"]
        if self.read_only is not None:
            found.append(f"nothing can be published: {self.read_only}")
        found += [f"publishing is refused ({name}): {why}" for name, why in self.alarms.items()]
        found += [f"damage ({each['reason']}): {each['detail']}" for each in self.degraded]
        if self.figures is not None:
            found += [
                f"the group {group} is at its limit and delivers nothing new for now"
                for group in self.figures.groups_at_limit
            ]
            expires_s = self.figures.certificate_expires_seconds
            if expires_s is not None and expires_s < CERTIFICATE_WARNING_S:
                days = max(int(expires_s // 86_400), 0)
                found.append(f"the broker's certificate expires in {days} days")
        return found

    @property
    def is_well(self) -> bool:
        return not self.problems

    def as_row(self) -> dict[str, Any]:
        """Return the status in the form that is written as a line of JSON."""
        row = asdict(self)
        del row["read_at"]
        return {"is_well": self.is_well, **row}


def read_status(client: "Client") -> BrokerStatus:
    """Return the status of the client's broker. If the token does not permit reading the metrics,
    `figures` is None. Raises all other errors of the client."""
    from holdfast.client.errors import Forbidden, Unauthenticated

    ready = client.status()
    fields = {name: ready[name] for name in ("phase", "degraded", "read_only", "alarms")}
    found = BrokerStatus(url=client.url, read_at=time.monotonic(), **fields)
    with suppress(Forbidden, Unauthenticated):
        found.figures = parse_figures(client.metrics(), time.time())
    return found


def parse_figures(text: str, now_s: float) -> BrokerFigures:
    """Return the figures from the metrics, given in the Prometheus text format."""
    from prometheus_client.parser import text_string_to_metric_families

    samples: defaultdict[str, list[tuple[dict[str, str], float]]] = defaultdict(list)
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            name = sample.name.removeprefix("holdfast_")
            samples[name].append((sample.labels, sample.value))

    def number(name: str) -> float:
        return samples[name][0][1] if samples[name] else 0.0

    expiry = samples["tls_certificate_expiry_timestamp_seconds"]
    start_s = number("process_start_time_seconds")
    return BrokerFigures(
        version=samples["build_info"][0][0]["version"] if samples["build_info"] else "",
        uptime_seconds=round(max(now_s - start_s, 0.0), 3) if start_s else 0.0,
        group_count=_group_count(samples),
        groups_at_limit=[labels["group"] for labels, _ in samples["group_at_limit"]],
        certificate_expires_seconds=round(expiry[0][1] - now_s, 3) if expiry else None,
        topics=_topics(samples),
        groups=_groups(samples),
        **{name: int(number(metric)) for name, metric in _NUMBERS.items()},
    )


#: Field of BrokerFigures -> the metric.
_NUMBERS = {
    "resident_bytes": "process_resident_memory_bytes",
    "connections": "http_connections",
    "held_pulls": "long_poll_parked",
    "held_receives": "group_waiting",
    "in_flight": "group_in_flight",
    "disk_free_bytes": "disk_free_bytes",
    "log_bytes": "log_size_bytes",
    "log_segments": "log_segments",
    "topic_count": "topics",
}

_Samples = Mapping[str, Iterable[tuple[dict[str, str], float]]]

_TOPIC_FIELDS = {
    "topic_messages": "messages",
    "topic_bytes": "bytes",
    "messages_in_total": "messages_in",
    "messages_out_total": "messages_out",
    "bytes_in_total": "bytes_in",
    "bytes_out_total": "bytes_out",
}


def _topics(samples: _Samples) -> list[TopicStatus]:
    """Return the topics, the largest first."""
    found: dict[str, TopicStatus] = {}
    for metric, name in _TOPIC_FIELDS.items():
        for labels, value in samples[metric]:
            topic = found.setdefault(labels["topic"], TopicStatus(labels["topic"]))
            setattr(topic, name, int(value))
    for labels, value in samples["topic_oldest_message_seconds"]:
        if (known := found.get(labels["topic"])) is not None:
            known.oldest_seconds = value
    return sorted(found.values(), key=lambda topic: (-topic.bytes, topic.topic))


def _group_count(samples: _Samples) -> int:
    """Return the number of groups, with and without leases.

    A group with leases has no lag until its floors are stored as offsets, which takes some seconds
    (`groups.mirror_interval_ms`). A broker that is older than this command does not
    count groups without leases: then return at least the number of groups that have a lag.
    """
    counted = sum(
        value for name in ("groups", "groups_without_leases") for _, value in samples[name]
    )
    with_lag = {labels["group"] for labels, _ in samples["group_lag_messages"]}
    return max(int(counted), len(with_lag))


def _groups(samples: _Samples) -> list[GroupStatus]:
    """Return the lag of each group on each topic, the largest lag first."""
    ages = {
        (labels["group"], labels["topic"]): value for labels, value in samples["group_lag_seconds"]
    }
    found = [
        GroupStatus(
            labels["group"],
            labels["topic"],
            int(value),
            ages.get((labels["group"], labels["topic"])),
        )
        for labels, value in samples["group_lag_messages"]
    ]
    return sorted(found, key=lambda each: (-each.lag_messages, each.group, each.topic))
