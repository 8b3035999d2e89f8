"""holdfast publish: send the lines of a file or pipe as messages, or a single text."""

import os
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, NamedTuple

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.outgoing import (
    LineError,
    Outgoing,
    make_finder,
    read_json,
    read_text,
)
from holdfast.cli.input.values import as_duration, as_properties, as_regex, as_size, as_topic
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import write_json_line

if TYPE_CHECKING:
    from holdfast.client import BlockingSendHandle, Client, Producer
    from holdfast.client.values import Durability

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
    "--mandatory",
    is_flag=True,
    help="Refuse requests with a message that no group would get.",
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
    queue: int | None,
    priority: int | None,
    ttl_ms: int | None,
    durability: "Durability | None",
    mandatory: bool,
    batch_bytes: int | None,
    **options: Any,
) -> None:
    """Publish lines of FILE or of standard input, or --body.

    Each line is a message. Its bytes are kept unchanged, without the line break. Lines with the
    same key keep their order. Once all messages are acknowledged, a summary is printed as a line of
    JSON.
    """
    _check_together({"file": file != _STDIN, "body": body is not None, "json": as_json, **options})
    if queue is not None and priority is not None:
        raise click.UsageError("A queue has a fixed level: give --queue or --priority, not both.")
    if batch_bytes == 0:
        raise click.UsageError("--batch-bytes must be at least 1.")
    sizes = {"batch_bytes": batch_bytes} if batch_bytes is not None else {}
    started = time.perf_counter()
    with _open_input(topic, file, body) as source:
        messages = _read_messages(source, body or "", as_json, **options)
        producer = client.producer(
            topic,
            queue=queue,
            durability=durability,
            priority=priority,
            mandatory=mandatory,
            **sizes,
        )
        sent = _send(producer, messages, source, ttl_ms, use_priority=queue is None)
    last = None if sent.last is None else sent.last.result()
    summary = {
        "topic": topic,
        "messages": sent.count,
        "bytes": sent.size_bytes,
        "seconds": round(time.perf_counter() - started, 3),
        "durable": None if last is None else last.durable,  # all messages have the same durability
    }
    if body is not None and last is not None:
        summary |= {"queue": last.queue, "offset": last.offset, "message_id": last.message_id}
    write_json_line(summary)


class _Input(NamedTuple):
    """The input. `file` is None with --body; `size_bytes` is None if it is unknown."""

    file: BinaryIO | None
    name: str
    size_bytes: int | None


def _read_messages(
    source: _Input,
    body: str,
    as_json: bool,
    *,
    message_key: str | None,
    tag: str | None,
    properties: dict[str, str],
    key_regex: str | None,
    tag_regex: str | None,
) -> Iterator[Outgoing]:
    if source.file is None:
        # The argument's bytes as the shell passed them, even if they are not UTF-8.
        content = body.encode("utf-8", "surrogateescape")
        return iter([Outgoing(content, message_key, tag, properties, len(content))])
    if as_json:
        return read_json(source.file)
    key_of = make_finder("key", key_regex, message_key)
    return read_text(source.file, key_of, make_finder("tag", tag_regex, tag), properties)


@dataclass
class _Sent:
    count: int = 0
    size_bytes: int = 0
    last: "BlockingSendHandle | None" = None


def _send(
    producer: "Producer",
    messages: Iterator[Outgoing],
    source: _Input,
    ttl_ms: int | None,
    *,
    use_priority: bool,
) -> _Sent:
    """Send the messages and wait until all are acknowledged. Raises Failure for a wrong line."""
    from holdfast.client.errors import MessageTooLarge

    sent, read_bytes = _Sent(), 0
    try:
        with progress("messages") as show, producer:
            for message in messages:
                sent.count += 1
                sent.last = producer.send(
                    message.body,
                    key=message.key,
                    tag=message.tag,
                    properties=message.properties,
                    priority=message.priority if use_priority else None,
                    ttl_ms=message.ttl_ms if ttl_ms is None else ttl_ms,
                )
                sent.size_bytes += len(message.body)
                read_bytes += message.size + 1
                show(read_bytes, source.size_bytes, sent.count)
    except LineError as error:
        raise Failure(f"{source.name}, {error}; the lines before it were published") from error
    except MessageTooLarge as error:
        sentence = f"{source.name}: {error}"
        if source.file is not None:
            line = f"{source.name}, line {sent.count}"
            sentence = f"{line}: {error}; the lines before it were published"
        raise Failure(sentence, ExitCode.USAGE) from error
    return sent


#: Pairs of options that exclude each other.
_APART = (
    *(("file", "body"), ("json", "body"), ("key_regex", "body"), ("tag_regex", "body")),
    *(("json", "message_key"), ("json", "tag"), ("json", "properties"), ("json", "key_regex")),
    *(("json", "tag_regex"), ("message_key", "key_regex"), ("tag", "tag_regex")),
)
_NAMES = {"file": "FILE", "properties": "--property"}


def _check_together(given: dict[str, Any]) -> None:
    for pair in _APART:
        if all(given[each] not in (None, False, {}) for each in pair):
            one, other = (_NAMES.get(each, f"--{each.replace('_', '-')}") for each in pair)
            raise click.UsageError(f"Give {one} or {other}, not both.")


@contextmanager
def _open_input(topic: str, file: str, body: str | None) -> Iterator[_Input]:
    if body is not None:
        yield _Input(None, "--body", len(body))
        return
    if file == _STDIN:
        if sys.stdin.isatty():
            click.echo("holdfast: each line that you type is a message; Ctrl-D ends", err=True)
        yield _Input(sys.stdin.buffer, "<stdin>", None)
        return
    try:
        opened = Path(file).open("rb")  # noqa: SIM115 - closed below; only its opening is caught
    except FileNotFoundError as error:
        raise click.UsageError(
            f"There is no file {file!r}. To publish a text, write "
            f"'holdfast publish {topic} --body TEXT'."
        ) from error
    except OSError as error:
        raise click.UsageError(f"{file!r} cannot be read: {error.strerror}.") from error
    with opened:
        status = os.fstat(opened.fileno())
        yield _Input(opened, file, status.st_size if stat.S_ISREG(status.st_mode) else None)
