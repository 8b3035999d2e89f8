"""Damage that a start finds below the index's position, where it does not walk the log."""

import asyncio
import errno
import json
import shutil
import struct
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from holdfast.check import check_data_dir
from holdfast.cli.main import main
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.segments.segment import Segment
from holdfast.consumequeue.errors import QueueCorrupt
from holdfast.consumequeue.maintenance import damage_at_start
from holdfast.repair import repair_data_dir
from holdfast.storage.storage import Storage
from tests.support.storage.small_log import overwrite
from tests.support.storage.stored import (
    batch,
    bodies,
    open_storage,
    read_queue,
    settled,
    small_config,
)

_VERSION_AT, _CRC_AT = 4, 12


async def _publish(storage: Storage, *numbers: int) -> list[tuple[int, int]]:
    """Publish messages one by one; return the start and the end of each one in the log."""
    store = storage.store
    places = []
    for number in numbers:
        start = storage.log.written_offset
        await store.publishing.publish(store.table.get("t"), [batch(str(number))])
        places.append((start, storage.log.written_offset))
    await settled(storage)
    return places


async def _filled(data_dir: Path, count: int = 10) -> list[tuple[int, int]]:
    async with open_storage(small_config(data_dir)) as storage:
        await storage.store.topics.create("t", queues=1)
        return await _publish(storage, *range(count))


def _segment(data_dir: Path) -> Path:
    return data_dir / "commitlog" / ("0" * 20)


# D7: a loss there was found only when a reader came to it


async def test_zeroed_last_blocks_are_reported_at_the_start(tmp_path: Path) -> None:
    places = await _filled(tmp_path)
    start, end = places[7][0], places[9][1]
    overwrite(_segment(tmp_path), start, bytes(end - start))
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            (fault,) = storage.degraded
            assert "queue 0 of 't' has lost its messages from offset 7 to 10" in fault.detail
    async with open_storage(small_config(tmp_path)) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        assert (await store.publishing.publish(topic, [batch("next")]))[0].base_offset == 10
        with pytest.raises(QueueCorrupt) as lost:
            await store.reading.read(topic, 0, 7, max_messages=10, max_bytes=1 << 20)
        assert lost.value.next_offset == 10


async def test_an_older_log_is_reported_at_the_start(tmp_path: Path) -> None:
    await _filled(tmp_path)
    older = tmp_path / "older"
    shutil.copy(_segment(tmp_path), older)
    async with open_storage(small_config(tmp_path)) as storage:
        await _publish(storage, 10, 11, 12)
    shutil.copy(older, _segment(tmp_path))
    older.unlink()
    async with open_storage(small_config(tmp_path)) as storage:
        assert "offset 10 to 13" in storage.degraded[0].detail
        published = await storage.store.publishing.publish(
            storage.store.table.get("t"), [batch("next")]
        )
        assert published[0].base_offset == 13, "an offset that was acknowledged is given again"


async def test_a_flipped_bit_in_the_last_block_is_reported(tmp_path: Path) -> None:
    places = await _filled(tmp_path)
    overwrite(_segment(tmp_path), places[9][0] + HEADER_SIZE, b"\xff\xff")
    async with open_storage(small_config(tmp_path)) as storage:
        assert [fault.reason for fault in storage.degraded] == ["payload-crc"]


@pytest.mark.parametrize(("beyond", "is_found"), [(0, True), (1, True), (-1, False)])
async def test_a_start_checks_a_limited_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, beyond: int, is_found: bool
) -> None:
    places = await _filled(tmp_path)
    overwrite(_segment(tmp_path), places[5][0] + HEADER_SIZE, b"\xff\xff")
    looked_at = places[9][1] - places[5][0] + beyond
    monkeypatch.setattr(damage_at_start, "CHECKED_BYTES", looked_at)
    async with open_storage(small_config(tmp_path)) as storage:
        assert bool(storage.degraded) == is_found


async def test_an_intact_log_has_no_faults(tmp_path: Path) -> None:
    await _filled(tmp_path)
    for number in range(3):
        async with open_storage(small_config(tmp_path)) as storage:
            assert storage.degraded == []
            await _publish(storage, number)


# D4: a block of a newer version below the index's position caused 500 internal-error


