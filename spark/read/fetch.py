"""Read one range of one queue from the broker, as record batches. Does not need pyspark.

Every read of the range gives the same rows: offsets are fixed, blocks never change, and checksums
verify each block. While Spark processes one record batch, the next pull is in progress.
"""

import logging
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

from holdfast.arrow.decoder import MAX_ROWS, TARGET_BYTES, cut_portions, decode, select_rows
from holdfast.arrow.messages import Message, decode_messages
from holdfast.client.transport.requests import MSGPACK
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.broker.client import BrokerClient, PullOutcome
from holdfast.spark.errors import BrokerRefused, DataLost, ReplyMismatch
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions

_log = logging.getLogger("holdfast.spark")


def read_range(
    client: BrokerClient, part: QueueRange, options: ReadOptions
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of `part`, in order of their offsets. If rows are no longer stored, raises
    DataLost; without failOnDataLoss, skips these rows and logs their number. Raises TopicRecreated,
    and CorruptBatch for a damaged reply."""
    fetch = _fetch_messages if options.filter is not None else _fetch_blocks
    offset = part.start
    with ThreadPoolExecutor(max_workers=1, thread_name_prefix="holdfast-pull") as ahead:
        pending = ahead.submit(fetch, client, part, offset, options)
        while True:
            try:
                fetched = pending.result()
            except BrokerRefused as refused:
                batches: Iterator[pa.RecordBatch] = iter(())
                following = _offset_after_loss(refused, part, offset, options)
            else:
                for start, end in fetched.skipped:
                    if start < part.end:
                        end = min(end, part.end)
                        skip_lost(part, start, end, "an operator accepted their loss", options)
                following, batches = fetched.next_offset, fetched.batches
                if following <= offset:
                    following = skip_lost(part, offset, part.end, "the queue ends before", options)
            if following < part.end:
                pending = ahead.submit(fetch, client, part, following, options)
            yield from batches
            if following >= part.end:
                return
            offset = following


class _FetchResult(NamedTuple):
    """The result of one pull: where to continue, the ranges that the broker skipped, the rows."""

    next_offset: int
    skipped: tuple[tuple[int, int], ...]
    batches: Iterator[pa.RecordBatch]


def _fetch_blocks(
    client: BrokerClient, part: QueueRange, offset: int, options: ReadOptions
) -> _FetchResult:
    """Pull whole blocks, and verify their checksums and offsets."""
    gatherer = BlockGatherer(min(options.fetch_max_bytes, TARGET_BYTES), MAX_ROWS)
    last = _gather_blocks(client, part, offset, options, gatherer)
    runs = [] if gatherer.is_empty else [BatchRun(gatherer.blocks(), rebuilt=True)]
    if last.body is not None:
        runs.append(BatchRun(last.body, rebuilt=True))
    reached = offset
    for run in runs:
        _check_sequence(run, part, reached, gaps=bool(options.tags or last.skipped))
        if len(run):  # blocks are whole, so the last one may end after the requested range
            reached = int(run.end_offsets[-1])
    batches = (
        decode(run, rows, part, options.columns, tags=options.tags)
        for run in runs
        for rows in cut_portions(run, select_rows(run, offset, part.end))
    )
    return _FetchResult(max(last.next_offset, reached), last.skipped, batches)


def _gather_blocks(
    client: BrokerClient,
    part: QueueRange,
    offset: int,
    options: ReadOptions,
    gatherer: BlockGatherer,
) -> PullOutcome[Buffer | None]:
    """Pull until the gathered blocks fill a record batch, or until a reply cannot be gathered.
    Return the last pull."""

    def pull(start: int) -> PullOutcome[Buffer | None]:
        return client.pull_blocks(
            part.topic,
            part.topic_id,
            part.queue,
            start,
            gatherer,
            max_messages=part.end - start,
            max_bytes=options.fetch_max_bytes,
            tags=options.tags,
        )

    pulled = pull(offset)
    while (
        pulled.body is None
        and not pulled.skipped
        and not gatherer.is_full
        and pulled.next_offset < part.end
    ):
        try:
            pulled = pull(pulled.next_offset)
        except BrokerRefused:
            break  # the next pull begins at this offset and raises the error again
    return pulled


def _fetch_messages(
    client: BrokerClient, part: QueueRange, offset: int, options: ReadOptions
) -> _FetchResult:
    """Pull the messages that match the option `filter`. The broker evaluates the filter."""
    pulled = client.pull(
        part.topic,
        part.topic_id,
        part.queue,
        offset,
        max_bytes=options.fetch_max_bytes,
        accept=MSGPACK,
        tags=options.tags,
        expression=options.filter,
    )
    messages = [message for message in unpack_messages(pulled.body) if message["offset"] < part.end]
    batches = (decode_messages(found, part, options.columns) for found in (messages,) if found)
    return _FetchResult(pulled.next_offset, pulled.skipped, batches)


def unpack_messages(body: Buffer) -> list[Message]:
    """Return the messages in a pull's reply. Raises ReplyMismatch if it has no list of messages."""
    try:
        messages = msgpack.unpackb(body)["messages"]
    except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
        raise ReplyMismatch(f"the broker's reply has no list of messages: {error!r}") from error
    assert isinstance(messages, list)
    return messages


def _check_sequence(blocks: BatchRun, part: QueueRange, offset: int, *, gaps: bool) -> None:
    """Raise ReplyMismatch unless the blocks belong to this queue and their offsets follow one
    another from `offset` on. With `gaps`, offsets between the blocks may be missing."""
    ends = blocks.end_offsets
    expected = np.concatenate(([offset], ends))[:-1]
    steps = blocks.base_offsets - expected
    steps[:1] = np.maximum(steps[:1], 0)  # the first block may begin before `offset`
    own = (blocks.field("topic_id") == part.topic_id) & (blocks.field("queue_id") == part.queue)
    in_place = own & (ends > offset) & ((steps >= 0) if gaps else (steps == 0))
    if not bool(in_place.all()):
        raise ReplyMismatch(
            f"the broker sent other blocks than those of queue {part.queue} of {part.topic!r} from "
            f"offset {offset} on"
        )


def _offset_after_loss(
    refused: BrokerRefused, part: QueueRange, offset: int, options: ReadOptions
) -> int:
    """Return where to continue if messages are lost. Otherwise raise the refusal again."""
    problem = refused.problem
    match refused.type:
        case "/problems/offset-trimmed":
            following, reason = problem.get("min_offset"), "trimmed by retention"
        case "/problems/corrupt-record":
            following, reason = problem.get("next_offset"), "damaged on the broker's disk"
        case "/problems/offset-beyond-end":
            following, reason = part.end, "the queue ends before"
        case _:
            raise refused
    if not isinstance(following, int) or following <= offset:
        raise refused
    return skip_lost(part, offset, min(following, part.end), reason, options)


def skip_lost(
    part: QueueRange, offset: int, following: int, reason: str, options: ReadOptions
) -> int:
    """Log that the messages from `offset` to before `following` are lost, and return `following`.
    If failOnDataLoss is set, raise DataLost instead."""
    lost = DataLost(part.topic, part.queue, offset, following, reason)
    if options.fail_on_data_loss:
        raise lost
    _log.warning("skipped %d messages: %s", following - offset, lost)
    return following
