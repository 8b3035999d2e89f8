"""holdfast import: publish the messages of a file that `holdfast export` wrote."""

import time
from collections.abc import Callable, Iterator
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.input.connection import with_client
from holdfast.cli.input.outgoing import LineError, Outgoing
from holdfast.cli.input.table_file import QueueShape, TableFile
from holdfast.cli.input.values import as_topic
from holdfast.cli.output.progress import progress
from holdfast.cli.output.terminal import write_json_line

if TYPE_CHECKING:
    from holdfast.client import Client, PublishResult
    from holdfast.client.values import Durability


@click.command("import")
@click.argument("topic", callback=as_topic)
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option(
    "--durability",
    type=click.Choice(["fsync", "written"]),
    help="Wait until the messages are synced, or only written. Default: the topic's setting.",
)
@with_client
def import_(client: "Client", topic: str, file: Path, durability: "Durability | None") -> None:
    """Publish the messages of FILE to TOPIC.

    FILE is Parquet, Arrow, or lines of JSON. The messages keep their body, key, tag, properties and
    born time, and messages with the same key keep their order. They get new offsets and store
    times. A missing topic is created with the number of queues of the exported topic. If the topic
    has this number of queues, each message goes to its former queue, otherwise to the queue of its
    key. A repeated import publishes all messages again.
    """
    started = time.perf_counter()
    with _open(file) as source:
        messages = _begin(source, file)
        queue_of = _make_router(source.shape, _find_shape(client, topic, source.shape))
        count, size_bytes, last = _send(client, topic, durability, source, messages, queue_of, file)
    write_json_line(
        {
            "topic": topic,
            "file": str(file),
            "messages": count,
            "bytes": size_bytes,
            "seconds": round(time.perf_counter() - started, 3),
            "durable": None if last is None else last.durable,
        }
    )


def _open(file: Path) -> TableFile:
    from holdfast.client.errors import PackageMissing

    try:
        return TableFile(file)
    except ValueError as error:  # pyarrow's, too
        raise Failure(f"{file}: {error}", ExitCode.USAGE) from error
    except ModuleNotFoundError as error:
        raise PackageMissing("pyarrow", "arrow") from error


def _begin(source: TableFile, file: Path) -> Iterator[Outgoing]:
    """Return the messages. The first one is read now, so that a file that has no messages in it
    creates no topic."""
    messages = source.messages()
    try:
        return chain([next(messages)], messages)
    except StopIteration:
        return iter(())
    except LineError as error:
        raise Failure(f"{file}, {error}") from error
    except (ValueError, TypeError) as error:
        raise Failure(f"{file}: {error}", ExitCode.USAGE) from error


def _find_shape(client: "Client", topic: str, exported: QueueShape | None) -> QueueShape:
    """Return the topic's shape. Create a missing topic with that of the exported topic."""
    from holdfast.client.errors import UnknownTopic

    try:
        found = client.describe_topic(topic)
    except UnknownTopic:
        if exported is None:
            found = client.create_topic(topic)
        else:
            levels = exported.priority_levels
            found = client.create_topic(
                topic,
                exported.queue_count // levels,
                priority_levels=levels if levels > 1 else None,
            )
    return QueueShape(found.queue_count, found.config.priority_levels)


def _make_router(
    exported: QueueShape | None, target: QueueShape
) -> Callable[[Outgoing], int | None]:
    """Return the function that gives a message's queue; None: the key decides, or any queue."""
    if exported == target:
        return lambda message: message.queue
    if target.priority_levels > 1:
        return lambda message: None

    def queue_of(message: Outgoing) -> int | None:
        if message.key is not None or message.queue is None:
            return None
        # Messages without a key that were in one queue stay in one queue, in their order.
        return message.queue % target.queue_count

    return queue_of


def _send(
    client: "Client",
    topic: str,
    durability: "Durability | None",
    source: TableFile,
    messages: Iterator[Outgoing],
    queue_of: Callable[[Outgoing], int | None],
    file: Path,
) -> "tuple[int, int, PublishResult | None]":
    """Send all messages and wait until they are acknowledged. Return their count, the bytes of
    their bodies, and the result of the last one."""
    from holdfast.client.errors import HoldfastError

    count, size_bytes, done, handle = 0, 0, 0, None
    try:
        with (
            progress("messages", in_bytes=source.in_bytes) as show,
            client.producer(topic, durability=durability) as producer,
        ):
            for message in messages:
                count += 1
                handle = producer.send(
                    message.body,
                    key=message.key,
                    tag=message.tag,
                    properties=message.properties,
                    queue=queue_of(message),
                    born_timestamp_ms=message.born_timestamp_ms,
                )
                size_bytes += len(message.body)
                done += message.size
                show(done, source.total, count)
    except LineError as error:
        raise Failure(f"{file}, {error}; the messages before it were published") from error
    except HoldfastError:
        raise
    except (ValueError, TypeError) as error:
        sentence = f"{file}, message {count}: {error}; the messages before it were published"
        raise Failure(sentence, ExitCode.USAGE) from error
    return count, size_bytes, None if handle is None else handle.result()
