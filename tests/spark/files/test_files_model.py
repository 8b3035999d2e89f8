"""Plans and rows of the files of random logs, compared with a model of the published messages."""

import asyncio
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import product
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.checksum import crc32c
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE
from holdfast.commitlog.segments.footer import seal_segment
from holdfast.consumequeue.state.journal import encode_changes, encode_snapshot
from holdfast.consumequeue.state.records import (
    StoredOffsets,
    encode_kept,
    encode_offsets,
    encode_topic,
    kept_key,
    offsets_key,
    topic_key,
)
from holdfast.consumequeue.topics import STATE_TOPIC_ID, Topic, TopicConfig
from holdfast.log_files import file_catalog, file_reading, walked_blocks
from holdfast.log_files.segment_file import SegmentFile
from holdfast.log_files.walked_blocks import WalkedBlocks
from holdfast.spark.bound import Bound, bind
from holdfast.spark.errors import DataLost, FilesUnreadable
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.file_rows import FileCatalog
from holdfast.spark.read.plan import plan_partitions
from holdfast.spark.read.reading import open_catalog, read_rows
from tests.spark.files.test_files import planned
from tests.spark.stored import ANY_COLUMNS
from tests.support.storage.batches import Columns
from tests.support.storage.small_log import SmallLog
from tests.support.storage.stored import batch, fill_segment, open_storage, settled, small_config

QUEUES = 2
TOPIC = "orders"
TOPIC_ID = 3
#: Small, so that a log of a few dozen batches has several segments.
SEGMENT_BYTES = 8 * 1024


