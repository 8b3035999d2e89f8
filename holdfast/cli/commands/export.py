"""holdfast export: write a range of a topic to a file of Parquet, Arrow, or lines of JSON."""

import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.input.connection import with_client
from holdfast.cli.input.start_position import AtOffset, AtTime, Start
from holdfast.cli.input.values import as_start, as_topic
from holdfast.cli.output.progress import progress
from holdfast.cli.output.table_file import FORM_BY_SUFFIX, Form, TopicShape, open_table_file
from holdfast.cli.output.terminal import write_json_line

if TYPE_CHECKING:
    from holdfast.client import Client, TopicDescription

#: The columns of lines of JSON: the fields that `pull` prints. The other forms have the default
#: columns, because all rows have the same topic, and a message id follows from queue and offset.
_JSON_COLUMNS = (
    *("topic", "queue", "offset", "message_id", "key", "tag", "properties", "body"),
    *("born_timestamp", "store_timestamp"),
)
_PLACE = "earliest, latest, an offset, or a time: 2026-11-21T10:00:00Z, epoch ms, -1h."


@click.command()
@click.argument("topic", callback=as_topic)
@click.option(
    "--output",
    required=True,
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The file to write. It gets this name when it is complete.",
)
@click.option(
    "--format",
    "form",
    type=click.Choice(["parquet", "arrow", "ndjson"]),
    help="Default: what FILE ends with: .parquet, .arrow, .ndjson or .jsonl.",
)
@click.option("--queue", type=click.IntRange(0), help="Export this queue only.")
@click.option(
    "--from",
    "start",
    callback=as_start,
    default="earliest",
    show_default=True,
    metavar="PLACE",
    help=f"Begin at: {_PLACE}",
)
@click.option(
    "--to",
    "end",
    callback=as_start,
    default="latest",
    show_default=True,
    metavar="PLACE",
    help=f"End before: {_PLACE}",
)
@click.option("--overwrite", is_flag=True, help="Replace FILE if it exists.")
@click.option(
    "--skip-corrupt",
    is_flag=True,
    help="Skip messages that are damaged on the broker's disk, and print which ones.",
)
@with_client
def export(
    client: "Client",
    topic: str,
    output: Path,
    form: Form | None,
    queue: int | None,
    start: Start,
    end: Start,
    overwrite: bool,
    skip_corrupt: bool,
) -> None:
    """Write messages of TOPIC to a file, ordered by queue and offset.

    The range is fixed when the command begins. 'holdfast import' restores the messages. Needs
    pyarrow: pip install 'holdfast[arrow]'.
    """
    form = form or FORM_BY_SUFFIX.get(output.suffix.lower())
    if form is None:
        raise click.UsageError(f"{output.name!r} does not show the form: give --format.")
    if queue is None and (isinstance(start, AtOffset) or isinstance(end, AtOffset)):
        raise click.UsageError("An offset needs a queue: give --queue.")
    if start == "latest" or end == "earliest" or _are_swapped(start, end):
        raise click.UsageError("There is nothing between --from and --to.")
    if output.exists() and not overwrite:
        raise click.UsageError(f"{str(output)!r} exists: give --overwrite to replace it.")
    started = time.perf_counter()
    described = client.describe_topic(topic)
    shape = TopicShape(topic, described.queue_count, described.config.priority_levels)
    reader = client.iter_arrow(
        topic,
        queue,
        columns=_JSON_COLUMNS if form == "ndjson" else None,
        skip_corrupt=skip_corrupt,
        **_bound("start", start),
        **_bound("end", end),
    )
    count, total = 0, _count_messages(described, queue, start, end)
    with (
        reader,
        progress("messages", in_bytes=False) as show,
        open_table_file(output, form, reader.schema, shape) as write,
    ):
        for batch in reader:
            write(batch)
            count += len(batch)
            show(count, total, 0)
    write_json_line(
        {
            "topic": topic,
            "file": str(output),
            "messages": count,
            "bytes": output.stat().st_size,
            "seconds": round(time.perf_counter() - started, 3),
        }
    )


def _are_swapped(start: Start, end: Start) -> bool:
    match start, end:
        case AtOffset(first), AtOffset(last):
            return first > last
        case AtTime(first_ms), AtTime(last_ms):
            return first_ms > last_ms
    return False


def _bound(side: str, place: Start) -> dict[str, Any]:
    """Return the arguments of `iter_arrow` for the start or the end of the range."""
    match place:
        case AtOffset(offset):
            return {f"{side}_offset": offset}
        case AtTime(timestamp_ms):
            return {f"{side}_timestamp_ms": timestamp_ms}
    return {}  # the first or the last message, which is the default


def _count_messages(
    topic: "TopicDescription", queue: int | None, start: Start, end: Start
) -> int | None:
    """Return how many messages the range has; None if only the broker knows it."""
    if isinstance(start, AtTime) or isinstance(end, AtTime):
        return None
    count = 0
    for each in topic.queues:
        if queue in (None, each.queue):
            ends = {"earliest": each.min_offset, "latest": each.max_offset}
            first, last = (
                place.offset if isinstance(place, AtOffset) else ends[place]
                for place in (start, end)
            )
            count += max(0, last - first)
    return count
