"""Show the content of a segment file to people, block by block. Nothing is changed.

No broker, lock or index is needed. The file may also be a segment that a running broker writes, or
a copy of a segment outside a data directory.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.commitlog.disk.disk import LinuxFile
from holdfast.commitlog.disk.owned_files import open_file
from holdfast.commitlog.errors import CorruptBatch, LogError
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import BatchFlag
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.commitlog.format.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    parse_segment_name,
)
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.segment import Segment

Row = dict[str, Any]


@dataclass(eq=False, repr=False)
class NotASegment(LogError):
    """Neither the header nor the name of the file is that of a segment."""

    sentence = "{path} is not a segment; use a file in commitlog/ of a data directory"
    path: Path


def dump_segment(path: Path, *, messages: bool = False) -> Iterator[Row]:
    """Yield one row for each block, each damaged range, and the unwritten end of the file. The
    value `kind` of a row is "block", "damage" or "unwritten".

    With `messages`, one row of the kind "message" for each message follows its block. Raise
    NotASegment if neither the header nor the name of the file is that of a segment, and
    UnknownFormatVersion if a newer Holdfast wrote the file; OSError propagates.
    """
    file = LinuxFile(open_file(path.resolve()))
    try:
        for found in scan_segment(_open_segment(file, path)):
            if isinstance(found, Damage):
                yield _damage_row(found)
                continue
            yield _block_row(found)
            if messages:
                yield from (_message_row(found, row) for row in range(len(found)))
    finally:
        file.close()


def _open_segment(file: LinuxFile, path: Path) -> Segment:
    """Return the file as a segment. If its header is damaged, take the start offset from the
    file's name."""
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
        shown = {"body_base64": body}  # msgspec encodes bytes as base64 in JSON
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
