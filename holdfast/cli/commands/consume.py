"""holdfast consume: print the messages that a group receives, and acknowledge them."""

import sys
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice
from typing import TYPE_CHECKING

import click

from holdfast.cli.commands.pull import format_option
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.values import as_group, as_span, as_topics
from holdfast.cli.output.message_format import Formatter, message_object
from holdfast.cli.output.terminal import write_json_line

if TYPE_CHECKING:
    from holdfast.client import Client, Message, ReceivedMessage

#: With --no-ack, one request shows at most this many messages.
_BROWSED = 256


@click.command()
@click.argument("topics", nargs=-1, required=True, metavar="TOPIC...", callback=as_topics)
@click.option(
    "--group", required=True, callback=as_group, help="The group whose messages are received."
)
@click.option("--member", help="Name of this member in the group. Default: a new unique name.")
@click.option("--max", "count", type=click.IntRange(0), help="Stop after this many messages.")
@click.option(
    "--follow", is_flag=True, help="Wait for new messages when all are processed; Ctrl-C stops."
)
@click.option(
    "--filter", "expression", help="Only messages with these tags (a,b), or a SQL92 condition."
)
@click.option(
    "--lease-ms",
    callback=as_span(1000),
    metavar="TIME",
    help="Duration of the leases, such as 90s.",
)
@click.option(
    "--no-ack", is_flag=True, help="Only print the next messages: no leases, no acknowledgements."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON lines, with receipt and attempt.")
@format_option
@with_client
def consume(
    client: "Client",
    topics: tuple[str, ...],
    group: str,
    member: str | None,
    count: int | None,
    follow: bool,
    expression: str | None,
    lease_ms: int | None,
    no_ack: bool,
    as_json: bool,
    form: Formatter,
) -> None:
    """Print a group's messages, and acknowledge them.

    A group that does not exist is created. Several consumers share the messages of a group.
    """
    if no_ack and follow:
        raise click.UsageError("--no-ack and --follow contradict each other: give one of them.")
    for topic in topics:
        # This request fails at once if there is no broker or no such topic. The consumer below
        # would retry for ever, because it survives restarts of the broker.
        client.describe_topic(topic)
    show = _show_json if as_json else partial(_show, form)
    if no_ack:
        for message in islice(_browse(client, topics, group, member, expression), count):
            show(message)
        return
    with client.consume(
        topics,
        group,
        member=member,
        max_in_flight=256,
        follow=follow,
        filter=expression,
        lease_ms=lease_ms,
    ) as consumer:
        for delivery in islice(iter(consumer.next, None), count):
            show(delivery)
            sys.stdout.buffer.flush()
            delivery.ack()


def _browse(
    client: "Client",
    topics: Sequence[str],
    group: str,
    member: str | None,
    expression: str | None,
) -> "Iterator[ReceivedMessage]":
    """Yield the messages that the group would receive, without leasing them."""
    from holdfast.client.consume.join import make_member_name

    browser = member or make_member_name()
    while True:
        shown = client.receive(
            group, browser, _BROWSED, topics=topics, filter=expression, browse=True
        )
        if not shown.messages:
            return
        yield from shown.messages


def _show(form: Formatter, message: "Message") -> None:
    sys.stdout.buffer.write(form(message))


def _show_json(message: "ReceivedMessage") -> None:
    write_json_line(
        {
            **message_object(message),
            "receipt": message.receipt,
            "attempt": message.attempt,
            "redelivered": message.redelivered,
        }
    )
