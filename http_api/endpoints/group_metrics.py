"""The Prometheus metrics of groups with leases, mostly as totals over all groups."""

from collections.abc import Iterator
from itertools import islice

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from holdfast.groups.service_types import GroupServiceStats

#: At most this many groups have a series of their own.
MAX_SERIES = 1000


def group_metrics(stats: GroupServiceStats) -> Iterator[Metric]:
    """Yield the current values of the groups as metrics."""
    gauges = {
        "groups": ("Groups with leases.", stats.groups),
        "group_waiting": ("Receives held now.", stats.waiting),
        "group_in_flight": ("Messages leased now.", stats.in_flight),
        "groups_at_limit": (
            "Groups that deliver nothing new until a lease ends or a message that came back is "
            "settled: max_in_flight are leased, or as many came back as groups.max_returned or "
            "max_returned_per_group allows.",
            len(stats.at_limit),
        ),
    }
    for name, (doc, value) in gauges.items():
        yield GaugeMetricFamily(f"holdfast_{name}", doc, value=float(value))
    at_limit = GaugeMetricFamily(
        "holdfast_group_at_limit",
        "1 for each group that delivers nothing new, as holdfast_groups_at_limit counts them.",
        labels=["group"],
    )
    for group in islice(stats.at_limit, MAX_SERIES):
        at_limit.add_metric([group], 1)
    yield at_limit
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
    not_kept = CounterMetricFamily(
        "holdfast_group_dead_letters_not_kept",
        "Dead letters that their topic did not get, by reason.",
        labels=["reason"],
    )
    for reason, count in sorted(stats.letters_not_kept_total.items()):
        not_kept.add_metric([reason], count)
    yield not_kept
    settled = CounterMetricFamily(
        "holdfast_group_settled",
        "Receipts that members settled with, by what they said and what became of it.",
        labels=["verb", "status"],
    )
    for (verb, status), count in sorted(stats.settled_total.items()):
        settled.add_metric([verb, status], count)
    yield settled
