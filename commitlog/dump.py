"""What a segment file holds, in words for people: what `holdfast dump` prints. Reads only."""

from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path

from holdfast.commitlog.disk import File, LinuxDisk
from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.log_scan import Damage, scan_segment
from holdfast.commitlog.segment import Segment, read_trailer
from holdfast.commitlog.segment_format import (
    SEGMENT_HEADER_SIZE,
    SegmentHeader,
    parse_segment_name,
)


def dump_segment(path: Path, *, messages: bool = False) -> Iterator[dict[str, object]]:
    """Yield one dictionary for each thing in a segment file, in order; each says its "kind":
    segment, block, message (with `messages`), damage, footer.

    The file may be in use. Raises UnknownFormatVersion; OSError passes through.
    """
    file = LinuxDisk().open(path)
    try:
        yield from _dump(path, file, messages)
    finally:
        file.close()


def _dump(path: Path, file: File, messages: bool) -> Iterator[dict[str, object]]:
    start = parse_segment_name(path.name) or 0
    size = file.size()
    try:
        header = SegmentHeader.decode(file.read(SEGMENT_HEADER_SIZE, 0))
        start, size = header.start_offset, header.size
        yield {"kind": "segment", **asdict(header)}
    except CorruptBatch as error:
        yield {"kind": "damage", "start": start, "reason": error.reason, "detail": error.detail}
    segment = Segment(file, path, start, size, start)
    for found in scan_segment(segment):
        if isinstance(found, Damage):
            yield {"kind": "damage", **asdict(found)}
            continue
        yield {"kind": "block", **asdict(found.header)}
        if messages:
            for row in range(len(found)):
                yield {
                    "kind": "message",
                    "offset": found.header.base_offset + row,
                    "key": found.key(row),
                    "tag": found.tag(row),
                    "properties": found.properties(row),
                    "body_bytes": int(found.body_offsets[row + 1] - found.body_offsets[row]),
                }
    try:
        trailer = read_trailer(segment)
    except CorruptBatch as error:
        yield {"kind": "damage", "reason": error.reason, "detail": error.detail}
        return
    if trailer is not None:
        yield {"kind": "footer", **asdict(trailer)}
