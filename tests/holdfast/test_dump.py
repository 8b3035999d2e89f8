"""The dump of a segment file's blocks, messages and damage."""

from pathlib import Path

import pytest

from holdfast.check.dump import NotASegment, dump_segment
from holdfast.commitlog.disk.disk import LinuxDisk
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.segments.segment import Segment, create_segment

SIZE = 1024 * 1024


@pytest.fixture
def segment(tmp_path: Path) -> Segment:
    """Return a segment file with two blocks of queue 2: offsets 5 and 6, then 7."""
    made = create_segment(LinuxDisk(), tmp_path, SIZE, SIZE, 0)
    _append(made, encode_batch([b"a", b"\xff"], keys=["k", None], tags=["t", None]), 5)
    _append(made, encode_batch([b"c"], properties=[{"p": "v"}], born_timestamp_us=3000), 7)
    made.file.close()
    return made


def _append(segment: Segment, encoded: bytes, base_offset: int) -> None:
    header = Batch.decode(encoded).header.stamp(
        physical_offset=segment.written,
        durable_offset=0,
        base_offset=base_offset,
        topic_id=9,
        queue_id=2,
        store_timestamp_us=8000,
        tag_summary=0,
    )
    segment.file.write(
        [header.encode(), encoded[HEADER_SIZE:]], segment.written - segment.start_offset
    )
    segment.count(header)


def test_blocks_come_in_order_up_to_the_unwritten_end(segment: Segment) -> None:
    first, second, rest = dump_segment(segment.path)
    assert first["physical_offset"] == segment.first_offset
    assert (first["topic_id"], first["queue"], first["base_offset"]) == (9, 2, 5)
    assert (first["message_count"], first["store_timestamp_ms"]) == (2, 8)
    assert first["columns"] == ["KEYS", "TAGS"]
    assert second["physical_offset"] == segment.first_offset + first["total_size"]
    assert rest == {
        "kind": "unwritten",
        "start": segment.written,
        "end": 2 * SIZE,
        "reason": "unwritten",
    }


def test_messages_follow_their_block(segment: Segment) -> None:
    rows = list(dump_segment(segment.path, messages=True))
    kinds = [row["kind"] for row in rows]
    assert kinds == ["block", "message", "message", "block", "message", "unwritten"]
    assert rows[1] == {
        "kind": "message",
        "offset": 5,
        "message_id": f"{9:08X}{2:08X}{5:016X}",
        "key": "k",
        "tag": "t",
        "properties": {},
        "body": "a",
        "born_timestamp_ms": 0,
    }
    assert rows[2]["body_base64"] == b"\xff"
    assert (rows[4]["offset"], rows[4]["properties"]) == (7, {"p": "v"})
    assert rows[4]["born_timestamp_ms"] == 3


def test_damage_is_a_row_and_the_next_block_is_found(segment: Segment) -> None:
    content = bytearray(segment.path.read_bytes())
    content[segment.first_offset - segment.start_offset + HEADER_SIZE] ^= 1
    segment.path.write_bytes(content)
    damage, block, _ = dump_segment(segment.path)
    assert (damage["kind"], damage["reason"]) == ("damage", "payload-crc")
    assert (damage["start"], damage["end"]) == (segment.first_offset, block["physical_offset"])
    assert block["base_offset"] == 7


def test_a_damaged_header_page_is_replaced_by_the_file_name(segment: Segment) -> None:
    content = bytearray(segment.path.read_bytes())
    content[8] ^= 1
    segment.path.write_bytes(content)
    assert [row["kind"] for row in dump_segment(segment.path)] == ["block", "block", "unwritten"]
    renamed = segment.path.rename(segment.path.with_name("copy"))
    with pytest.raises(NotASegment, match="commitlog/ of a data directory"):
        list(dump_segment(renamed))


def test_another_file_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(b"hello")
    with pytest.raises(NotASegment, match="commitlog/ of a data directory"):
        list(dump_segment(file))
