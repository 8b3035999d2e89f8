"""holdfast group: the stored offsets of consumer groups, and moving them."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connection import with_client
from holdfast.cli.output import is_terminal, write_json_line, write_rows
from holdfast.cli.start import AtTime, Earliest, Latest, Start
from holdfast.cli.values import as_group, as_start, as_topic

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.async_client import ResetTo


@click.group()
def group() -> None:
    """See the stored offsets of groups, and move them."""


@group.command("list")
@with_client
def list_groups(client: "Client") -> None:
    """List the groups by name."""
    write_rows(client.groups(), ["group", "topics", "lag_messages"])


@group.command("describe")
@click.argument("name", callback=as_group)
@with_client
def describe(client: "Client", name: str) -> None:
    """Show how far a group is behind, topic by topic."""
    described = client.describe_group(name)
    if not is_terminal():
        write_json_line(described)
        return
    rows = [
        {"topic": topic["topic"], **queue}
        for topic in described["topics"]
        for queue in topic["queues"]
    ]
    write_rows(
        rows,
        ["topic", "queue", "offset", "max_offset", "lag_messages", "lag_bytes", "lag_seconds"],
        title=name,
    )


@group.command("offsets")
@click.argument("name", callback=as_group)
@click.argument("topic", callback=as_topic)
@with_client
def offsets(client: "Client", name: str, topic: str) -> None:
    """Show the offsets that a group has stored for a topic."""
    stored = client.stored_offsets(name, topic)
    if not is_terminal():
        write_json_line(
            {"group": name, "topic": topic, "offsets": stored.offsets, "etag": stored.etag}
        )
        return
    rows = [{"queue": queue, "offset": at} for queue, at in sorted(stored.offsets.items())]
    write_rows(rows, ["queue", "offset"], title=f"{name} on {topic}, etag {stored.etag}")


@group.command("reset")
@click.argument("name", callback=as_group)
@click.argument("topic", callback=as_topic)
@click.option(
    "--to",
    required=True,
    callback=as_start,
    metavar="PLACE",
    help="earliest, latest, or a time: 2026-11-21T10:00:00Z, epoch ms, -1h.",
)
@click.option("--dry-run", is_flag=True, help="Show what would change, and change nothing.")
@with_client
def reset(client: "Client", name: str, topic: str, to: Start, dry_run: bool) -> None:
    """Move a group's offsets on a topic, and show them before and after."""
    moved = client.reset_offsets(name, topic, to=_target(to), dry_run=dry_run)
    if not is_terminal():
        write_json_line(moved)
        return
    title = f"{name} on {topic}: " + ("nothing was changed (--dry-run)" if dry_run else "moved")
    write_rows(_before_and_after(moved), ["queue", "before", "after", "change"], title=title)


def _target(start: Start) -> "ResetTo":
    """Return what the client takes for --to."""
    match start:
        case Earliest():
            return "earliest"
        case Latest():
            return "latest"
        case AtTime(timestamp_ms):
            return timestamp_ms
    raise click.BadParameter("an offset fits one queue only; give a time.", param_hint="--to")


def _before_and_after(moved: Mapping[str, Any]) -> list[dict[str, Any]]:
    before, after = moved["before"], moved["after"]
    rows = []
    for queue in sorted({*before, *after}, key=int):
        old, new = before.get(queue), after.get(queue)
        change = f"{new - old:+d}" if old is not None and new is not None else "new"
        rows.append({"queue": queue, "before": old, "after": new, "change": change})
    return rows
