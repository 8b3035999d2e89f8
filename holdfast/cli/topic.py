"""holdfast topic: make, list, describe, change and delete topics."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.connection import with_client
from holdfast.cli.output import is_terminal, write_json_line, write_rows
from holdfast.cli.values import as_size, as_topic

if TYPE_CHECKING:
    from holdfast.client import Client


def _settings(command: Any) -> Any:
    """Give a command the options for what a topic can be told; those not given are None."""
    for option in (
        click.option(
            "--queues", type=click.IntRange(min=1), help="Number of queues, of each level."
        ),
        click.option(
            "--durability",
            type=click.Choice(["fsync", "written"]),
            help="Acknowledge once synced to disk, or once written to the operating system.",
        ),
        click.option(
            "--retention-ms",
            type=click.IntRange(min=0),
            help="Keep messages this long; 0: for ever.",
        ),
        click.option(
            "--retention-bytes", callback=as_size, metavar="SIZE", help="Keep this much; 0: all."
        ),
        click.option(
            "--max-message-bytes",
            callback=as_size,
            metavar="SIZE",
            help="Largest message that is taken.",
        ),
    ):
        command = option(command)
    return command


def _given(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@click.group()
def topic() -> None:
    """Make, list, describe, change and delete topics."""


@topic.command("create")
@click.argument("name", callback=as_topic)
@_settings
@click.option(
    "--priority-levels",
    type=click.IntRange(1, 10),
    help="Levels of priority, each with queues of its own; they stay as they are.",
)
@with_client
def create(client: "Client", name: str, **settings: Any) -> None:
    """Make a topic, or make sure that it is as the options say.

    A topic that exists with other values is left as it is, and the exit code is 5.
    """
    client.create_topic(name, **_given(settings))
    _show(client.describe_topic(name))


@topic.command("list")
@with_client
def list_topics(client: "Client") -> None:
    """List the topics by name."""
    write_rows(client.topics(), ["topic", "topic_id", "queue_count"])


@topic.command("describe")
@click.argument("name", callback=as_topic)
@with_client
def describe(client: "Client", name: str) -> None:
    """Show a topic's queues and settings."""
    _show(client.describe_topic(name))


@topic.command("change")
@click.argument("name", callback=as_topic)
@_settings
@with_client
def change(client: "Client", name: str, **settings: Any) -> None:
    """Change retention, durability or limits, or add queues."""
    given = _given(settings)
    if not given:
        raise click.UsageError("Nothing to change: give at least one option.")
    client.change_topic(name, **given)
    _show(client.describe_topic(name))


@topic.command("delete")
@click.argument("name", callback=as_topic)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_client
def delete(client: "Client", name: str, yes: bool) -> None:
    """Delete a topic with all its messages."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("Deleting a topic cannot be undone: confirm it with --yes.")
        if click.prompt(f"All messages of {name} will go. Its name again", err=True) != name:
            raise click.UsageError("That is not its name; nothing was deleted.")
    client.delete_topic(name)


def _show(described: Mapping[str, Any]) -> None:
    if not is_terminal():
        write_json_line(described)
        return
    config = "  ".join(
        f"{name}={'none' if value is None else value}"
        for name, value in described["config"].items()
    )
    write_rows(
        described["queues"],
        ["queue", "min_offset", "max_offset", "bytes", "newest_timestamp_ms"],
        title=f"{described['topic']} (id {described['topic_id']})  {config}",
    )
