"""The scrub finds damage before a reader does, and changes nothing."""

import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from holdfast.commitlog.format.segment_format import end_offset
from holdfast.commitlog.segments.footer import read_footer
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.consumequeue.maintenance.scrub import Scrub
from holdfast.storage.storage import Storage
from tests.support.storage.stored import MIB, filled_topic, open_storage, small_config, until


@asynccontextmanager
async def sealed_log(path: Path) -> AsyncIterator[Storage]:
    """Open a storage of three sealed segments and an active one."""
    async with open_storage(small_config(path)) as storage:
        await filled_topic(storage)
        await until(lambda: all(each.sealed for each in storage.log.segments[:-1]))
        yield storage


def scrub_of(storage: Storage, *, bytes_per_s: int = 1 << 40) -> Scrub:
    opened = storage.opened
    return Scrub(
        opened.log,
        opened.index,
        opened.queues,
        opened.damage,
        bytes_per_s=bytes_per_s,
        run_on_loop=storage.run_on_loop,
        is_busy=lambda: False,
        reseal=storage.reseal,
        pass_pause_s=3600.0,
    )


async def one_pass(storage: Storage) -> Scrub:
    """Run one pass of the scrub over the log; after that its findings are reported."""
    scrub = scrub_of(storage)
    scrub.start()
    await until(lambda: scrub.progress.passes)
    scrub.stop()
    reported: list[bool] = []
    storage.run_on_loop(lambda: reported.append(True))
    await until(lambda: reported)
    return scrub


def write(segment: Segment, position: int, data: bytes) -> None:
    """Change bytes of a segment without the broker's knowledge, as a failing disk does."""
    with segment.path.open("r+b") as file:
        file.seek(position)
        file.write(data)


def flip(segment: Segment, position: int) -> None:
    with segment.path.open("rb") as file:
        file.seek(position)
        byte = file.read(1)[0]
    write(segment, position, bytes([byte ^ 4]))


async def test_a_sound_log_is_not_changed(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        before = [each.path.read_bytes() for each in storage.log.segments]
        scrub = await one_pass(storage)
        assert storage.degraded == []
        assert storage.opened.damage.counts == {}
        assert scrub.progress.bytes >= 3 * (MIB - 200_000)
        assert [each.path.read_bytes() for each in storage.log.segments] == before


async def first_blocks(storage: Storage, segment: Segment) -> list[tuple[int, int, int, int]]:
    """Return (position, header's end, base offset, end offset) of the user's blocks."""
    tables = read_footer(segment)
    assert tables is not None
    return [
        (
            int(row["physical_offset"]) - segment.start_offset,
            int(row["physical_offset"]) - segment.start_offset + 128,
            int(row["base_offset"]),
            end_offset(row),
        )
        for row in tables[0]
        if row["topic_id"] != 0
    ]


@pytest.mark.parametrize("where", ["header", "payload"])
async def test_a_flipped_bit_is_found_with_its_queue_and_offsets(
    tmp_path: Path, where: str
) -> None:
    async with sealed_log(tmp_path) as storage:
        segment = storage.log.segments[1]
        position, payload, base, end = (await first_blocks(storage, segment))[2]
        flip(segment, position + 30 if where == "header" else payload + 50)
        image = segment.path.read_bytes()
        await one_pass(storage)
        (fault,) = storage.degraded
        assert f"from offset {base} to {end}" in fault.detail
        assert fault.reason == ("header-crc" if where == "header" else "payload-crc")
        assert storage.opened.damage.counts == {fault.reason: 1}
        await one_pass(storage)
        assert storage.opened.damage.counts == {fault.reason: 1}
        assert segment.path.read_bytes() == image
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.degraded == [fault]
        flip(storage.log.segments[1], position + 30 if where == "header" else payload + 50)
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.degraded == []  # the file was repaired while the broker was down


async def test_a_block_in_the_wrong_place_is_found(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        segment = storage.log.segments[1]
        blocks = await first_blocks(storage, segment)
        (first, _, base, end), (second, *_) = blocks[2], blocks[3]
        image = segment.path.read_bytes()
        write(segment, first, image[second : second + (second - first)])
        await one_pass(storage)
        assert [fault.reason for fault in storage.degraded] == ["misplaced"]
        assert f"from offset {base} to {end}" in storage.degraded[0].detail


async def test_the_header_page_of_another_segment_is_found(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        other = storage.log.segments[2].path.read_bytes()[:64]
        write(storage.log.segments[1], 0, other)
        await one_pass(storage)
        assert [fault.reason for fault in storage.degraded] == ["damaged-file"]


async def test_a_truncated_segment_is_found(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        segment = storage.log.segments[1]
        blocks = await first_blocks(storage, segment)
        os.truncate(segment.path, blocks[3][0] + 500)
        await one_pass(storage)
        lost = f"offset {blocks[3][2]} to {blocks[-1][3]}"
        detail = f"queue 0 of 't' has lost its messages from {lost}"
        assert Fault("truncated-segment", detail) in storage.degraded


async def test_a_damaged_footer_is_rebuilt(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        segment = storage.log.segments[1]
        image = segment.path.read_bytes()
        flip(segment, MIB - 100)
        await one_pass(storage)
        await until(lambda: segment.path.read_bytes() == image)
        assert storage.degraded == []
        assert storage.opened.damage.counts == {"footer": 1}


async def test_an_index_that_lacks_a_block_is_rebuilt_at_the_next_start(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        index = storage.opened.index
        with index.env.transaction(b"entries", write=True) as txn, txn.cursor() as cursor:
            assert cursor.set_range(bytes.fromhex("00000001000000000000000000000005"))
            assert cursor.delete()
        await one_pass(storage)
        assert [fault.reason for fault in storage.degraded] == ["damaged-index"]
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.degraded == []
        await one_pass(storage)
        assert storage.degraded == []


async def test_the_scrub_keeps_its_rate_and_stops_at_once(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        scrub = scrub_of(storage, bytes_per_s=1)
        scrub.start()
        await until(lambda: scrub.progress.bytes)
        scrub.stop()
        assert scrub.progress.passes == 0
        assert scrub.progress.bytes <= 256 * 1024


async def test_the_scrub_is_off_without_a_rate(tmp_path: Path) -> None:
    async with sealed_log(tmp_path) as storage:
        assert not storage.scrub._thread.is_alive()
    config = small_config(tmp_path, scrub_bytes_per_s=1 << 30)
    async with open_storage(config) as storage:
        await until(lambda: storage.scrub.progress.passes)
