"""What Prometheus is told of the groups with leases, all together."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.groups.service_types import GroupServiceStats


def group_metrics(stats: GroupServiceStats) -> Iterator[Metric]:
    """Yield the groups' figures as they are now."""
    gauges = {
        "groups": ("Groups with leases.", stats.groups),
        "group_waiting": ("Receives held now.", stats.waiting),
        "group_in_flight": ("Messages leased now.", stats.in_flight),
    }
    for name, (doc, value) in gauges.items():
        yield GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))
    counts = {
        "delivered": ("Messages delivered to members.", stats.delivered_total),
        "redelivered": ("Messages delivered that may have been before.", stats.redelivered_total),
        "dead_letters": ("Messages that were given up.", stats.dead_letters_total),
        "expired_leases": ("Leases whose time ran out.", stats.expired_leases_total),
        "undelivered": (
            "Messages given back because their reply was not sent.",
            stats.undelivered_total,
        ),
        "commits": ("Writes that made settling durable.", stats.commits_total),
        "commit_failures": ("Writes of settling that failed.", stats.commit_failures_total),
    }
    for name, (doc, value) in counts.items():
        yield CounterMetricFamily(f"holdfast_group_{name}", doc, value=float(value))
    settled = CounterMetricFamily(
        "holdfast_group_settled",
        "Receipts that members settled with, by what they said and what became of it.",
        labels=["verb", "status"],
    )
    for (verb, status), count in sorted(stats.settled_total.items()):
        settled.add_metric([verb, status], count)
    yield settled
