"""What a segment file holds, block by block, for people who look into one. Reads only.

Needs no broker, no lock and no index: also a segment that a running broker writes, or a copy of
one anywhere, can be looked at.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_header import BatchFlag
from holdfast.commitlog.disk import LinuxFile
from holdfast.commitlog.errors import CorruptBatch, LogError
from holdfast.commitlog.log_scan import Damage, scan_segment
from holdfast.commitlog.message_id import format_message_id
from holdfast.commitlog.segment import Segment
from holdfast.commitlog.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    parse_segment_name,
)

Row = dict[str, Any]


class NotASegment(LogError):
    """Neither the header nor the name of the file makes it a segment."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self.path = path

    def __str__(self) -> str:
        return f"{self.path} is no segment; name a file of commitlog/ of a data directory"


def dump_segment(path: Path, *, messages: bool = False) -> Iterator[Row]:
    """Yield a row for each block of the file, its damage and its unwritten end, by `kind`.

    With `messages` each block is followed by a row for each of its messages. Raises
    NotASegment for a file that neither its header nor its name makes a segment, and
    UnknownFormatVersion for one that a newer Holdfast wrote; OSError passes through.
    """
    file = LinuxFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
    try:
        for found in scan_segment(_segment(file, path)):
            if isinstance(found, Damage):
                yield _damage_row(found)
                continue
            yield _block_row(found)
            if messages:
                yield from (_message_row(found, row) for row in range(len(found)))
    finally:
        file.close()


def _segment(file: LinuxFile, path: Path) -> Segment:
    """Return the file as a segment; a name that says where it starts mends a damaged header."""
    size = file.size()
    try:
        start = SegmentHeader.decode(file.read(SEGMENT_HEADER_SIZE, 0)).start_offset
    except CorruptBatch as error:
        named = parse_segment_name(path.name)
        if named is None:
            raise NotASegment(path) from error
        start = named
    return Segment(file, path, start, size, start + size)


def _damage_row(damage: Damage) -> Row:
    kind = "unwritten" if damage.reason == "unwritten" else "damage"
    return {"kind": kind, "start": damage.start, "end": damage.end, "reason": damage.reason}


def _block_row(batch: Batch) -> Row:
    header = batch.header
    return {
        "kind": "block",
        "physical_offset": header.physical_offset,
        "total_size": header.total_size,
        "topic_id": header.topic_id,
        "queue": header.queue_id,
        "base_offset": header.base_offset,
        "message_count": header.message_count,
        "store_timestamp_ms": header.store_timestamp_us // 1000,
        "durable_offset": header.durable_offset,
        "columns": [flag.name for flag in BatchFlag if header.flags & flag],
        "producer_id": header.producer_id,
        "producer_epoch": header.producer_epoch,
        "sequence": header.sequence,
    }


def _message_row(batch: Batch, row: int) -> Row:
    header = batch.header
    offset = header.base_offset + row
    body = batch.body(row)
    try:
        shown: Row = {"body": body.decode()}
    except UnicodeDecodeError:
        shown = {"body_base64": body}  # as JSON, bytes are base64
    return {
        "kind": "message",
        "offset": offset,
        "message_id": format_message_id(header.topic_id, header.queue_id, offset),
        "key": batch.key(row),
        "tag": batch.tag(row),
        "properties": batch.properties(row),
        **shown,
        "born_timestamp_ms": batch.born_timestamp_us(row) // 1000,
    }
