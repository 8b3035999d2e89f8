"""A complete data directory that a test may damage, its original content, and the judge of a start.

Whatever is damaged, a start must end: either in order, or with an error message that gives the
reason. Each message that is served must be the message that was stored there. Each message that is
not served must be declared damaged. The start must not change or delete any byte of the log.
"""

import asyncio
from dataclasses import dataclass, field
from pathlib import Path

from holdfast.check import check_data_dir
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.commitlog.format.segment_format import parse_segment_name
from holdfast.config import Config
from holdfast.consumequeue.errors import QueueCorrupt, StoreError, UnknownTopic
from holdfast.consumequeue.index.index import IndexCorrupt
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.storage.stored import small_config

_GROUP = "billing"
_QUEUES = 2
_TOPICS = ("orders", "audit")
_NEW = b"published after the damage"

Row = tuple[bytes, str | None, str | None, dict[str, str], int]
"""A message: body, key, tag, properties, store timestamp."""


class DamageViolation(AssertionError):
    """A result that no damage excuses."""


@dataclass
class Truth:
    """The content of a data directory."""

    rows: dict[tuple[str, int], list[Row]] = field(default_factory=dict)
    """Messages by topic and queue, from offset 0."""
    offsets: dict[str, dict[int, int]] = field(default_factory=dict)
    log: dict[str, bytes] = field(default_factory=dict)
    """The written bytes of each segment. The last segment is prepared and empty."""


def config_of(data_dir: Path) -> Config:
    """Return the configuration of a test directory."""
    return small_config(data_dir, reserve_bytes=64 * 1024)


async def make_directory(data_dir: Path) -> Truth:
    """Make a data directory with a few segments, an index, stored offsets and a reserve."""
    storage = await _open_storage(data_dir)
    try:
        topics = [(await storage.store.topics.create(name, queues=_QUEUES))[0] for name in _TOPICS]
        for number in range(60):
            for topic in topics:
                await storage.store.publishing.publish(topic, [_batch(number, number % _QUEUES)])
            if number % 10 == 5:
                # Large messages, so that some segments are sealed.
                for queue in range(_QUEUES):
                    large = encode_batch([bytes([number]) * 150_000] * 2, queue_id=queue)
                    await storage.store.publishing.publish(topics[0], [Batch.decode(large)])
        truth = Truth()
        for topic in topics:
            offsets = {queue: 3 + queue for queue in range(_QUEUES)}
            await storage.store.offsets.store_offsets(_GROUP, topic, offsets)
            truth.offsets[topic.name] = offsets
            for queue in range(_QUEUES):
                found, missing = await _read_queue(storage.store, topic, queue)
                assert not missing
                truth.rows[topic.name, queue] = [found[offset] for offset in range(len(found))]
    finally:
        await storage.close()
    *written, prepared = sorted(log_files(data_dir).items())
    truth.log = {name: content.rstrip(b"\0") for name, content in written}
    truth.log[prepared[0]] = b""
    return truth


def _batch(number: int, queue: int) -> Batch:
    rows = range(3)
    return Batch.decode(
        encode_batch(
            [f"{number}:{row}".encode() * 20 for row in rows],
            keys=[f"key-{number}", None, f"other-{number}"],
            tags=["red", "green", None],
            properties=[{"number": str(number)}, None, {"é": "ü", "b": ""}],
            queue_id=queue,
            producer_id=5,
            sequence=number // _QUEUES,
        )
    )


async def examine(data_dir: Path, truth: Truth) -> str:
    """Start on the directory, use every function, and stop. Return "right" if all was served,
    "declared" if damage was declared, or "refused: ...". Raise DamageViolation otherwise."""
    try:
        storage = await _open_storage(data_dir)
    except (LogError, OSError) as error:
        return f"refused: {error}"
    try:
        is_whole = await _examine_messages(storage, truth)
        is_whole &= _examine_offsets(storage, truth)
        is_damaged = not is_whole or bool(storage.degraded)
        await _examine_look_ups(storage, truth, is_damaged=is_damaged)
        await _examine_publishing(storage, truth)
        # The reads above may have found more damage.
        is_damaged |= bool(storage.degraded)
    finally:
        await storage.close()
    return "declared" if is_damaged else "right"


