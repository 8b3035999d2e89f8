"""How topics are shown to people, with totals over their queues."""

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from holdfast.cli.output.figures import format_age, format_bytes, format_number, format_span
from holdfast.cli.output.terminal import Column

if TYPE_CHECKING:
    from holdfast.client import Client

_HELD = (
    Column("messages", "messages", format_number),
    Column("bytes", "size", format_bytes),
    Column("newest_timestamp_ms", "newest", format_age),
)
LISTED = (Column("topic", "topic"), Column("queue_count", "queues", format_number), *_HELD)
QUEUES = (
    Column("queue", "queue"),
    Column("min_offset", "begins", format_number),
    Column("max_offset", "ends", format_number),
    *_HELD,
)


def described_topics(client: "Client") -> Iterator[dict[str, Any]]:
    """Yield each topic as the broker lists it, with totals over its queues."""
    from holdfast.client.errors import UnknownTopic

    for listed in client.topics():
        try:
            queues = client.describe_topic(listed["topic"])["queues"]
        except UnknownTopic:  # deleted meanwhile
            continue
        newest = [each["newest_timestamp_ms"] for each in queues]
        yield {
            **listed,
            "messages": sum(map(message_count, queues)),
            "bytes": sum(each["bytes"] for each in queues),
            "newest_timestamp_ms": max((at for at in newest if at is not None), default=None),
        }


def message_count(queue: Mapping[str, Any]) -> int:
    return int(queue["max_offset"] - queue["min_offset"])


def format_settings(described: Mapping[str, Any]) -> str:
    config = described["config"]
    kept = []
    if config["retention_ms"] is not None:
        kept.append(format_span(config["retention_ms"]))
    if config["retention_bytes"] is not None:
        kept.append(format_bytes(config["retention_bytes"]))
    parts = [
        f"durability {config['durability']}",
        f"keeps {' or '.join(kept)}" if kept else "keeps everything",
        f"messages of up to {format_bytes(config['max_message_bytes'])}",
    ]
    if "max_bytes" in config:
        parts.append(f"at most {format_bytes(config['max_bytes'])}")
    if config.get("priority_levels", 1) != 1:
        parts.append(f"{config['priority_levels']} levels of priority")
    return ", ".join(parts)
