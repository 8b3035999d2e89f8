"""How a group is shown: to programs as a line of JSON, to people as one table per topic, which fits
into 80 columns, or as one wide table."""

from collections.abc import Mapping
from typing import Any

import click

from holdfast.cli.output.figures import (
    format_bytes,
    format_count,
    format_number,
    format_seconds,
    format_span,
)
from holdfast.cli.output.terminal import (
    Column,
    is_terminal,
    safe_text,
    write_json_line,
    write_table,
)

_TOPIC = Column("topic", "topic")
_QUEUE = Column("queue", "queue")
_END = Column("max_offset", "end", format_number)
_LAG = Column("lag_messages", "lag", format_number)
_LAG_BYTES = Column("lag_bytes", "lag size", format_bytes)
_BEHIND = Column("lag_seconds", "behind", format_seconds)
_NEXT = Column("next", "next", format_number)
_COUNTS = (
    Column("available", "available", format_number),
    Column("in_flight", "in flight", format_number),
    Column("delayed", "delayed", format_number),
    Column("dead", "dead", format_number),
)
_OFFSETS_ONLY = (_QUEUE, Column("offset", "offset", format_number), _END, _LAG, _LAG_BYTES, _BEHIND)
_LEASED = (_QUEUE, _NEXT, _LAG, _BEHIND, *_COUNTS)
_LEASED_WIDE = (
    _TOPIC,
    _QUEUE,
    Column("floor", "floor", format_number),
    _NEXT,
    _END,
    _LAG,
    _LAG_BYTES,
    _BEHIND,
    *_COUNTS,
    Column("expired", "expired", format_number),
    Column("lost", "lost", format_number),
    Column("served", "served", format_number),
    Column("per_second", "/s"),
)
_MEMBERS = (
    Column("member", "member"),
    Column("in_flight", "in flight", format_number),
    Column("waiting", "waiting", lambda waiting: "yes" if waiting else "no", is_text=True),
    Column("active", "active", lambda active: "yes" if active else "no", is_text=True),
)
LISTED = (
    Column("group", "group"),
    Column("mode", "mode"),
    Column("topics", "topics"),
    Column("lag_messages", "lag", format_number),
)


def show_group(described: Mapping[str, Any], *, is_wide: bool = False) -> None:
    """Write a group's description to standard output."""
    if not is_terminal():
        write_json_line(described)
        return
    config = described.get("config")
    for line in _heading(described, config):
        click.echo(safe_text(line))
    if is_wide:
        rows = [
            {"topic": topic["topic"], **_row(queue)}
            for topic in described["topics"]
            for queue in topic["queues"]
        ]
        write_table(rows, (_TOPIC, *_OFFSETS_ONLY) if config is None else _LEASED_WIDE)
    else:
        for topic in described["topics"]:
            click.echo(f"\n{safe_text(_topic_heading(topic, config))}")
            write_table(map(_row, topic["queues"]), _OFFSETS_ONLY if config is None else _LEASED)
    if config is not None and described["members"]:
        click.echo()
        write_table(described["members"], _MEMBERS)
    elif config is not None:
        click.echo("\nno members")


def _row(queue: Mapping[str, Any]) -> dict[str, Any]:
    served = queue.get("served")
    if served is None:
        return dict(queue)
    return {**queue, "served": served["count"], "per_second": round(served["rate"], 1)}


def _heading(described: Mapping[str, Any], config: Mapping[str, Any] | None) -> list[str]:
    lag = _lag(described)
    if config is None:
        return [f"{described['group']}: stores offsets only", lag]
    fairness = config["fairness"]
    lines = [
        f"{described['group']}: {config['mode']}, {fairness['engine']} by {fairness['cost']}, "
        f"leases of {format_span(config['lease_ms'])}"
    ]
    if config.get("last_value"):
        lines.append("only the newest message of each key")
    if config["dead_letter_topic"] is not None:
        lines.append(f"dead letters to {config['dead_letter_topic']}")
    in_flight = f"{described['in_flight']:,} of {config['max_in_flight']:,} in flight"
    lines.append(f"{lag}; {in_flight}")
    if described["in_flight"] >= config["max_in_flight"]:
        lines.append("AT ITS LIMIT: no message is delivered until a lease ends")
    return lines


def _topic_heading(topic: Mapping[str, Any], config: Mapping[str, Any] | None) -> str:
    parts = [_lag(topic)]
    settings = (config or {}).get("topics", {}).get(topic["topic"], {})
    if settings.get("weight", 1) != 1:
        parts.append(f"weight {settings['weight']}")
    if settings.get("filter") is not None:
        parts.append(f"filter {settings['filter']}")
    if topic.get("served") is not None:
        parts.append(f"{topic['served']['rate']:.1f} messages/s")
    return f"{topic['topic']}: {'; '.join(parts)}"


def _lag(behind: Mapping[str, Any]) -> str:
    if not behind["lag_messages"]:
        return "no lag"
    count = format_count(behind["lag_messages"], "message")
    return (
        f"lag {count}, {format_bytes(behind['lag_bytes'])}, "
        f"the oldest {format_seconds(behind['lag_seconds'])} old"
    )