@pytest.fixture(autouse=True, scope="module")
def short_walks() -> Iterator[None]:
    """Walk few blocks at a time, so that a small log takes several steps."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(walked_blocks, "_AT_ONCE", 3)
        patch.setattr(walked_blocks, "_LARGE_BYTES", 256)
        yield


@dataclass
class Model:
    """A log that the test writes itself, and the rows that a read must return."""

    directory: Path
    durability: str = "written"
    rows: dict[int, list[tuple[Any, ...]]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.log = SmallLog(self.directory / "commitlog", segment_bytes=SEGMENT_BYTES)
        self.log.open()
        config = TopicConfig(self.durability, None, None, 1024)
        topic = Topic(TOPIC, TOPIC_ID, QUEUES, config, 0)
        self.records = {topic_key(TOPIC): encode_topic(topic)}
        self.rows = {queue: [] for queue in range(QUEUES)}

    def publish(self, queue: int, each: Columns) -> None:
        segments = len(self.log.log.segments)
        self.log.append(each.encode(), topic_id=TOPIC_ID, queue_id=queue)
        if len(self.log.log.segments) > segments:
            self.snapshot()
        columns = (each.keys, each.tags, each.properties)
        nothing = [None] * len(each.bodies)
        for body, key, tag, properties in zip(
            each.bodies, *(column or nothing for column in columns), strict=True
        ):
            self.rows[queue].append((body, key, tag, sorted((properties or {}).items())))

    def publish_each(self, queue: int, bodies: Sequence[bytes]) -> None:
        """Publish a batch for each body."""
        for body in bodies:
            self.publish(queue, Columns([body]))

    def snapshot(self) -> None:
        for each in encode_snapshot(self.records):
            self.log.append(bytes(each.block), topic_id=STATE_TOPIC_ID)

    def note(self, key: bytes, value: bytes) -> None:
        self.records[key] = value
        block = bytes(encode_changes({key: value}).block)
        self.log.append(block, topic_id=STATE_TOPIC_ID)

    def seal(self, count: int) -> None:
        for segment in self.log.log.segments[:-1][:count]:
            seal_segment(segment)

    def expected(self, bound: Bound) -> list[tuple[Any, ...]]:
        return [
            (queue, offset, *self.rows[queue][offset])
            for queue, (start, end) in sorted(bound.offsets[TOPIC].items())
            for offset in range(start, end)
        ]


@contextmanager
def model(durability: str = "written") -> Iterator[Model]:
    with tempfile.TemporaryDirectory() as directory:
        log = Model(Path(directory), durability)
        log.snapshot()
        yield log


def read(bound: Bound, parts: Sequence[QueueRange] | None = None) -> list[tuple[Any, ...]]:
    options = parse_options(bound.options)
    found = [
        (*row[:-1], sorted(row[-1]))
        for batch in read_rows(planned(bound) if parts is None else parts, options)
        for row in zip(*(column.to_pylist() for column in batch.columns), strict=True)
    ]
    return sorted(found, key=lambda row: row[:2])


COLUMNS = "queue,offset,body,key,tag,properties"


@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    st.lists(st.tuples(st.integers(0, QUEUES - 1), ANY_COLUMNS), max_size=60),
    st.integers(0, 9),
    st.integers(1, 5000),
    st.integers(1, 6),
    st.sampled_from([0, file_reading.APART_BYTES]),
    st.sampled_from([(0, 1), (file_reading.CUT_BYTES, 500), (file_reading.CUT_BYTES, 1 << 22)]),
    st.sampled_from([0, 2, file_catalog.MAX_ROWS_SENT]),
    st.data(),
)
def test_any_range_of_any_log_gives_its_rows(
    published: list[tuple[int, Columns]],
    sealed: int,
    max_bytes: int,
    parts: int,
    apart_bytes: int,
    cut_bytes: tuple[int, int],
    rows_sent: int,
    data: st.DataObject,
) -> None:
    with model() as log, pytest.MonkeyPatch.context() as patch:
        patch.setattr(file_reading, "APART_BYTES", apart_bytes)
        patch.setattr(file_reading, "CUT_BYTES", cut_bytes[0])
        patch.setattr(file_reading, "_WINDOW_BYTES", cut_bytes[1])
        patch.setattr(file_catalog, "MAX_ROWS_SENT", rows_sent)
        for queue, each in published:
            log.publish(queue, each)
        log.seal(sealed)
        low = {q: data.draw(st.integers(0, len(rows))) for q, rows in log.rows.items()}
        high = {q: data.draw(st.integers(low[q], len(rows))) for q, rows in log.rows.items()}
        bound = bind(
            path=str(log.directory), topic=TOPIC, columns=COLUMNS, minPartitions=parts,
            maxBytesPerPartition=max_bytes, startingOffsets=_json(low), endingOffsets=_json(high),
        )  # fmt: skip
        assert bound.offsets == {TOPIC: {q: (low[q], high[q]) for q in range(QUEUES)}}
        assert read(bound) == log.expected(bound)


@pytest.mark.parametrize("by", [-1, 0, 1])
def test_the_plan_locates_few_blocks_so_that_no_task_walks(
    by: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number for number in range(9)])
        monkeypatch.setattr(file_catalog, "MAX_ROWS_SENT", 9 - by)
        bound = bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS, minPartitions=1)
        parts = planned(bound)
        walks = []

        def walked(*args: Any, **kwargs: Any) -> WalkedBlocks:
            walks.append(args)
            return WalkedBlocks(*args, **kwargs)

        monkeypatch.setattr(file_reading, "WalkedBlocks", walked)
        assert read(bound, parts) == log.expected(bound)
        assert bool(walks) == (by > 0)


def test_no_task_walks_a_segment_that_it_has_read_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 400 for number in range(40)])
        log.seal(9)
        bound = bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS, minPartitions=1)
        parts = planned(bound)
        assert max(len(part.segments) for part in parts) > 2
        monkeypatch.delattr(file_reading, "WalkedBlocks")
        assert read(bound, parts) == log.expected(bound)


def test_a_plan_that_tells_wrong_places_costs_no_message() -> None:
    with model() as log:
        for number in range(9):
            log.publish(number % 2, Columns([b"%d" % number]))
        bound = bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS, minPartitions=2)
        (own, part) = planned(bound)
        (segment,), (others,) = own.segments, part.segments
        row = len(segment.blocks) // 5
        for blocks in (
            others.blocks,
            segment.blocks[row:],
            segment.blocks[:-row],
            segment.blocks[:row] + segment.blocks[2 * row :],
            bytes(len(segment.blocks)),
        ):
            wrong = replace(own, segments=(segment._replace(blocks=blocks),))
            assert read(bound, [wrong, part]) == log.expected(bound)


def _json(offsets: dict[int, int]) -> str:
    return "{" + ", ".join(f'"{queue}": {offset}' for queue, offset in offsets.items()) + "}"


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, QUEUES - 1), ANY_COLUMNS), min_size=1, max_size=25), st.data()
)
def test_a_half_written_end_is_not_bound(
    published: list[tuple[int, Columns]], data: st.DataObject
) -> None:
    """Wherever the last write is cut, only the complete messages before it are visible. Once the
    rest is written, the last message is visible, too."""
    with model() as log:
        for queue, each in published[:-1]:
            log.publish(queue, each)
        with FileCatalog(str(log.directory)) as catalog:
            before = catalog.describe(TOPIC).queues
            assert {q: state.max_offset for q, state in before.items()} == {
                q: len(rows) for q, rows in log.rows.items()
            }
            log.publish(*published[-1])
            last = log.log.headers[-1]
            if last.topic_id != TOPIC_ID:
                return  # the block began a segment, so a snapshot follows it
            segment = log.log.log.segments[-1]
            block = segment.read(last.physical_offset, last.total_size)
            cut = data.draw(st.integers(0, last.total_size - 1), "bytes that are there")
            if not any(block[cut:]):
                return
            segment.file.write(
                [bytes(last.total_size - cut)], last.physical_offset - segment.start_offset + cut
            )
            assert catalog.describe(TOPIC).queues == before
            segment.file.write([block], last.physical_offset - segment.start_offset)
            after = catalog.describe(TOPIC).queues[last.queue_id].max_offset
            assert after == last.end_offset


@pytest.mark.parametrize("durability, expected", [("written", 2), ("fsync", 1)])
def test_without_a_sync_only_proven_offsets_are_bound(
    durability: str, expected: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    def failing(self: SegmentFile) -> None:
        raise OSError(22, "no such thing here")

    with model(durability) as log:
        log.publish(0, Columns([b"one"]))
        log.log.durable_offset = log.log.log.written_offset
        log.publish(0, Columns([b"two"]))
        with FileCatalog(str(log.directory)) as catalog:
            assert catalog.describe(TOPIC).queues[0].max_offset == 2
        monkeypatch.setattr(SegmentFile, "sync", failing)
        with FileCatalog(str(log.directory)) as catalog:
            assert catalog.describe(TOPIC).queues[0].max_offset == expected


def test_durable_damage_is_skipped_and_logged(caplog: pytest.LogCaptureFixture) -> None:
    with model() as log:
        log.publish_each(0, [b"zero", b"one", b"two"])
        log.log.durable_offset = log.log.log.written_offset
        log.publish(0, Columns([b"three"]))
        damaged = next(h for h in log.log.headers if h.topic_id == TOPIC_ID and h.base_offset == 1)
        segment = log.log.log.segments[-1]
        segment.file.write([b"\xff" * 64], damaged.physical_offset - segment.start_offset)
        path = str(log.directory)
        with pytest.raises(DataLost, match="from offset 1 to 2"):
            read(bind(path=path, topic=TOPIC, columns=COLUMNS))
        found = read(bind(path=path, topic=TOPIC, columns=COLUMNS, failOnDataLoss=False))
        assert [row[1] for row in found] == [0, 2, 3]


def test_a_torn_tail_ends_the_log() -> None:
    with model() as log:
        log.publish_each(0, [b"zero", b"one", b"two"])
        torn = next(h for h in log.log.headers if h.topic_id == TOPIC_ID and h.base_offset == 1)
        segment = log.log.log.segments[-1]
        segment.file.write([b"\xff" * 64], torn.physical_offset - segment.start_offset)
        with FileCatalog(str(log.directory)) as catalog:
            assert catalog.describe(TOPIC).queues[0].max_offset == 1


def test_a_block_of_a_newer_format_is_not_damage() -> None:
    with model() as log:
        log.publish(0, Columns([b"one"]))
        header = log.log.headers[-1]
        segment = log.log.log.segments[-1]
        newer = bytearray(header.encode())
        newer[4] = 2
        newer[12:16] = bytes(4)
        newer[12:16] = crc32c(bytes(newer)).to_bytes(4, "little")
        segment.file.write([bytes(newer)], header.physical_offset - segment.start_offset)
        with (
            FileCatalog(str(log.directory)) as catalog,
            pytest.raises(UnknownFormatVersion, match="Nothing was changed"),
        ):
            catalog.describe(TOPIC)


def test_a_file_inside_the_one_before_is_left_out() -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 40 for number in range(40)])
        log.seal(9)
        first, second = sorted((log.directory / "commitlog").iterdir())[:2]
        inside = first.with_name(f"{int(first.name) + SEGMENT_HEADER_SIZE:020d}")
        inside.write_bytes(second.read_bytes())
        bound = bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS)
        assert read(bound) == log.expected(bound)
        assert len(log.rows[0]) == 40


def test_trimmed_queues_begin_at_the_recorded_offset() -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 40 for number in range(40)])
        log.seal(9)
        log.note(kept_key(TOPIC_ID), encode_kept({0: 17}))
        path = str(log.directory)
        bound = bind(path=path, topic=TOPIC, columns=COLUMNS)
        assert bound.offsets[TOPIC][0] == (17, 40)
        assert read(bound) == log.expected(bound)
        with pytest.raises(DataLost, match="trimmed"):
            bind(path=path, topic=TOPIC, startingOffsets='{"0": 16}')
        lenient = bind(path=path, topic=TOPIC, startingOffsets='{"0": 16}', failOnDataLoss=False)
        assert lenient.offsets[TOPIC][0] == (17, 40)


def test_a_deletion_that_is_not_recorded_yet_is_waited_for() -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 40 for number in range(40)])
        held = [h for h in log.log.headers if h.topic_id == TOPIC_ID]
        second = log.log.log.segments[1].start_offset
        kept = min(h.base_offset for h in held if h.physical_offset > second)
        (log.directory / "commitlog" / f"{0:020d}").unlink()
        waited = []

        def noted(pause_s: float) -> None:
            waited.append(pause_s)
            log.note(kept_key(TOPIC_ID), encode_kept({0: kept}))

        with FileCatalog(str(log.directory), sleep=noted) as catalog:
            assert catalog.describe(TOPIC).queues[0] == (kept, 40)
        assert len(waited) == 1


def test_stored_offsets_are_those_of_the_newest_note() -> None:
    with model() as log:
        for version, offset in ((1, 3), (2, 5)):
            stored = StoredOffsets({0: offset}, version)
            log.note(offsets_key("billing", TOPIC_ID), encode_offsets(stored))
        log.publish_each(1, [b"%d" % number * 40 for number in range(40)])
        with FileCatalog(str(log.directory)) as catalog:
            found = catalog.stored_offsets("billing", TOPIC)
            assert found is not None
            assert (found.offsets, found.etag) == ({0: 5}, '"2"')
            assert catalog.stored_offsets("nobody", TOPIC) is None
            stored = StoredOffsets({0: 7}, 3)
            log.note(offsets_key("billing", TOPIC_ID), encode_offsets(stored))
            catalog.describe(TOPIC)
            found = catalog.stored_offsets("billing", TOPIC)
            assert found is not None and found.offsets == {0: 7}


def test_a_log_that_does_not_tell_its_topics_is_refused() -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 40 for number in range(40)])
        # The first file is missing, and the snapshot at the start of the second file is damaged.
        for header in log.log.headers:
            if header.topic_id == STATE_TOPIC_ID:
                segment = log.log.log.segment_at(header.physical_offset)
                assert segment is not None
                at = header.physical_offset + HEADER_SIZE - segment.start_offset
                segment.file.write([b"\xff"], at + 1)
        (log.directory / "commitlog" / f"{0:020d}").unlink()
        with (
            FileCatalog(str(log.directory)) as catalog,
            pytest.raises(FilesUnreadable, match=r"topics, stored offsets\) cannot be read"),
        ):
            catalog.describe(TOPIC)


async def test_the_ends_are_those_of_a_running_storage(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)) as storage:
        topic, _ = await storage.store.topics.create("orders", queues=2)
        with FileCatalog(str(tmp_path)) as catalog:
            for number in range(20):
                await storage.store.publishing.publish(
                    topic, [batch([b"x"] * (number + 1), number % 2)]
                )
                await settled(storage)
                if number % 7 == 6:
                    await fill_segment(storage, topic)
                    await settled(storage)
                found = await asyncio.to_thread(catalog.describe, "orders")
                assert found.queues == {
                    state.queue: (state.min_offset, state.max_offset)
                    for state in storage.store.reading.queue_states(topic)
                }
        assert len(storage.log.segments) > 2


def test_dense_and_large_blocks_are_walked_alike(monkeypatch: pytest.MonkeyPatch) -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number for number in range(20)])
        (segment,) = log.log.log.segments[:1]
        found = []
        for large, at_once, least in product((0, 1 << 30), (1, 3), (128, 136, 300, 65536)):
            monkeypatch.setattr(walked_blocks, "_LARGE_BYTES", large)
            monkeypatch.setattr(walked_blocks, "_AT_ONCE", at_once)
            monkeypatch.setattr(walked_blocks, "_LEAST_BYTES", least)
            file = SegmentFile.open(log.directory / "commitlog", segment.start_offset)
            walked = WalkedBlocks(file)
            walked.advance()
            found.append([rows.tolist() for rows in walked.rows(TOPIC_ID, 0, 0, 99)])
            file.close()
        flat = [[row for rows in each for row in rows] for each in found]
        assert all(each == flat[0] for each in flat)
        assert [row[3] for row in flat[0]] == [
            header.physical_offset
            for header in log.log.headers
            if header.topic_id == TOPIC_ID and header.physical_offset < segment.end_offset
        ]


@pytest.mark.parametrize("apart_bytes", [0, file_reading.APART_BYTES])
@pytest.mark.parametrize("cut_bytes", [0, file_reading.CUT_BYTES])
def test_a_flipped_bit_anywhere_in_a_block_is_noticed(
    apart_bytes: int, cut_bytes: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(file_reading, "APART_BYTES", apart_bytes)
    monkeypatch.setattr(file_reading, "CUT_BYTES", cut_bytes)
    with model() as log:
        log.publish(0, Columns([b"one", b"", b"three"], ["k", None, "k"], ["t", "t", None]))
        with FileCatalog(str(log.directory)) as catalog:
            catalog.describe(TOPIC)
        bound = bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS)
        options = parse_options(bound.options)
        with open_catalog(options) as catalog:
            (parts,) = plan_partitions(catalog, options, bound.topics)
        header, segment = log.log.headers[-1], log.log.log.segments[-1]
        block = segment.read(header.physical_offset, header.total_size)
        for at in range(header.total_size):
            position = header.physical_offset - segment.start_offset + at
            segment.file.write([bytes([block[at] ^ 1])], position)
            with pytest.raises((DataLost, UnknownFormatVersion)):
                list(read_rows(parts, options))
            segment.file.write([block[at : at + 1]], position)
        assert sum(map(len, read_rows(parts, options))) == 3


def test_a_file_that_cannot_be_read_on_is_lost_from_there(monkeypatch: pytest.MonkeyPatch) -> None:
    with model() as log:
        log.publish_each(0, [b"%d" % number * 40 for number in range(40)])
        log.seal(9)
        bounds = [
            bind(path=str(log.directory), topic=TOPIC, columns=COLUMNS, failOnDataLoss=strict)
            for strict in (True, False)
        ]
        options = [parse_options(bound.options) for bound in bounds]
        with open_catalog(options[0]) as catalog:
            plan = plan_partitions(catalog, options[0], bounds[0].topics)
        second = log.log.log.segments[1].start_offset
        original = SegmentFile.read

        def failing(self: SegmentFile, physical_offset: int, size: int) -> bytes:
            if self.start_offset == second:
                raise OSError(5, "Input/output error")
            return original(self, physical_offset, size)

        monkeypatch.setattr(SegmentFile, "read", failing)
        with pytest.raises(DataLost, match="unreadable: Input/output error"):
            list(read_rows([part for task in plan for part in task], options[0]))
        found = read_rows([part for task in plan for part in task], options[1])
        offsets = [row for each in found for row in each["offset"].to_pylist()]
        lost = [
            header.base_offset
            for header in log.log.headers
            if header.topic_id == TOPIC_ID
            and second <= header.physical_offset < log.log.log.segments[2].start_offset
        ]
        assert offsets == sorted({*range(40)} - {*lost})
        assert lost
