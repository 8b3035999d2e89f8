"""Searches by key: sealed segments use their footers, the others their hash columns."""

from dataclasses import replace
from pathlib import Path

from holdfast.commitlog.format.batch import Batch, payload_crc
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.consumequeue.lost_ranges import LostRange
from holdfast.consumequeue.topics import Topic
from holdfast.storage.storage import Storage
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    settled,
    small_config,
    until,
)


async def places(storage: Storage, topic: Topic, key: str, limit: int = 100) -> list[str]:
    """Return the found messages as QUEUE:OFFSET=BODY."""
    found = await storage.store.lookups.search_key(topic, key, limit)
    assert all(each.key(row) == key for each, row in found)
    return [
        f"{each.header.queue_id}:{each.header.base_offset + row}={each.body(row).decode()}"
        for each, row in found
    ]


async def sealed(storage: Storage) -> None:
    """Wait until every segment but the last has its footer."""
    await until(lambda: all(segment.sealed for segment in storage.log.segments[:-1]))


async def test_a_key_is_found_newest_first_over_queues_and_segments(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=3)
        other, _ = await store.topics.create("other", queues=1)
        await store.publishing.publish(
            topic, [batch(["a", "b"], 0, key="k"), batch("c", 2, key="k")]
        )
        await store.publishing.publish(other, [batch("not mine", key="k")])
        await store.publishing.publish(topic, [batch("not k", 0, key="l"), batch("no key", 0)])
        await fill_segment(storage, topic, 1)
        await store.publishing.publish(topic, [batch("d", 0, key="k")])
        await fill_segment(storage, topic, 1)
        await store.publishing.publish(topic, [batch("e", 1, key="k")])
        await settled(storage)
        await sealed(storage)
        newest = store.reading.queue_state(topic, 1).max_offset - 1
        wanted = [f"1:{newest}=e", "0:4=d", "2:0=c", "0:1=b", "0:0=a"]
        assert await places(storage, topic, "k") == wanted
        for limit in range(1, 6):
            assert await places(storage, topic, "k", limit) == wanted[:limit]
        assert await places(storage, topic, "l") == ["0:2=not k"]
        assert await places(storage, topic, "nobody's") == []
    async with open_storage(small_config(tmp_path)) as storage:
        assert await places(storage, storage.store.table.get("t"), "k") == wanted


async def test_equal_hashes_do_not_make_equal_keys(tmp_path: Path) -> None:
    """A producer's hash column is not trusted: the texts are compared."""
    raw = bytearray(encode_batch([b"mine", b"liar"], keys=["k", "another"], queue_id=0))
    lying = Batch.decode(bytes(raw))
    section = lying.layout.key_hashes
    assert section is not None
    raw[section.start + 4 : section.start + 8] = raw[section.start : section.start + 4]
    header = replace(lying.header, payload_crc=payload_crc(raw))
    forged = Batch.decode(bytes(header.encode() + raw[HEADER_SIZE:]))
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        await storage.store.publishing.publish(topic, [forged])
        await settled(storage)
        assert await places(storage, topic, "k") == ["0:0=mine"]
        assert await places(storage, topic, "another") == []


async def test_deleted_messages_are_not_found(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        for body in ("old", "new"):
            await store.publishing.publish(topic, [batch(body, key="k")])
        await settled(storage)
        size = store.reading.queue_state(topic, 0).bytes
        topic = await store.topics.change("t", fields={"retention_bytes": size // 2})
        await storage.retention.run_once()
        assert await places(storage, topic, "k") == ["0:1=new"]
        await fill_segment(storage, topic)
        await settled(storage)
        await sealed(storage)
        topic = await store.topics.change("t", fields={"retention_bytes": MIB // 2})
        assert await storage.retention.run_once() == 0  # the segment's end is still needed
        assert await places(storage, topic, "k") == []


async def test_a_damaged_batch_is_skipped_and_reported(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=1)
        for body in ("first", "second", "third"):
            await store.publishing.publish(topic, [batch(body, key="k")])
        await settled(storage)
    (segment,) = [path for path in (tmp_path / "commitlog").iterdir() if path.name == "0" * 20]
    image = bytearray(segment.read_bytes())
    image[image.index(b"second")] ^= 1
    segment.write_bytes(image)
    async with open_storage(small_config(tmp_path)) as storage:
        topic = storage.store.table.get("t")
        assert await places(storage, topic, "k") == ["0:2=third", "0:0=first"]
        skipped: list[tuple[int, LostRange]] = []
        await storage.store.lookups.search_key(topic, "k", 100, skipped=skipped)
        assert skipped == [(0, LostRange(1, 2, "payload-crc"))]
        assert [fault.reason for fault in storage.degraded] == ["payload-crc"]
        assert storage.opened.damage.counts == {"payload-crc": 1}


async def test_a_segment_without_a_footer_is_searched_by_its_batches(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("t", queues=1)
        await storage.store.publishing.publish(topic, [batch("a", key="k")])
        await fill_segment(storage, topic)
        await storage.store.publishing.publish(topic, [batch("b", key="k")])
        await settled(storage)
        await sealed(storage)
        offset = storage.store.reading.queue_state(topic, 0).max_offset - 1
    segment = tmp_path / "commitlog" / ("0" * 20)
    image = bytearray(segment.read_bytes())
    image[MIB - 64 :] = bytes(64)
    segment.write_bytes(image)
    async with open_storage(small_config(tmp_path)) as storage:
        topic = storage.store.table.get("t")
        assert await places(storage, topic, "k") == [f"0:{offset}=b", "0:0=a"]
