"""holdfast message: find single messages, by id or by key."""

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.pull import format_option
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.values import as_topic

if TYPE_CHECKING:
    from holdfast.cli.output.message_format import Formatter
    from holdfast.client import Client


@click.group()
def message() -> None:
    """Find single messages."""


@message.command("get")
@click.argument("message_id")
@format_option
@with_client
def get(client: "Client", message_id: str, form: "Formatter") -> None:
    """Print the message with this id."""
    sys.stdout.buffer.write(form(client.message(message_id)))


@message.command("search")
@click.argument("topic", callback=as_topic)
@click.argument("key")
@click.option(
    "--limit", type=click.IntRange(1), default=64, show_default=True, help="Most printed messages."
)
@format_option
@with_client
def search(client: "Client", topic: str, key: str, limit: int, form: "Formatter") -> None:
    """Print the messages with this key, newest first."""
    for found in client.search(topic, key, limit=limit):
        sys.stdout.buffer.write(form(found))
