"""holdfast publish: the lines of a file or of a pipe become messages."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from holdfast.cli.connection import with_client
from holdfast.cli.exits import Failure
from holdfast.cli.lines import Extractor, LineError, read_lines
from holdfast.cli.output import write_json_line
from holdfast.cli.values import as_regex, as_size

if TYPE_CHECKING:
    from holdfast.client import Client

_PROGRESS_INTERVAL_S = 0.1


@click.command()
@click.argument("topic")
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
    durability: str | None,
    batch_bytes: int | None,
) -> None:
    """Publish each line of FILE (or of standard input) as a message.

    A line's bytes are kept as they are, without the line break. Lines with the same key keep
    their order. Ends with a summary as a line of JSON, once all is acknowledged.
    """
    key_of, tag_of = _extractor("key", key_regex), _extractor("tag", tag_regex)
    sizes = {"batch_bytes": batch_bytes} if batch_bytes is not None else {}
    count, size, last = 0, 0, None
    started = time.perf_counter()
    try:
        with (
            _progress(file) as advance,
            client.producer(topic, queue=queue, durability=durability, **sizes) as producer,
        ):
            for count, line in enumerate(read_lines(file), 1):
                last = producer.send(line, key=key_of(line, count), tag=tag_of(line, count))
                size += len(line)
                advance(len(line) + 1)
    except LineError as error:
        raise Failure(f"{file.name}, {error}; the lines before it were published") from error
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


@contextmanager
def _progress(file: BinaryIO) -> Iterator[Callable[[int], None]]:
    """Show progress on standard error while a person looks; yields what counts a line's bytes."""
    if not sys.stderr.isatty():
        yield lambda size: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeElapsedColumn

    with Progress(
        TextColumn("{task.fields[messages]:,} messages"),
        BarColumn(),
        DownloadColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
    ) as bar:
        task = bar.add_task("publish", total=_size_of(file), messages=0)
        messages = size = 0
        shown_at = time.monotonic()

        def show() -> None:
            bar.update(task, completed=size, messages=messages)

        def advance(line_size: int) -> None:
            nonlocal messages, size, shown_at
            messages += 1
            size += line_size
            if time.monotonic() - shown_at > _PROGRESS_INTERVAL_S:
                shown_at = time.monotonic()
                show()

        yield advance
        show()


def _size_of(file: BinaryIO) -> int | None:
    """Return how much there is to read; None for a pipe."""
    path = Path(file.name) if isinstance(file.name, str) else None
    return path.stat().st_size if path is not None and path.is_file() else None