async def _open_storage(data_dir: Path) -> Storage:
    failures: list[Exception] = []
    storage = Storage(config_of(data_dir), StorageEvents(failures.append))
    try:
        storage.lock()
        await storage.open()
    except BaseException:
        await storage.close()
        raise
    return storage


async def _examine_messages(storage: Storage, truth: Truth) -> bool:
    """Read every queue; return whether all messages were served."""
    is_whole = True
    for (name, queue), rows in truth.rows.items():
        try:
            topic = storage.store.table.get(name)
        except UnknownTopic:
            _must_be_degraded(storage, f"topic {name} is gone")
            is_whole = False
            continue
        found, missing = await _read_queue(storage.store, topic, queue)
        for offset, row in found.items():
            if offset >= len(rows):
                raise DamageViolation(f"{name}/{queue} has {row} at {offset}, beyond its end")
            if row != rows[offset]:
                raise DamageViolation(f"{name}/{queue} has {row} at {offset}, not {rows[offset]}")
        silent = set(range(len(rows))) - found.keys() - missing
        if silent:
            _must_be_degraded(storage, f"{name}/{queue} lacks {sorted(silent)}")
        is_whole &= len(found) == len(rows)
    return is_whole


async def _read_queue(
    store: MessageStore, topic: Topic, queue: int
) -> tuple[dict[int, Row], set[int]]:
    """Return a queue's messages by offset, and the offsets that are declared damaged."""
    found: dict[int, Row] = {}
    missing: set[int] = set()
    state = store.reading.queue_state(topic, queue)
    offset = state.min_offset
    while offset < state.max_offset:
        try:
            fetched = await store.reading.read(
                topic, queue, offset, max_messages=50, max_bytes=2**20
            )
        except QueueCorrupt as error:
            following = error.next_offset
            missing.update(range(offset, following))
        except IndexCorrupt:
            # The error reports the damage, and the next start repairs the index.
            following = state.max_offset
            missing.update(range(offset, following))
        else:
            following = fetched.next_offset
            for piece in fetched.slices:
                for row in piece.rows:
                    found[piece.batch.header.base_offset + row] = _row(piece.batch, row)
        if following <= offset:
            raise DamageViolation(f"a read of {topic.name}/{queue} from {offset} goes nowhere")
        offset = following
    return found, missing


def _row(batch: Batch, row: int) -> Row:
    return (
        batch.body(row),
        batch.key(row),
        batch.tag(row),
        batch.properties(row),
        batch.header.store_timestamp_us,
    )


def _examine_offsets(storage: Storage, truth: Truth) -> bool:
    is_whole = True
    for name, offsets in truth.offsets.items():
        try:
            stored = storage.store.offsets.stored_offsets(
                _GROUP, storage.store.table.get(name)
            ).offsets
        except (UnknownTopic, StoreError):
            stored = {}
        if stored != offsets:
            _must_be_degraded(storage, f"stored offsets of {name} are {stored}, not {offsets}")
            is_whole = False
    return is_whole


async def _examine_look_ups(storage: Storage, truth: Truth, *, is_damaged: bool) -> None:
    """Check that look-ups return correct results, and all results if there is no damage."""
    store = storage.store
    for (name, queue), rows in truth.rows.items():
        for offset in range(0, len(rows), 11):
            try:
                await _look_up(store, store.table.get(name), queue, offset, rows, is_damaged)
            except (StoreError, IndexCorrupt):
                if not is_damaged and not storage.degraded:
                    raise


