"""holdfast topic: create, list, describe, change and delete topics."""

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.input.connection import with_client
from holdfast.cli.input.values import as_size, as_span, as_topic
from holdfast.cli.output.terminal import is_terminal, write_json_line, write_rows, write_table
from holdfast.cli.output.topic_view import (
    LISTED,
    QUEUES,
    described_topics,
    format_settings,
    message_count,
)

if TYPE_CHECKING:
    from holdfast.client import Client


def _settings(command: Any) -> Any:
    """Give a command the options for a topic's settings. An option that is not given is None."""
    durability = click.Choice(["fsync", "written"])
    size: Any = {"callback": as_size, "metavar": "SIZE"}
    for name, how, what in (
        (
            "--queues",
            {"type": click.IntRange(min=1)},
            "Number of queues of each priority level.",
        ),
        (
            "--durability",
            {"type": durability},
            "Acknowledge once synced to disk, or once written to the operating system.",
        ),
        (
            "--retention-ms",
            {"callback": as_span(), "metavar": "TIME"},
            "Delete messages older than this, such as 12h or 7d; 0: never.",
        ),
        ("--retention-bytes", size, "Delete the oldest messages above this size; 0: never."),
        ("--max-bytes", size, "Size of the topic at which publishes are refused; 0: no limit."),
        ("--max-message-bytes", size, "Size of the largest body that is accepted."),
    ):
        command = click.option(name, help=what, **how)(command)
    return command


def _without_unset(settings: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if value is not None}


@click.group()
def topic() -> None:
    """Create, list, describe, change and delete topics."""


@topic.command("create")
@click.argument("name", callback=as_topic)
@_settings
@click.option(
    "--priority-levels",
    type=click.IntRange(1, 10),
    help="Number of priority levels, each with queues of its own. It cannot be changed.",
)
@with_client
def create(client: "Client", name: str, **settings: Any) -> None:
    """Create a topic, or check its settings.

    A topic that exists with other settings is not changed, and the exit code is 5.
    """
    client.create_topic(name, **_without_unset(settings))
    _show(client.describe_topic(name))


@topic.command("list")
@click.option(
    "--names", is_flag=True, help="Print only the names, one per line, with a single request."
)
@with_client
def list_topics(client: "Client", names: bool) -> None:
    """List the topics, their sizes and newest messages.

    This takes a request for each topic; --names does not.
    """
    if names:
        for each in client.topics():
            click.echo(each["topic"])
        return
    write_rows(described_topics(client), LISTED)


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
    given = _without_unset(settings)
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
        if click.prompt(f"All messages of {name} will be lost. Type its name", err=True) != name:
            raise click.UsageError("This is not its name; nothing was deleted.")
    client.delete_topic(name)


def _show(described: Mapping[str, Any]) -> None:
    if not is_terminal():
        write_json_line(described)
        return
    click.echo(f"{described['topic']} (id {described['topic_id']}): {format_settings(described)}")
    queues = [{**queue, "messages": message_count(queue)} for queue in described["queues"]]
    write_table(queues, QUEUES)