def _raise_version(data_dir: Path, physical_offset: int) -> None:
    path = _segment(data_dir)
    raw = bytearray(path.read_bytes()[physical_offset : physical_offset + HEADER_SIZE])
    struct.pack_into("<H", raw, _VERSION_AT, 99)
    struct.pack_into("<I", raw, _CRC_AT, 0)
    struct.pack_into("<I", raw, _CRC_AT, crc32c(bytes(raw)))
    overwrite(path, physical_offset, bytes(raw))


async def test_a_newer_block_can_be_skipped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    places = await _filled(tmp_path)
    _raise_version(tmp_path, places[4][0])
    monkeypatch.setattr(damage_at_start, "CHECKED_BYTES", 0)
    async with open_storage(small_config(tmp_path)) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        limits: dict[str, Any] = {"max_messages": 100, "max_bytes": 1 << 20}
        assert bodies(await store.reading.read(topic, 0, 0, **limits)) == [b"0", b"1", b"2", b"3"]
        with pytest.raises(QueueCorrupt) as newer:
            await store.reading.read(topic, 0, 4, **limits)
        assert (newer.value.reason, newer.value.next_offset) == ("unknown-version", 5)
        passed = await store.reading.read(topic, 0, 4, skip_corrupt=True, **limits)
        assert bodies(passed) == [b"5", b"6", b"7", b"8", b"9"]
        assert [fault.reason for fault in storage.degraded] == ["unknown-version"]
        await store.state.wait()
    async with open_storage(small_config(tmp_path)) as storage:
        assert [fault.reason for fault in storage.degraded] == ["unknown-version"]


@pytest.mark.parametrize("number", [0, 9])
async def test_a_newer_block_at_the_end_is_refused(tmp_path: Path, number: int) -> None:
    places = await _filled(tmp_path)
    at = 4096 if number == 0 else places[number][0]  # the first block of the log is the state's
    _raise_version(tmp_path, at)
    with pytest.raises(UnknownFormatVersion, match="version 99; this Holdfast reads"):
        async with open_storage(small_config(tmp_path)):
            pass


# D8: `repair` reported 0 lost messages where it could not know the number


async def _with_a_damaged_only_block(data_dir: Path) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        for name in ("t", "lone"):
            await storage.store.topics.create(name, queues=1)
        lone = storage.store.table.get("lone")
        await settled(storage)
        start = storage.log.written_offset
        await storage.store.publishing.publish(lone, [batch("the only one")])
        await _publish(storage, *range(5))
    overwrite(_segment(data_dir), start, bytes(8))


async def test_a_repair_without_an_index_knows_no_count(tmp_path: Path) -> None:
    await _with_a_damaged_only_block(tmp_path)
    known = await asyncio.to_thread(repair_data_dir, tmp_path, accept_loss=False)
    assert (known.loss.messages, known.loss.messages_at_least) == (1, 1)
    shutil.rmtree(tmp_path / "consumequeue")  # a backup has no index
    unknown = await asyncio.to_thread(repair_data_dir, tmp_path, accept_loss=False)
    assert (unknown.loss.messages, unknown.loss.messages_at_least) == (None, 0)
    done = await asyncio.to_thread(CliRunner().invoke, main, ["repair", str(tmp_path)])
    summary = json.loads(done.output.splitlines()[-1])
    assert (summary["messages"], summary["messages_at_least"]) == ("unknown", 0)


async def test_a_check_counts_only_messages_of_users(tmp_path: Path) -> None:
    await _filled(tmp_path, 7)
    report = await asyncio.to_thread(check_data_dir, tmp_path)
    assert report.messages == 7


async def test_damage_that_can_be_read_again_is_forgotten(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await _filled(tmp_path)
    async with open_storage(small_config(tmp_path)) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        limits: dict[str, Any] = {"max_messages": 3, "max_bytes": 1 << 20}

        def fail(*_: object) -> bytes:
            raise OSError(errno.EIO, "Input/output error")

        with monkeypatch.context() as failing:
            failing.setattr(Segment, "read", fail)
            with pytest.raises(QueueCorrupt, match="unreadable"):
                await store.reading.read(topic, 0, 4, **limits)
        assert [fault.reason for fault in storage.degraded] == ["unreadable"]
        await store.reading.read(
            topic, 0, 0, **limits
        )  # reading other messages does not clear the fault
        assert [fault.reason for fault in storage.degraded] == ["unreadable"]
        assert bodies(await store.reading.read(topic, 0, 2, **limits)) == [b"2", b"3", b"4"]
        assert len(await read_queue(store, topic)) == 10
        assert storage.degraded == []