async def _look_up(
    store: MessageStore, topic: Topic, queue: int, offset: int, rows: list[Row], is_damaged: bool
) -> None:
    expected = rows[offset]
    where = f"{topic.name}/{queue} {offset}"
    _, batch, row = await store.lookups.message(format_message_id(topic.topic_id, queue, offset))
    if _row(batch, row) != expected:
        raise DamageViolation(f"message {where} is {_row(batch, row)}, not {expected}")
    first = next(at for at, found in enumerate(rows) if found[4] == expected[4])
    by_time, _ = await store.lookups.offset_by_time(topic, queue, expected[4])
    if by_time != first and not is_damaged:
        raise DamageViolation(f"at the time of {where} there is {by_time}, not {first}")
    if expected[1] is None:
        return
    matches = await store.lookups.search_key(topic, expected[1], 1000)
    for found, at in matches:
        place = found.header.base_offset + at
        if found.header.queue_id == queue and _row(found, at) != rows[place]:
            raise DamageViolation(f"a search found {_row(found, at)} at {place} of {where}")
    if not matches and not is_damaged:
        raise DamageViolation(f"a search for the key of {where} finds nothing")


async def _examine_publishing(storage: Storage, truth: Truth) -> None:
    """Check that a new message gets an offset that was never used, and can be read."""
    for (name, queue), rows in truth.rows.items():
        try:
            topic = storage.store.table.get(name)
            batch = Batch.decode(encode_batch([_NEW], queue_id=queue))
            (published,) = await storage.store.publishing.publish(topic, [batch])
        except (StoreError, LogError) as error:
            _must_be_degraded(storage, f"nothing can be published: {error}")
            continue
        offset = published.base_offset
        if offset < len(rows):
            raise DamageViolation(f"offset {offset} of {name}/{queue} was given again")
        if offset > len(rows):
            _must_be_degraded(storage, f"offsets up to {offset} were passed over")
        fetched = await storage.store.reading.read(
            topic, queue, offset, max_messages=1, max_bytes=1000
        )
        if [piece.batch.body(0) for piece in fetched.slices] != [_NEW]:
            raise DamageViolation(f"what was published at {offset} is not there")


def _must_be_degraded(storage: Storage, what: str) -> None:
    if not storage.degraded:
        raise DamageViolation(f"{what}, and nothing says so")


def judge_files(before: dict[str, bytes], data_dir: Path, truth: Truth) -> None:
    """Raise DamageViolation if a start deleted or changed written bytes; it may rename them."""
    now = [path.read_bytes() for path in (data_dir / "commitlog").glob("*") if path.is_file()]
    for name, content in before.items():
        written = content[: len(truth.log.get(name, content))]
        path = data_dir / "commitlog" / name
        if path.exists() and path.read_bytes()[: len(written)] == written:
            continue
        if not any(kept[: len(written)] == written for kept in now):
            raise DamageViolation(f"{name} was changed or deleted")


def judge_check(data_dir: Path) -> list[str]:
    """Run `holdfast check`; return its findings, or the reason why it cannot run."""
    try:
        return [str(finding) for finding in check_data_dir(data_dir).findings]
    except (LogError, OSError) as error:
        return [str(error)]


def log_files(data_dir: Path) -> dict[str, bytes]:
    """Return the bytes of each segment by file name."""
    directory = data_dir / "commitlog"
    return {
        path.name: path.read_bytes()
        for path in (directory.iterdir() if directory.is_dir() else ())
        if path.is_file() and parse_segment_name(path.name) is not None
    }


def run_examination(data_dir: Path, truth: Truth) -> str:
    """Check the directory, start on it, and judge both; return the outcome of the start."""
    findings = judge_check(data_dir)
    before = log_files(data_dir)
    outcome = asyncio.run(examine(data_dir, truth))
    judge_files(before, data_dir, truth)
    if outcome == "declared" and not findings:
        raise DamageViolation("a start declares damage, `holdfast check` finds none")
    return outcome
