"""The overview of a broker (GET /v1/overview) as lines of text for people."""

from collections.abc import Mapping
from typing import Any

from holdfast.cli.output.figures import format_bytes, format_count, format_number, format_span

Overview = Mapping[str, Any]

_DAY_MS = 86_400_000
_DAYS_SHOWN = 365


def overview_lines(now: Overview, before: Overview | None, seconds: float) -> list[str]:
    """Return what a broker does: traffic, waiting requests, groups, delays, disk.

    `before` is an overview that was read `seconds` earlier; the rates are those since then. Without
    `before` the traffic is that since the broker started.
    """
    groups = now["groups"]
    return [
        _traffic(now, before, seconds),
        f"held: {format_count(now['held_pulls'], 'pull')} and "
        f"{format_count(groups['waiting'], 'receive')}; "
        f"connections: {format_number(now['connections'])} of HTTP, "
        f"{format_number(now['amqp_connections'])} of AMQP",
        _groups(groups),
        _delays(now),
        _disk(now["disk"]),
    ]


def _traffic(now: Overview, before: Overview | None, seconds: float) -> str:
    if before is None or seconds <= 0:
        return (
            f"since the start: {format_count(now['messages_in_total'], 'message')} in "
            f"({format_bytes(now['bytes_in_total'])}), "
            f"{format_number(now['messages_out_total'])} out "
            f"({format_bytes(now['bytes_out_total'])})"
        )

    def rate(name: str) -> int:
        # A restart of the broker sets the counters back to 0.
        counted: int = max(now[name] - before[name], 0)
        return round(counted / seconds)

    return (
        f"in: {format_number(rate('messages_in_total'))} messages/s, "
        f"{format_bytes(rate('bytes_in_total'))}/s; "
        f"out: {format_number(rate('messages_out_total'))} messages/s, "
        f"{format_bytes(rate('bytes_out_total'))}/s"
    )


def _groups(groups: Mapping[str, Any]) -> str:
    counts = [
        f"{format_number(groups['expired_leases'])} expired",
        f"{format_number(groups['dead_letters'])} dead",
    ]
    if groups["letters_not_kept"]:
        counts.append(f"{format_number(groups['letters_not_kept'])} dropped")
    return (
        f"{format_count(groups['count'], 'group')} with leases: "
        f"{format_number(groups['in_flight'])} in flight; "
        f"so far {', '.join(counts)}"
    )


def _delays(now: Overview) -> str:
    late = format_span(now["event_loop_lag_seconds"] * 1000)
    p99_s = now["sync_p99_seconds"]
    # No value: there was no sync yet, or the slowest 1 % took longer than the histogram covers.
    syncs = "p99 of syncs unknown" if p99_s is None else f"p99 of syncs {format_span(p99_s * 1000)}"
    return f"event loop late by {late}; {syncs}"


def _disk(disk: Mapping[str, int]) -> str:
    text = (
        f"disk: {format_bytes(disk['free_bytes'])} of {format_bytes(disk['total_bytes'])} free; "
        f"log {format_bytes(disk['log_bytes'])}"
    )
    if disk["bytes_per_day"] <= 0:
        return text
    left = max(disk["free_bytes"] - disk["min_free_bytes"], 0)
    days = left / disk["bytes_per_day"]
    # A broker that has just started extrapolates from seconds: 300,000 days mean nothing.
    left_text = "more than a year" if days > _DAYS_SHOWN else format_span(days * _DAY_MS)
    return f"{text}, +{format_bytes(disk['bytes_per_day'])}/day: alarm in {left_text}"
