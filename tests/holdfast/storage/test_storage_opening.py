"""Opening a data directory: missing or damaged parts are restored from the log, or reported."""

import errno
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.check import check_data_dir
from holdfast.commitlog.disk.data_dir import DataDirInUse, NotADataDir
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import MAGIC
from holdfast.consumequeue.damage.damage_book import Fault
from holdfast.consumequeue.errors import OffsetTrimmed, QueueCorrupt
from holdfast.consumequeue.index.index import Index, IndexCorrupt
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.state.store import StateStore
from holdfast.storage import storage_opening
from holdfast.storage.storage import Storage, StorageEvents
from holdfast.storage.storage_opening import OpeningCancelled
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    read_queue,
    settled,
    small_config,
    until,
)
from tests.support.storage.three_segments import change_lmdb

EVENTS = StorageEvents(on_failure=lambda error: None)
WANTED = [(n, str(n).encode()) for n in range(10)]


async def fill(data_dir: Path) -> None:
    """Make a data directory with one topic of ten messages, and an offset stored for it."""
    async with open_storage(small_config(data_dir)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for offset, _ in WANTED:
            await storage.store.publishing.publish(topic, [batch(str(offset), key=f"key {offset}")])
        await storage.store.offsets.store_offsets("g", topic, {0: 7})
        await settled(storage)


async def check_filled(data_dir: Path, *, degraded: int = 0) -> None:
    """Open the directory and check the content that `fill` made."""
    async with open_storage(small_config(data_dir)) as storage:
        assert len(storage.degraded) == degraded, storage.degraded
        topic = storage.store.table.get("t")
        assert await read_queue(storage.store, topic) == WANTED
        assert storage.store.offsets.stored_offsets("g", topic) == StoredOffsets({0: 7}, 1)


@contextmanager
def changing_segment(data_dir: Path) -> Iterator[bytearray]:
    """Yield the bytes of the first segment, and write them back when the block ends."""
    segment = data_dir / "commitlog" / ("0" * 20)
    image = bytearray(segment.read_bytes())
    yield image
    segment.write_bytes(image)


def open_files(directory: Path) -> list[str]:
    """Return the files in a directory that this process has open."""
    targets = []
    for descriptor in Path("/proc/self/fd").iterdir():
        try:
            targets.append(str(descriptor.readlink()))
        except FileNotFoundError:
            continue
    return [target for target in targets if target.startswith(str(directory))]


def fail(*_: object, **__: object) -> None:
    raise OSError(errno.EIO, "for a test")


async def open_in_vain(data_dir: Path) -> None:
    """Open a directory while `fail` replaces a step; only the lock file stays open."""
    storage = Storage(small_config(data_dir), EVENTS)
    storage.lock()
    with pytest.raises(OSError, match="for a test"):
        await storage.open()
    assert open_files(data_dir) == [str(data_dir / "lock")]
    await storage.close()


# -- refused directories -------------------------------------------------------------------


async def test_a_cancelled_opening_ends_early(tmp_path: Path) -> None:
    await fill(tmp_path)
    shutil.rmtree(tmp_path / "consumequeue")
    storage = Storage(small_config(tmp_path), EVENTS)
    storage.lock()
    storage.progress.is_cancelled = True
    with pytest.raises(OpeningCancelled):
        await storage.open()
    await storage.close()
    assert open_files(tmp_path) == []
    await check_filled(tmp_path)


async def test_a_second_broker_on_the_directory_is_refused(tmp_path: Path) -> None:
    config = small_config(tmp_path)
    async with open_storage(config):
        second = Storage(config, EVENTS)
        with pytest.raises(DataDirInUse) as caught:
            second.lock()
        assert str(os.getpid()) in str(caught.value)
        await second.close()
    async with open_storage(config):
        pass


async def test_a_directory_of_another_version_is_refused(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("3\n")
    with pytest.raises(UnknownFormatVersion):
        Storage(small_config(tmp_path), EVENTS).lock()
    assert {path.name for path in tmp_path.iterdir()} <= {"VERSION", "lock"}


async def test_a_directory_with_other_files_is_refused(tmp_path: Path) -> None:
    (tmp_path / "letters.txt").write_text("private")
    with pytest.raises(NotADataDir):
        Storage(small_config(tmp_path), EVENTS).lock()


async def test_a_failed_opening_leaves_no_files_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(storage_opening, "recover", fail)
        await open_in_vain(tmp_path)
    assert open_files(tmp_path) == []
    await check_filled(tmp_path)


async def test_closing_twice_or_unopened_is_harmless(tmp_path: Path) -> None:
    storage = Storage(small_config(tmp_path), EVENTS)
    await storage.close()
    storage = Storage(small_config(tmp_path), EVENTS)
    storage.lock()
    await storage.open()
    await storage.close()
    await storage.close()
    assert open_files(tmp_path) == []


# -- the state -----------------------------------------------------------------------------


def _overwrite(directory: Path, key: bytes, value: bytes) -> None:
    change_lmdb(directory, lambda txn: txn.put(key, value))


async def test_a_crash_while_the_state_is_restored_loses_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    shutil.rmtree(tmp_path / "state")

    with monkeypatch.context() as patched:
        patched.setattr(storage_opening, "state_in_log", fail)
        await open_in_vain(tmp_path)
    assert (tmp_path / "state" / "data.mdb").exists()
    await check_filled(tmp_path)


async def test_an_unusable_state_is_moved_aside_and_restored(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / "state" / "data.mdb").write_bytes(b"not an environment" * 1000)
    await check_filled(tmp_path)
    (aside,) = tmp_path.glob("state.corrupt-*")
    assert (aside / "data.mdb").read_bytes().startswith(b"not an environment")


@pytest.mark.parametrize("value", [b"", b"?????????", None])
async def test_a_damaged_record_is_restored_from_the_log(
    tmp_path: Path, value: bytes | None
) -> None:
    await fill(tmp_path)
    if value is None:
        # A flipped bit in a key: one record is damaged, and another one is missing.
        change_lmdb(tmp_path / "state", lambda txn: txn.put(b"topic/u", txn.pop(b"topic/t")))
        await check_filled(tmp_path, degraded=1)
    else:
        _overwrite(tmp_path / "state", b"topic/t", value)
        await check_filled(tmp_path)
        await check_filled(tmp_path)


async def test_a_newer_record_of_the_state_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The copy in the log may lag; only records that the state lacks are taken from it."""
    await fill(tmp_path)
    async with open_storage(small_config(tmp_path)) as storage:
        monkeypatch.setattr(StateChanges, "_journal", lambda self, changes: None)
        await storage.store.offsets.store_offsets("g", storage.store.table.get("t"), {0: 9})
    _overwrite(tmp_path / "state", b"topic/t", b"?????????")
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.store.offsets.stored_offsets("g", storage.store.table.get("t")).offsets == {
            0: 9
        }


async def test_a_lost_record_keeps_its_messages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        monkeypatch.setattr(StateChanges, "_journal", lambda self, changes: None)
        topic, _ = await storage.store.topics.create("lost", queues=1)
        await fill_segment(storage, topic)
        await settled(storage)
        # The snapshot at the segment's start contains the record as well.
        log = storage.log.segments[-1].path
    image = log.read_bytes()
    log.write_bytes(image.replace(b"topic/lost", b"topic/l?st"))
    _overwrite(tmp_path / "state", b"topic/lost", b"?????????")
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            assert any("topic/lost" in each.detail for each in storage.degraded)
            other, _ = await storage.store.topics.create("other", queues=1)
            await fill_segment(storage, other)
            await settled(storage)
            before = len(storage.log.segments)
            await storage.store.topics.delete("other")
            assert await storage.retention.run_once() == 0
            assert len(storage.log.segments) == before
    assert not check_data_dir(tmp_path).is_sound


async def test_a_state_from_a_damaged_log_stays_marked(tmp_path: Path) -> None:
    await fill(tmp_path)
    with changing_segment(tmp_path) as image:
        image[image.index(b"topic/t")] ^= 1
    shutil.rmtree(tmp_path / "state")
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            assert any("topics may be missing" in each.detail for each in storage.degraded)
            assert storage.retention.keep_unknown_topics


async def test_a_new_topic_does_not_get_the_id_of_a_lost_topic(tmp_path: Path) -> None:
    await fill(tmp_path)
    with changing_segment(tmp_path) as image:
        for record in (b"topic/t", b"next_topic_id"):
            image[:] = image.replace(record, bytes([record[0] ^ 1]) + record[1:])
    shutil.rmtree(tmp_path / "state")
    async with open_storage(small_config(tmp_path)) as storage:
        assert storage.store.table.all() == []
        topic, _ = await storage.store.topics.create("new", queues=1)
        assert topic.topic_id == 2, "the log has messages of a topic 1"


# -- missing segments ----------------------------------------------------------------------


async def fill_segments(data_dir: Path, *, count: int) -> list[Path]:
    """Fill `count` segments with the messages of one queue; return the log's files."""
    async with open_storage(small_config(data_dir)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        for _ in range(count):
            await fill_segment(storage, topic)
        await settled(storage)
    return sorted((data_dir / "commitlog").iterdir())


async def find_gap(storage: Storage) -> tuple[int, int]:
    """Return the first and the next offset of the damage at which reading the queue fails."""
    reading, topic = storage.store.reading, storage.store.table.get("t")
    begin = (await reading.read(topic, 0, 0, max_messages=10_000, max_bytes=16 * MIB)).next_offset
    with pytest.raises(QueueCorrupt) as caught:
        await reading.read(topic, 0, begin, max_messages=1, max_bytes=MIB)
    assert caught.value.next_offset is not None
    return begin, caught.value.next_offset


@pytest.mark.parametrize("left", [None, 0, 100])
async def test_a_missing_segment_is_reported(
    tmp_path: Path, left: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    gone = (await fill_segments(tmp_path, count=4))[1]
    if left is None:
        gone.unlink()
    else:
        os.truncate(gone, left)
    report = check_data_dir(tmp_path)
    assert any("missing-segment" in finding.what for finding in report.findings)
    async with open_storage(small_config(tmp_path)) as storage:
        hole = Fault("missing-segment", f"the log lacks {MIB} to {2 * MIB}")
        assert hole in storage.degraded
        assert f"the log lacks {MIB} to {2 * MIB}" in caplog.text
        await find_gap(storage)


async def test_a_hole_is_known_without_the_index(tmp_path: Path) -> None:
    gone = (await fill_segments(tmp_path, count=4))[1]
    gone.unlink()
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            details = [fault.detail for fault in storage.degraded]
            store, topic = storage.store, storage.store.table.get("t")
            begin, end = await find_gap(storage)
            assert any(f"from offset {begin} to {end}" in each for each in details), details
            after = await store.reading.read(topic, 0, end, max_messages=1, max_bytes=MIB)
            assert after.message_count == 1


async def test_a_footer_reveals_a_block_without_a_header(tmp_path: Path) -> None:
    """This holds even for the last block of its queue: its offset is not assigned again.

    Without the index, only the footer knows that block.
    """
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=2)
        await storage.store.publishing.publish(topic, [batch(["only", "two"], 1)])
        await fill_segment(storage, topic, 0)
        await settled(storage)
        await until(lambda: storage.log.segments[0].sealed)
    with changing_segment(tmp_path) as image:
        at = image.rindex(MAGIC, 0, image.index(b"only"))
        image[at : at + 128] = bytes(128)
    shutil.rmtree(tmp_path / "consumequeue")
    for _ in range(2):
        async with open_storage(small_config(tmp_path)) as storage:
            topic = storage.store.table.get("t")
            with pytest.raises(QueueCorrupt) as caught:
                await storage.store.reading.read(topic, 1, 0, max_messages=1, max_bytes=1)
            assert caught.value.next_offset == 2
            assert len(storage.degraded) == 1
    async with open_storage(small_config(tmp_path)) as storage:
        (published,) = await storage.store.publishing.publish(topic, [batch("next", 1)])
        assert published.base_offset == 2


async def test_offsets_in_a_missing_segment_are_not_reused(tmp_path: Path) -> None:
    *_, last = [path for path in await fill_segments(tmp_path, count=2) if has_blocks(path)]
    async with open_storage(small_config(tmp_path)) as storage:
        end = storage.store.reading.queue_state(storage.store.table.get("t"), 0).max_offset
    for path in (tmp_path / "commitlog").iterdir():
        if path.name >= last.name:
            path.unlink()

    async with open_storage(small_config(tmp_path)) as storage:
        assert any(f"to {end}" in each.detail for each in storage.degraded)
        store, topic = storage.store, storage.store.table.get("t")
        assert (await find_gap(storage))[1] == end
        [published] = await store.publishing.publish(topic, [batch("after")])
        assert published.base_offset == end
        await settled(storage)
        assert (await find_gap(storage))[1] == end


def has_blocks(path: Path) -> bool:
    """Return whether a segment holds more than its header."""
    with path.open("rb") as file:
        file.seek(4096)
        return any(file.read(4096))


# -- the index -----------------------------------------------------------------------------


def _damage_nothing(data_dir: Path) -> None:
    return


def _delete(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "consumequeue")


def _garbage(data_dir: Path) -> None:
    (data_dir / "consumequeue" / "data.mdb").write_bytes(b"not an environment" * 1000)


def _empty(data_dir: Path) -> None:
    os.truncate(data_dir / "consumequeue" / "data.mdb", 0)


def _cut(data_dir: Path) -> None:
    os.truncate(data_dir / "consumequeue" / "data.mdb", 4 * 4096)


def _other_format(data_dir: Path) -> None:
    change_lmdb(
        data_dir / "consumequeue", lambda txn: txn.put(b"format", b"holdfast-index-9"), b"meta"
    )


def _spoil(db: bytes, which: int) -> Callable[[Path], None]:
    def spoil(txn: Any) -> None:
        key = [bytes(raw) for raw, _ in txn.cursor() if raw != b"format"][which]
        txn.put(key, b"?" * 44)

    return lambda data_dir: change_lmdb(data_dir / "consumequeue", spoil, db)


def _of_a_longer_log(data_dir: Path) -> None:
    """Set the index's position beyond the end of the log."""
    index = Index(data_dir / "consumequeue", MIB * 64)
    position = index.position()
    index.commit([], position.__class__(100 * MIB, 99 * MIB, 1, 1))
    index.close()


@pytest.mark.parametrize(
    "damage",
    [
        _damage_nothing,
        _delete,
        _garbage,
        _empty,
        _cut,
        _other_format,
        _spoil(b"meta", -1),
        _spoil(b"entries", -1),
        _spoil(b"entries", 0),
        _of_a_longer_log,
    ],
    ids=lambda damage: damage.__qualname__.split(".")[0],
)
async def test_a_damaged_index_is_rebuilt(tmp_path: Path, damage: Callable[[Path], None]) -> None:
    await fill(tmp_path)
    damage(tmp_path)
    await check_filled(tmp_path)
    report = check_data_dir(tmp_path)
    assert report.is_sound, report.findings
    assert report.index_entries >= len(WANTED)


async def test_an_index_found_damaged_in_use_is_rebuilt(tmp_path: Path) -> None:
    await fill(tmp_path)
    (tmp_path / "consumequeue" / "seal").unlink()
    key = bytes.fromhex("00000001000000000000000000000005")
    change_lmdb(tmp_path / "consumequeue", lambda txn: txn.put(key, b"?" * 44), b"entries")
    async with open_storage(small_config(tmp_path)) as storage:
        assert not storage.degraded
        topic = storage.store.table.get("t")
        with pytest.raises(IndexCorrupt):
            await storage.store.reading.read(topic, 0, 5, max_messages=1, max_bytes=1)
        assert len(storage.degraded) == 1
        await storage.store.publishing.publish(topic, [batch("goes on")])
    async with open_storage(small_config(tmp_path)) as storage:
        assert not storage.degraded
        found = await read_queue(storage.store, storage.store.table.get("t"))
        assert found == [*WANTED, (10, b"goes on")]


async def test_a_half_deleted_index_is_rebuilt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(tmp_path)
    directory = tmp_path / "consumequeue"
    (directory / "seal").unlink()
    deleted: list[bool] = []
    key = bytes.fromhex("00000001000000000000000000000005")
    change_lmdb(directory, lambda txn: deleted.append(txn.delete(key)), b"entries")
    assert deleted == [True]
    (directory / "condemned").touch()

    def cut_short(directory: Path) -> None:
        (directory / "condemned").unlink()
        fail()

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "rmtree", cut_short)
        await open_in_vain(tmp_path)
    await check_filled(tmp_path)


# -- the log -------------------------------------------------------------------------------


async def test_a_damaged_log_serves_its_intact_messages(tmp_path: Path) -> None:
    await fill(tmp_path)
    with changing_segment(tmp_path) as image:
        image[image.index(b"key 4")] ^= 1
    shutil.rmtree(tmp_path / "consumequeue")
    async with open_storage(small_config(tmp_path)) as storage:
        assert len(storage.degraded) == 1
        assert storage.degraded[0].reason == "payload-crc"
        store, topic = storage.store, storage.store.table.get("t")
        fetched = await store.reading.read(topic, 0, 5, max_messages=100, max_bytes=MIB)
        assert fetched.message_count == 5
        (published,) = await store.publishing.publish(topic, [batch("goes on")])
        assert published.base_offset == 10


async def test_a_damaged_segment_header_is_reported(tmp_path: Path) -> None:
    await fill(tmp_path)
    with changing_segment(tmp_path) as image:
        image[9] ^= 1
    await check_filled(tmp_path, degraded=1)


async def test_offsets_are_not_reused_after_a_trim_and_a_lost_end(tmp_path: Path) -> None:
    """A power loss removes messages that were written, read and trimmed by age, but never synced.

    The index is gone as well: only the stored first offset says how far the queue was.
    """
    config = small_config(tmp_path)
    async with open_storage(config) as storage:
        topic, _ = await storage.store.topics.create(
            "t", queues=1, fields={"durability": "written"}
        )
        for number in range(10):
            await storage.store.publishing.publish(topic, [batch(f"message {number}")])
        await settled(storage)
        await storage.store.topics.change("t", fields={"retention_bytes": 1})
        await storage.retention.run_once()
        assert storage.store.reading.queue_state(topic, 0).min_offset == 10
    with changing_segment(tmp_path) as image:
        lost = image.index(b"message 6") - 200
        image[lost:] = bytes(len(image) - lost)
    shutil.rmtree(tmp_path / "consumequeue")
    async with open_storage(config) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        state = store.reading.queue_state(topic, 0)
        assert (state.min_offset, state.max_offset) == (10, 10)
        with pytest.raises(OffsetTrimmed):
            await store.reading.read(topic, 0, 5, max_messages=1, max_bytes=1)
        (published,) = await store.publishing.publish(topic, [batch("next")])
        assert published.base_offset == 10
        assert await read_queue(store, topic) == [(10, b"next")]
    report = check_data_dir(tmp_path)
    assert report.is_sound, report.findings


async def test_store_timestamps_do_not_go_back_when_the_clock_does(tmp_path: Path) -> None:
    await fill(tmp_path)
    async with open_storage(small_config(tmp_path), now_us=lambda: 1_000_000) as storage:
        store, topic = storage.store, storage.store.table.get("t")
        before = store.reading.queue_state(topic, 0).newest_timestamp_us
        assert before is not None
        (published,) = await store.publishing.publish(topic, [batch("10")])
        assert published.store_timestamp_us >= before
        assert await store.lookups.offset_by_time(topic, 0, before) == (9, before)
    report = check_data_dir(tmp_path)
    assert report.is_sound, report.findings


async def test_a_new_state_store_is_complete_after_its_first_start(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)):
        pass
    state = StateStore(tmp_path / "state", 64 * MIB, readonly=True)
    assert not state.is_new
    state.stop()
