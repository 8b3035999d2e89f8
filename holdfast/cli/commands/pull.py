"""holdfast pull: read a range of a topic, or follow it."""

import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.input.connection import with_client
from holdfast.cli.input.start_position import AtOffset, AtTime, Start
from holdfast.cli.input.values import as_formatter, as_start, as_topic
from holdfast.cli.output.message_format import FIELDS, NAMES, Formatter

if TYPE_CHECKING:
    from holdfast.client import Client, Message


_FORMAT_HELP = (
    f"{', '.join(NAMES)}, or a format: "
    + ", ".join(f"%{sign} {meaning}" for sign, (meaning, _) in FIELDS.items())
    + "; \\n \\t \\xHH. Default: pretty on a terminal, else json."
)


#: Gives a command the option --format. The command receives the formatter as `form`.
format_option = click.option(
    "--format", "form", callback=as_formatter, metavar="FORM", help=_FORMAT_HELP
)


@click.command()
@click.argument("topic", callback=as_topic)
@click.option("--queue", type=click.IntRange(0), help="Read this queue only.")
@click.option(
    "--from",
    "start",
    callback=as_start,
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help="earliest, latest, an offset, or a time: 2026-11-21T10:00:00Z, epoch ms, -1h.",
)
@click.option(
    "--until", callback=as_start, metavar="PLACE", help="Stop before this offset or time."
)
@click.option("--follow", is_flag=True, help="Wait for new messages at the end; Ctrl-C stops.")
@click.option("--max", "count", type=click.IntRange(0), help="Stop after this many messages.")
@click.option("--tag", help="Only messages with one of these tags: a,b.")
@click.option(
    "--filter", "expression", help="Only messages for which this SQL92 expression is true."
)
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Skip messages that are damaged on the broker's disk, and print which ones.",
)
@format_option
@with_client
def pull(
    client: "Client",
    topic: str,
    queue: int | None,
    start: Start,
    until: Start | None,
    follow: bool,
    count: int | None,
    tag: str | None,
    expression: str | None,
    skip_corrupt: bool,
    form: Formatter,
) -> None:
    """Print the messages of TOPIC, from all queues or one.

    The messages of one queue are in order. Between queues there is no order.
    """
    if follow and until is not None:
        raise click.UsageError("--follow and --until contradict each other: give one of them.")
    if queue is None and (isinstance(start, AtOffset) or isinstance(until, AtOffset)):
        raise click.UsageError("An offset needs a queue: give --queue.")
    if follow or until is not None:
        # This request fails at once if there is no broker or no such topic. With --follow the
        # reader below would retry for ever, because it survives restarts of the broker.
        queue_count = client.describe_topic(topic)["queue_count"]
    out = sys.stdout.buffer
    with client.pull(
        topic,
        queue=queue,
        follow=follow,
        tag=tag,
        filter=expression,
        skip_corrupt=skip_corrupt,
        **_start_arguments(start),
    ) as reader:
        messages: Iterable[Message] = reader
        if until is not None:
            messages = _before(until, reader, queue_count if queue is None else 1)
        for message in islice(messages, count):
            out.write(form(message))
            if follow:
                out.flush()


def _start_arguments(start: Start) -> dict[str, Any]:
    match start:
        case AtOffset(offset):
            return {"offset": offset}
        case AtTime(timestamp_ms):
            return {"timestamp_ms": timestamp_ms}
        case _:
            return {"start": start}


def _before(until: Start, messages: "Iterable[Message]", queues: int) -> "Iterator[Message]":
    """Yield messages before `until`, and stop once every queue has reached it."""
    ended: set[int] = set()
    for message in messages:
        if message.queue not in ended and not _is_reached(until, message):
            yield message
            continue
        ended.add(message.queue)
        if len(ended) == queues:
            return


def _is_reached(until: Start, message: "Message") -> bool:
    match until:
        case AtOffset(offset):
            return message.offset >= offset
        case AtTime(timestamp_ms):
            return message.store_timestamp_ms >= timestamp_ms
        case _:
            return until == "earliest"
