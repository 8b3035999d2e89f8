"""The state's copy in the log: messages of the broker's own topic, key = record key, body = value.

Each change is noted, each segment begins with all records, so the newest message of a key has
its value (tag `deleted`: it is gone) and old segments may go. Such a snapshot ends in a message
without a key (tag `all`, body = number of records in digits): a record that it does not have was
deleted, also where a crash kept that from being noted.
"""

from collections.abc import Iterable, Mapping
from contextlib import suppress

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.commitlog.commit_log import CommitLog
from holdfast.commitlog.gap_block import GAP_TOPIC_ID
from holdfast.commitlog.log_scan import Damage, scan_log
from holdfast.consumequeue.state_records import (
    NEXT_TOPIC_ID,
    MalformedRecord,
    decode_number,
    encode_number,
)
from holdfast.consumequeue.state_replay import ALL, DELETED, StateReplay
from holdfast.consumequeue.state_store import Changes
from holdfast.consumequeue.topics import STATE_TOPIC_ID

_SNAPSHOT_BATCH_BYTES = 256 * 1024


def encode_changes(changes: Changes) -> Batch:
    """Return one batch that notes `changes`."""
    return Batch.decode(
        encode_batch(
            [value or b"" for value in changes.values()],
            keys=[key.decode() for key in changes],
            tags=[DELETED if value is None else None for value in changes.values()],
            queue_id=0,
        )
    )


def encode_snapshot(records: Mapping[bytes, bytes]) -> list[Batch]:
    """Return batches of moderate size that repeat all `records`; to be appended together."""
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
    """Return the records as the opened log has them, and whether nothing before the log's
    durable mark is damaged, so that they are all that there were. Where they are not, the id of a
    topic that still has messages is not given to another all the same."""
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
    _leave_out_ids(replay.records, highest_id)
    return replay.records, damaged is None or damaged >= durable


def _leave_out_ids(records: dict[bytes, bytes], highest_id: int) -> None:
    """Let the next topic have an id above this one."""
    with suppress(MalformedRecord):  # whoever reads the records is told
        if decode_number(records.get(NEXT_TOPIC_ID, b"\x01")) <= highest_id:
            records[NEXT_TOPIC_ID] = encode_number(highest_id + 1)
