"""Walks over segments without a footer, compared with the scan that recovery uses."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import ALIGNMENT, HEADER_SIZE, BatchHeader
from holdfast.commitlog.segments.log_scan import Damage, scan_segment
from holdfast.commitlog.segments.segment import Segment
from holdfast.log_files import walked_blocks
from holdfast.log_files.segment_file import SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks
from tests.support.storage.small_log import SmallLog, raw_batch

QUEUES = 2
SEGMENT_BYTES = 256 * 1024
#: Turns the bytes of a block, or of the log from a block on, into what is found in the file.
Edit = Callable[[bytes], bytes]
EDITS: dict[str, Edit] = {
    "a flipped bit of a header": lambda old: old[:40] + bytes([old[40] ^ 1]) + old[41:],
    "a flipped bit of a payload": lambda old: old[:-8] + bytes([old[-8] ^ 1]) + old[-7:],
    "a header of zeros": lambda old: bytes(HEADER_SIZE) + old[HEADER_SIZE:],
    "a payload of zeros": lambda old: old[:HEADER_SIZE] + bytes(len(old) - HEADER_SIZE),
    "a block of zeros": lambda old: bytes(len(old)),
}


@contextmanager
def small_log() -> Iterator[SmallLog]:
    with tempfile.TemporaryDirectory() as directory:
        log = SmallLog(Path(directory), segment_bytes=SEGMENT_BYTES)
        log.open()
        yield log
        log.close()


def publish(log: SmallLog, sizes: list[int], synced: set[int]) -> list[Batch]:
    """Append a batch of about each size; sync after those whose numbers are in `synced`."""
    blocks = []
    for number, size in enumerate(sizes):
        blocks.append(log.append(raw_batch(size), queue_id=number % QUEUES))
        if number in synced:
            log.sync()
    return blocks


def edit(log: SmallLog, first: int, end: int, change: Edit) -> None:
    segment = log.log.segments[0]
    new = change(segment.read(first, end - first))
    assert len(new) == end - first
    segment.file.write([new], first - segment.start_offset)


def scanned(log: SmallLog) -> list[BatchHeader]:
    """Return the headers that FORMAT.md 7.5 lets a reader see: blocks up to the first damage that
    no intact header proves to have been durable. A damaged payload keeps its header."""
    found = list(scan_segment(log.log.segments[0]))
    headers = [each.header for each in found if each.header is not None]
    durable = max((header.durable_offset for header in headers), default=0)
    visible = []
    for each in found:
        if isinstance(each, Damage) and each.start >= durable:
            break
        if each.header is not None:
            visible.append(each.header)
    return visible


def walk(file: SegmentFile) -> WalkedBlocks:
    walked = WalkedBlocks(file)
    walked.advance()
    return walked


def places(walked: WalkedBlocks) -> list[int]:
    return sorted(
        place
        for queue in range(QUEUES)
        for rows in walked.rows(1, queue, 0, 2**62)
        for place in rows["physical_offset"].tolist()
    )


@pytest.fixture(params=[False, True], ids=["read", "mapped"])
def may_map(request: pytest.FixtureRequest) -> bool:
    return bool(request.param)


@settings(
    max_examples=60,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(
    st.lists(st.sampled_from([1, 100, 3000, 9000]), min_size=1, max_size=20),
    st.sets(st.integers(0, 19), max_size=3),
    st.sampled_from([None, *EDITS]),
    st.integers(0, 19),
    st.integers(0, 400),
    st.sampled_from([1, 3, 256]),
    st.sampled_from([0, 2048, 1 << 30]),
    st.sampled_from([256, 1 << 20]),
)
def test_a_walk_finds_what_a_scan_finds(
    may_map: bool,
    sizes: list[int],
    synced: set[int],
    damage: str | None,
    damaged: int,
    cut: int,
    at_once: int,
    large_bytes: int,
    most_bytes: int,
) -> None:
    """With one damaged block, and an end that is cut anywhere."""
    with small_log() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(walked_blocks, "_AT_ONCE", at_once)
        patch.setattr(walked_blocks, "_LARGE_BYTES", large_bytes)
        patch.setattr(walked_blocks, "_LEAST_BYTES", 256)
        patch.setattr(walked_blocks, "_MOST_BYTES", most_bytes)
        blocks = publish(log, sizes, synced)
        end = log.log.written_offset
        first = blocks[0].header.physical_offset
        cut_at = max(end - cut // ALIGNMENT * ALIGNMENT, log.durable_offset, first)
        edit(log, cut_at, end, lambda old: bytes(len(old)))
        header = blocks[damaged % len(blocks)].header
        if damage is not None and header.end_physical_offset <= cut_at:
            edit(log, header.physical_offset, header.end_physical_offset, EDITS[damage])
        file = SegmentFile.open(log.directory, 0, may_map=may_map)
        found = walk(file)
        expected = scanned(log)
        assert places(found) == [header.physical_offset for header in expected]
        assert not found.is_ended
        # The walk goes on where it stopped, once the rest is there.
        if damage is None and cut_at < end:
            edit(log, cut_at, end, lambda _: b"".join(map(_bytes_of, blocks))[cut_at - end :])
            found.advance()
            assert places(found) == [block.header.physical_offset for block in blocks]
        file.close()


def _bytes_of(block: Batch) -> bytes:
    return bytes(block.block)


def test_only_blocks_that_no_header_proves_durable_are_verified(
    may_map: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    viewed = []
    view = SegmentFile.view

    def noted(self: SegmentFile, physical_offset: int, size: int) -> bytes | memoryview:
        viewed.append((physical_offset, physical_offset + size))
        return view(self, physical_offset, size)

    monkeypatch.setattr(SegmentFile, "view", noted)
    with small_log() as log:
        blocks = publish(log, [9000] * 12, synced={8})
        file = SegmentFile.open(log.directory, 0, may_map=may_map)
        assert places(walk(file)) == [block.header.physical_offset for block in blocks]
        first, end = blocks[9].header.physical_offset, blocks[-1].header.end_physical_offset
        assert viewed == [(first, end)]
        file.close()


def test_a_search_for_the_end_is_not_repeated(monkeypatch: pytest.MonkeyPatch) -> None:
    searches = []
    is_zero = SegmentFile.is_zero

    def noted(self: SegmentFile, physical_offset: int) -> bool:
        searches.append(physical_offset)
        return is_zero(self, physical_offset)

    monkeypatch.setattr(SegmentFile, "is_zero", noted)
    with small_log() as log:
        publish(log, [100], set())
        file = SegmentFile.open(log.directory, 0)
        walked = walk(file)
        walked.advance()
        assert searches == [walked.end]
        publish(log, [100], set())
        walked.advance()
        assert len(walked) == 2
        assert searches == [log.headers[0].end_physical_offset, walked.end]
        file.close()


def test_damage_that_a_later_segment_proves_is_skipped_by_the_next_walk() -> None:
    with small_log() as log:
        blocks = publish(log, [100] * 3, set())
        header = blocks[1].header
        edit(log, header.physical_offset, header.end_physical_offset, EDITS["a block of zeros"])
        file = SegmentFile.open(log.directory, 0)
        walked = walk(file)
        assert places(walked) == [blocks[0].header.physical_offset]
        walked.advance(log.log.written_offset)
        assert places(walked) == [blocks[each].header.physical_offset for each in (0, 2)]
        file.close()


def test_a_block_that_is_completed_during_the_search_for_damage_is_no_damage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Nor if blocks that are written after it prove, before the search ends, that it is durable."""
    with small_log() as log:
        blocks = publish(log, [100] * 4, synced={2})
        header = blocks[1].header
        first, end = header.physical_offset, header.end_physical_offset
        edit(log, first, end, EDITS["a header of zeros"])
        searches = []

        def interrupted(segment: Segment, start_offset: int) -> Iterator[Batch | Damage]:
            found = next(scan_segment(segment, start_offset))
            searches.append(found)
            edit(log, first, end, lambda _: bytes(blocks[1].block))
            return iter([found])

        monkeypatch.setattr(walked_blocks, "scan_segment", interrupted)
        file = SegmentFile.open(log.directory, 0)
        assert places(walk(file)) == [block.header.physical_offset for block in blocks]
        assert isinstance(searches[0], Damage)
        file.close()
