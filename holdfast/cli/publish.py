"""holdfast publish: the lines of a file or of a pipe become messages."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from holdfast.cli.connection import with_client
from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.lines import Extractor, LineError, read_lines
from holdfast.cli.output import write_json_line
from holdfast.cli.progress import progress
from holdfast.cli.values import as_duration, as_regex, as_size, as_topic

if TYPE_CHECKING:
    from holdfast.client import Client


@click.command()
@click.argument("topic", callback=as_topic)
@click.argument("file", type=click.File("rb"), default="-")
@click.option(
    "--key-regex",
    callback=as_regex,
    metavar="REGEX",
    help="Where a line's key is: group 1, or the match.",
)
@click.option(
    "--tag-regex",
    callback=as_regex,
    metavar="REGEX",
    help="Where a line's tag is: group 1, or the match.",
)
@click.option("--queue", type=click.IntRange(0), help="Send all to this queue.")
@click.option("--priority", type=click.IntRange(0, 9), help="Of all; 4 if not given.")
@click.option(
    "--ttl",
    "ttl_ms",
    callback=as_duration,
    metavar="TIME",
    help="Groups deliver nothing that is older: 90s, 12h, 30d.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "written"]),
    help="Count as stored once synced, or once written. Default: as the topic says.",
)
@click.option(
    "--batch-bytes",
    callback=as_size,
    metavar="SIZE",
    help="Send a batch when it has so many bytes.",
)
@with_client
def publish(
    client: "Client",
    topic: str,
    file: BinaryIO,
    key_regex: str | None,
    tag_regex: str | None,
    queue: int | None,
    priority: int | None,
    ttl_ms: int | None,
    durability: str | None,
    batch_bytes: int | None,
) -> None:
    """Publish each line of FILE (or of standard input) as a message.

    A line's bytes are kept as they are, without the line break. Lines with the same key keep
    their order. Ends with a summary as a line of JSON, once all is acknowledged.
    """
    from holdfast.client.errors import MessageTooLarge

    if queue is not None and priority is not None:
        raise click.UsageError("A queue has its level: give --queue or --priority, not both.")
    if batch_bytes == 0:
        raise click.UsageError("A batch of no bytes takes no message: give --batch-bytes more.")
    key_of, tag_of = _extractor("key", key_regex), _extractor("tag", tag_regex)
    sizes = {"batch_bytes": batch_bytes} if batch_bytes is not None else {}
    name = getattr(file, "name", "<stdin>")
    count, size, last, total = 0, 0, None, _size_of(name)
    started = time.perf_counter()
    try:
        with (
            progress("messages") as show,
            client.producer(
                topic, queue=queue, durability=durability, priority=priority, **sizes
            ) as producer,
        ):
            for count, line in enumerate(read_lines(file), 1):
                key, tag = key_of(line, count), tag_of(line, count)
                last = producer.send(line, key, tag, ttl_ms=ttl_ms)
                size += len(line)
                show(size + count, total, count)
    except LineError as error:
        raise Failure(f"{name}, {error}; the lines before it were published") from error
    except MessageTooLarge as error:
        sentence = f"{name}, line {count}: {error}; the lines before it were published"
        raise Failure(sentence, ExitCode.USAGE) from error
    summary = {
        "topic": topic,
        "messages": count,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 3),
        # One durability holds for the whole run, so the last answer tells it.
        "durable": last.result().durable if last is not None else None,
    }
    write_json_line(summary)


def _extractor(what: str, pattern: str | None) -> Callable[[bytes, int], str | None]:
    return Extractor(what, pattern).find if pattern is not None else lambda line, number: None


def _size_of(name: str | int) -> int | None:
    """Return how much there is to read in a file of this name; None for a pipe."""
    path = Path(str(name))
    return path.stat().st_size if path.is_file() else None
