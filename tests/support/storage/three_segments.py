"""A data directory with two sealed segments and an active one, for tests of checks and repairs, and
functions that damage and compare directories."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import lmdb

from holdfast.commitlog.format.segment_format import segment_name
from tests.support.storage.small_log import flip_bit
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    settled,
    small_config,
    until,
)

FIRST, SECOND, LAST = (segment_name(number * MIB) for number in range(3))

Messages = dict[tuple[int, int], bytes]
"""(queue, offset) -> body."""


async def fill(data_dir: Path) -> None:
    """Create the directory: topic t with two queues, and a stored offset of group g."""
    async with open_storage(small_config(data_dir)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=2)
        for number in range(20):
            await store.publishing.publish(
                topic, [batch([f"body {number}", "x"], number % 2, key=f"k{number}")]
            )
        for queue in (0, 1):
            await fill_segment(storage, topic, queue)
            await store.publishing.publish(
                topic, [batch(f"in segment {queue + 2}", queue, key="late")]
            )
        await store.offsets.store_offsets("g", topic, {0: 3})
        await settled(storage)
        await store.publishing.publish(topic, [batch("the very last", 0)])
        await settled(storage)
        await until(lambda: all(segment.sealed for segment in storage.log.segments[:-1]))


async def read_all(data_dir: Path) -> tuple[Messages, dict[int, list[tuple[int, int]]], list[str]]:
    """Return all messages, the ranges that pulls skipped in each queue, and the degraded parts."""
    async with open_storage(small_config(data_dir)) as storage:
        topic = storage.store.table.get("t")
        assert storage.store.offsets.stored_offsets("g", topic).offsets == {0: 3}
        messages: Messages = {}
        skipped: dict[int, list[tuple[int, int]]] = {}
        for queue in (0, 1):
            at = 0
            while at < storage.store.reading.queue_state(topic, queue).max_offset:
                fetched = await storage.store.reading.read(
                    topic, queue, at, max_messages=1000, max_bytes=MIB
                )
                for piece in fetched.slices:
                    base = piece.batch.header.base_offset
                    for row in piece.rows:
                        messages[queue, base + row] = piece.batch.body(row)
                for each in fetched.skipped:
                    skipped.setdefault(queue, []).append((each.start_offset, each.end_offset))
                assert fetched.next_offset > at
                at = fetched.next_offset
        return messages, skipped, [str(fault) for fault in storage.degraded]


def fingerprints(folder: Path) -> dict[str, tuple[str, int]]:
    """Return the hash and the modification time of every file, except LMDB's table of readers."""
    return {
        str(path.relative_to(folder)): (
            hashlib.sha256(path.read_bytes()).hexdigest(),
            path.stat().st_mtime_ns,
        )
        for path in folder.rglob("*")
        if path.is_file() and path.name != "lock.mdb"
    }


def flip(path: Path, text: bytes = b"", *, at: int = 0) -> None:
    """Flip a bit of a file, `at` bytes after the start of `text`."""
    flip_bit(path, (path.read_bytes().index(text) if text else 0) + at)


def block_of(path: Path, text: bytes) -> tuple[int, int]:
    """Return the start and the end of the block with `text` in its file."""
    image = path.read_bytes()
    start = image.rindex(b"HFBT", 0, image.index(text))
    return start, start + int.from_bytes(image[start + 8 : start + 12], "little")


def change_lmdb(folder: Path, change: Callable[[Any], object], db: bytes | None = None) -> None:
    """Call `change` with a transaction on one of the databases of an LMDB environment."""
    env = lmdb.open(str(folder), max_dbs=3)
    with env.begin(write=True, db=None if db is None else env.open_db(db)) as txn:
        change(txn)
    env.close()
