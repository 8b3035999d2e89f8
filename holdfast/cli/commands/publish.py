"""holdfast publish: send the lines of a file or pipe as messages, or a single text."""

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.lines import LineError
from holdfast.cli.input.outgoing import Outgoing, finder, json_lines, text_lines
from holdfast.cli.input.values import as_duration, as_properties, as_regex, as_size, as_topic
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import write_json_line

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.descriptions import Durability

_STDIN = "-"


@click.command()
@click.argument("topic", callback=as_topic)
@click.argument("file", default=_STDIN)
@click.option("--body", metavar="TEXT", help="Publish this text as one message, and read no FILE.")
@click.option(
    "--json",
    "as_json",
    is_flag=True,
    help="Each line is a message as 'pull' prints it: body or body_base64, key, tag, properties.",
)
@click.option("--message-key", metavar="KEY", help="Key of the message, or of each line.")
@click.option("--tag", help="Tag of the message, or of each line.")
@click.option(
    "--property",
    "properties",
    multiple=True,
    callback=as_properties,
    metavar="NAME=VALUE",
    help="A property of the message, or of each line; may be repeated.",
)
@click.option(
    "--key-regex",
    callback=as_regex,
    metavar="REGEX",
    help="Regular expression that finds a line's key: its group 1, or the whole match.",
)
@click.option(
    "--tag-regex",
    callback=as_regex,
    metavar="REGEX",
    help="Regular expression that finds a line's tag: its group 1, or the whole match.",
)
@click.option("--queue", type=click.IntRange(0), help="Send all messages to this queue.")
@click.option(
    "--priority", type=click.IntRange(0, 9), help="Priority of all messages, 0 to 9; default: 4."
)
@click.option(
    "--ttl",
    "ttl_ms",
    callback=as_duration,
    metavar="TIME",
    help="Age after which groups do not deliver the messages: 90s, 12h, 30d.",
)
@click.option(
    "--durability",
    type=click.Choice(["fsync", "written"]),
    help="Wait until the messages are synced, or only written. Default: the topic's setting.",
)
@click.option(
    "--batch-bytes",
    callback=as_size,
    metavar="SIZE",
    help="Send a batch when it has this many bytes.",
)
@with_client
def publish(
    client: "Client",
    topic: str,
    file: str,
    body: str | None,
    as_json: bool,
    message_key: str | None,
    tag: str | None,
    properties: dict[str, str],
    key_regex: str | None,
    tag_regex: str | None,
    queue: int | None,
    priority: int | None,
    ttl_ms: int | None,
    durability: "Durability | None",
    batch_bytes: int | None,
) -> None:
    """Publish lines of FILE or of standard input, or --body.

    Each line is a message. Its bytes are kept unchanged, without the line break. Lines with the
    same key keep their order. Once all messages are acknowledged, a summary is printed as a line of
    JSON.
    """
    from holdfast.client.errors import MessageTooLarge

    _check_together(
        {
            "FILE": file != _STDIN,
            "--body": body is not None,
            "--json": as_json,
            "--message-key": message_key is not None,
            "--tag": tag is not None,
            "--property": bool(properties),
            "--key-regex": key_regex is not None,
            "--tag-regex": tag_regex is not None,
        }
    )
    if queue is not None and priority is not None:
        raise click.UsageError("A queue has its level: give --queue or --priority, not both.")
    if batch_bytes == 0:
        raise click.UsageError("A batch of no bytes takes no message: give --batch-bytes more.")
    sizes = {"batch_bytes": batch_bytes} if batch_bytes is not None else {}
    count, size, read, last = 0, 0, 0, None
    started = time.perf_counter()
    with _open_input(topic, file, body) as (source, name, total):
        messages: Iterator[Outgoing]
        if source is None:
            encoded = _bytes_of_argument(body or "")
            messages = iter([Outgoing(encoded, message_key, tag, properties, len(encoded))])
        elif as_json:
            messages = json_lines(source)
        else:
            key_of = finder("key", key_regex, message_key)
            tag_of = finder("tag", tag_regex, tag)
            messages = text_lines(source, key_of, tag_of, properties)
        try:
            with (
                progress("messages") as show,
                client.producer(
                    topic, queue=queue, durability=durability, priority=priority, **sizes
                ) as producer,
            ):
                for count, message in enumerate(messages, 1):
                    last = producer.send(
                        message.body,
                        key=message.key,
                        tag=message.tag,
                        properties=message.properties,
                        priority=None if queue is not None else message.priority,
                        ttl_ms=message.ttl_ms if ttl_ms is None else ttl_ms,
                    )
                    size += len(message.body)
                    read += message.size + 1
                    show(read, total, count)
        except LineError as error:
            raise Failure(f"{name}, {error}; the lines before it were published") from error
        except MessageTooLarge as error:
            sentence = f"{name}: {error}"
            if source is not None:
                sentence = f"{name}, line {count}: {error}; the lines before it were published"
            raise Failure(sentence, ExitCode.USAGE) from error
    summary = {
        "topic": topic,
        "messages": count,
        "bytes": size,
        "seconds": round(time.perf_counter() - started, 3),
        # All messages have the same durability, so the last result shows it.
        "durable": last.result().durable if last is not None else None,
    }
    if body is not None and last is not None:
        stored = last.result()
        summary |= {"queue": stored.queue, "offset": stored.offset, "message_id": stored.message_id}
    write_json_line(summary)


#: Pairs of options that exclude each other.
_APART = (
    ("FILE", "--body"),
    ("--json", "--body"),
    ("--key-regex", "--body"),
    ("--tag-regex", "--body"),
    ("--json", "--message-key"),
    ("--json", "--tag"),
    ("--json", "--property"),
    ("--json", "--key-regex"),
    ("--json", "--tag-regex"),
    ("--message-key", "--key-regex"),
    ("--tag", "--tag-regex"),
)


def _check_together(given: dict[str, bool]) -> None:
    for one, other in _APART:
        if given[one] and given[other]:
            raise click.UsageError(f"Give {one} or {other}, not both.")


@contextmanager
def _open_input(
    topic: str, file: str, body: str | None
) -> Iterator[tuple[BinaryIO | None, str, int | None]]:
    """Yield the input file, its name, and its size in bytes. The file is None with --body. The size
    is None if it is unknown."""
    if body is not None:
        yield None, "--body", len(body)
        return
    if file == _STDIN:
        if sys.stdin.isatty():
            click.echo("holdfast: each line that you write is a message; Ctrl-D ends", err=True)
        yield sys.stdin.buffer, "<stdin>", None
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115 - closed below, its failures are the file's
    except FileNotFoundError as error:
        raise click.UsageError(
            f"There is no file {file!r} to take lines from. To publish a text, write "
            f"'holdfast publish {topic} --body TEXT'."
        ) from error
    except OSError as error:
        raise click.UsageError(f"{file!r} cannot be read: {error.strerror}.") from error
    with opened:
        status = os.fstat(opened.fileno())
        yield opened, file, status.st_size if stat.S_ISREG(status.st_mode) else None


def _bytes_of_argument(text: str) -> bytes:
    """Return an argument's bytes as the shell passed them, even if they are not UTF-8."""
    return text.encode("utf-8", "surrogateescape")
