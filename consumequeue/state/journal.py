"""The copy of the state in the log: messages of the broker's own topic (replay.py, FORMAT.md 4).

Every change is appended, so the newest message with a key has the current value. Every segment
begins with a snapshot of all records, so that old segments can be deleted. A record that is not in
a snapshot was deleted, even if a crash prevented the message about its deletion.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.log_scan import Damage, scan_log
from holdfast.consumequeue.state.records import (
    NEXT_TOPIC_ID,
    MalformedRecord,
    decode_number,
    encode_number,
)
from holdfast.consumequeue.state.replay import ALL, DELETED, StateReplay
from holdfast.consumequeue.state.store import Changes
from holdfast.consumequeue.topics import STATE_TOPIC_ID

_SNAPSHOT_BATCH_BYTES = 256 * 1024


def encode_changes(changes: Changes) -> Batch:
    """Return one batch that records `changes`."""
    return Batch.decode(
        encode_batch(
            [value or b"" for value in changes.values()],
            keys=[key.decode() for key in changes],
            tags=[DELETED if value is None else None for value in changes.values()],
            queue_id=0,
        )
    )


def encode_snapshot(records: Mapping[bytes, bytes]) -> list[Batch]:
    """Return batches of moderate size with all `records`. The batches must be appended together."""
    if not records:
        return []
    end = encode_batch([b"%d" % len(records)], tags=[ALL], queue_id=0)
    return [*map(encode_changes, _parts(records.items())), Batch.decode(end)]


def _parts(records: Iterable[tuple[bytes, bytes]]) -> Iterable[dict[bytes, bytes]]:
    part: dict[bytes, bytes] = {}
    size = 0
    for key, value in records:
        if part and size + len(key) + len(value) > _SNAPSHOT_BATCH_BYTES:
            yield part
            part, size = {}, 0
        part[key] = value
        size += len(key) + len(value)
    if part:
        yield part


def state_in_log(log: CommitLog) -> tuple[dict[bytes, bytes], bool]:
    """Return the records in the opened log, and whether they are complete. They are complete if
    nothing before the log's durable offset is damaged. One of the returned records is the next
    topic id, if any topic has messages. Even if records are missing, it is above the id of every
    topic with messages in the log."""
    replay = StateReplay()
    durable, damaged, highest_id = 0, None, STATE_TOPIC_ID
    for _, found in scan_log(log.segments, 0):
        if found.header is not None and found.header.topic_id != GAP_TOPIC_ID:
            highest_id = max(highest_id, found.header.topic_id)
        if isinstance(found, Damage):
            damaged = found.start if damaged is None else damaged
            continue
        durable = max(durable, found.header.durable_offset)
        if found.header.topic_id == STATE_TOPIC_ID:
            replay.apply(found)
    _reserve_ids(replay.records, highest_id)
    return replay.records, damaged is None or damaged >= durable


def _reserve_ids(records: dict[bytes, bytes], highest_id: int) -> None:
    """Make sure that the next topic gets an id above `highest_id`."""
    with suppress(MalformedRecord):  # the code that later decodes the records raises this error
        if decode_number(records.get(NEXT_TOPIC_ID, b"\x01")) <= highest_id:
            records[NEXT_TOPIC_ID] = encode_number(highest_id + 1)
