"""How a group is shown: a line of JSON for programs, tables for people."""

from collections.abc import Mapping
from typing import Any

from holdfast.cli.output import is_terminal, write_json_line, write_rows

_OFFSETS_ONLY = ("topic", "queue", "offset", "max_offset", "lag_messages", "lag_bytes")
_LEASED = ("topic", "queue", "floor", "next", "max_offset", "lag_messages")
_STATES = ("available", "in_flight", "delayed", "dead", "expired", "lost")


def show_group(described: Mapping[str, Any]) -> None:
    """Write a group's description to standard output."""
    if not is_terminal():
        write_json_line(described)
        return
    config = described.get("config")
    rows = [
        {"topic": topic["topic"], **queue, **_served(queue)}
        for topic in described["topics"]
        for queue in topic["queues"]
    ]
    if config is None:
        write_rows(rows, [*_OFFSETS_ONLY, "lag_seconds"], title=described["group"])
        return
    write_rows(
        rows,
        [*_LEASED, "lag_seconds", *_STATES, "served", "per_second"],
        title=_title(described, config),
    )
    if len(described["topics"]) > 1:
        shares = [
            {**config["topics"].get(topic["topic"], {}), **topic, **_served(topic)}
            for topic in described["topics"]
        ]
        write_rows(shares, ["topic", "weight", "filter", "available", "served", "per_second"])
    write_rows(described["members"], ["member", "in_flight", "waiting", "active"])


def _served(counted: Mapping[str, Any]) -> dict[str, Any]:
    served = counted.get("served")
    if served is None:
        return {}
    return {"served": served["count"], "per_second": round(served["rate"], 1)}


def _title(described: Mapping[str, Any], config: Mapping[str, Any]) -> str:
    fairness = config["fairness"]
    parts = [
        f"{described['group']}: {config['mode']}",
        f"{fairness['engine']} by {fairness['cost']}",
        f"leases of {config['lease_ms']} ms",
        f"{described['in_flight']} of {config['max_in_flight']} in flight",
    ]
    if config["dead_letter_topic"] is not None:
        parts.append(f"dead letters to {config['dead_letter_topic']}")
    return ", ".join(parts)
