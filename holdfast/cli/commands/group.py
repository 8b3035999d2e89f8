"""holdfast group: show groups, and change their stored offsets.

The commands for groups with leases are in group_leases.py.
"""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.input.connection import with_client
from holdfast.cli.input.start_position import AtTime, Earliest, Latest, Start
from holdfast.cli.input.values import as_group, as_span, as_start, as_topic
from holdfast.cli.output.group_view import LISTED, show_group
from holdfast.cli.output.terminal import is_terminal, write_json_line, write_rows

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.consume.group_requests import ResetTo


@click.group()
def group() -> None:
    """Create groups, show their progress, and change their positions."""


@group.command("list")
@with_client
def list_groups(client: "Client") -> None:
    """List the groups by name. A group without a mode only stores offsets."""
    write_rows(client.groups(), LISTED)


@group.command("describe")
@click.argument("name", callback=as_group)
@click.option("--watch", is_flag=True, help="Repeat until Ctrl-C.")
@click.option(
    "--interval",
    "interval_ms",
    callback=as_span(100, unit="s"),
    metavar="TIME",
    default="2s",
    show_default=True,
    help="Time between repetitions of --watch: 2s, 500ms, or seconds.",
)
@click.option(
    "--wide", is_flag=True, help="Print one table with every column, 160 characters wide."
)
@with_client
def describe(client: "Client", name: str, watch: bool, interval_ms: int, wide: bool) -> None:
    """Show a group's lag, queue by queue.

    For a group with leases, this also shows the available, in-flight, delayed and dead messages,
    how many were served, and the members.
    """
    from time import sleep

    show_group(client.describe_group(name), is_wide=wide)
    while watch:
        sleep(interval_ms / 1000)
        described = client.describe_group(name)
        if is_terminal():
            click.clear()
        show_group(described, is_wide=wide)
        sys.stdout.flush()


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
    """Change the offsets that a group has stored for a topic."""
    moved = client.reset_offsets(name, topic, to=_target(to), dry_run=dry_run)
    if not is_terminal():
        write_json_line(moved)
        return
    title = f"{name} on {topic}: " + ("nothing was changed (--dry-run)" if dry_run else "moved")
    write_rows(_before_and_after(moved), ["queue", "before", "after", "change"], title=title)


def _target(start: Start) -> "ResetTo":
    """Return the value of --to as the argument of Client.reset_offsets."""
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
