"""The index built by tables compared with the index built block by block by the reput service."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import lmdb
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.append.producer_sequences import ProducerLimits, ProducerSequences
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import BatchHeader
from holdfast.commitlog.format.header_table import NO_HEADERS, Run, run_of
from holdfast.consumequeue.index import rebuild as index_rebuild
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index, ReputPosition
from holdfast.consumequeue.index.rebuild import IndexRebuild
from holdfast.consumequeue.index.reput import ReputService
from holdfast.consumequeue.topics import QueueKey
from tests.support.storage.batches import stamped

SEGMENT_BYTES = 4096
MAP_BYTES = 16 * 1024 * 1024
GONE_TOPIC = 9


def _headers(
    queues: list[tuple[int, int]], *, lag: int = 0, holes: frozenset[int] = frozenset()
) -> list[BatchHeader]:
    """Return the headers of a log, with a batch in each of `queues` in turn.

    Each header records that all blocks are durable except the `lag` blocks before it. The offsets
    of the blocks in `holes` are left out.
    """
    headers: list[BatchHeader] = []
    ends: dict[QueueKey, int] = {}
    at = 0
    for number, key in enumerate(queues):
        raw = encode_batch([b"x"] * (1 + number % 3), keys=["k"] * (1 + number % 3))
        size = len(raw)
        if at % SEGMENT_BYTES + size > SEGMENT_BYTES:
            at += -at % SEGMENT_BYTES
        durable = headers[-1 - lag].end_physical_offset if len(headers) > lag else 0
        header = stamped(
            raw,
            physical_offset=at,
            durable_offset=durable,
            base_offset=ends.get(key, 0),
            topic_id=key[0],
            queue_id=key[1],
            store_timestamp_us=1_000_000 + number,
        ).header
        if number % 4 == 1:  # a batch that two publishes share
            publish = replace(header, producer_id=number % 3 + 1, sequence=number)
            header = replace(header, requests=(publish, replace(publish, producer_id=9)))
        elif number % 4 == 2:
            header = replace(header, producer_id=1, sequence=number)
        at = header.end_physical_offset
        ends[key] = header.end_offset
        if number not in holes:
            headers.append(header)
    return headers


class Indexed:
    """An index with the state that is kept for it."""

    def __init__(self, directory: Path) -> None:
        self.index = Index(directory, MAP_BYTES)
        self.queues: dict[QueueKey, ConsumeQueue] = {}
        self.sequences = ProducerSequences(expiry_us=10**15, limits=ProducerLimits(100))
        self.gaps: list[tuple[QueueKey, int, int]] = []

    def rebuild(self) -> IndexRebuild:
        return IndexRebuild(
            self.index,
            self.queues,
            self.sequences,
            is_known=lambda topic_id: topic_id != GONE_TOPIC,
            segment_start=lambda offset: offset - offset % SEGMENT_BYTES,
            note_gap=lambda *gap: self.gaps.append(gap),
        )

    def reput(self) -> ReputService:
        return ReputService(
            self.index,
            queues=self.queues,
            sequences=self.sequences,
            needs_durable=lambda topic_id: None if topic_id == GONE_TOPIC else True,
            segment_start=lambda offset: offset - offset % SEGMENT_BYTES,
            on_pass=lambda advanced, finished: None,
            on_failure=lambda error: None,
            commit_interval_s=60,
            tail_entries=1,
            eager_tail=False,
            monotonic=lambda: 0.0,
        )

    def entries(self) -> dict[QueueKey, list[object]]:
        return {key: list(self.index.units(key, 0)) for key in self.index.queues()}

    def ends(self) -> dict[QueueKey, tuple[object, ...]]:
        return {
            key: (cq.newest, cq.indexed, cq.max_offset, cq.bytes, cq.pending)
            for key, cq in self.queues.items()
        }


def _runs(headers: list[BatchHeader], size: int) -> Iterator[Run]:
    for at in range(0, len(headers), size):
        runs = [run_of(header) for header in headers[at : at + size]]
        yield Run(
            np.concatenate([run.headers for run in runs]),
            np.concatenate([NO_HEADERS, *(run.publishes for run in runs)]),
        )


QUEUES = st.tuples(st.sampled_from([1, 2, GONE_TOPIC]), st.integers(0, 2))


@given(
    queues=st.lists(QUEUES, max_size=60),
    holes=st.frozensets(st.integers(0, 59), max_size=5),
    group=st.integers(1, 30),
    size=st.integers(1, 20),
    lag=st.integers(0, 10),
    first=st.integers(0, 60),
)
@settings(deadline=None, max_examples=40)
def test_a_rebuild_equals_the_work_of_reput(
    tmp_path_factory: pytest.TempPathFactory,
    queues: list[tuple[int, int]],
    holes: frozenset[int],
    group: int,
    size: int,
    lag: int,
    first: int,
) -> None:
    headers = _headers(queues, lag=lag, holes=holes)
    by_one = Indexed(tmp_path_factory.mktemp("one"))
    reput = by_one.reput()
    for header in headers:
        reput.index_recovered(header)
    reput.committer.commit(2**62)

    # The same in two steps: a rebuild continues an index that a crash interrupted.
    by_table = Indexed(tmp_path_factory.mktemp("table"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(index_rebuild, "_GROUP", group)
        before = by_table.rebuild()
        for run in _runs(headers[:first], size):
            before.add(run)
        before.end()
        position = by_table.index.position().physical_offset
        left = [header for header in headers if header.physical_offset >= position]
        rebuild = by_table.rebuild()
        for run in _runs(left, size):
            rebuild.add(run)
        rebuild.end()
        durable = max((header.durable_offset for header in headers), default=0)
        assert by_table.index.position().physical_offset <= durable
        rest_of_it = by_table.reput()
        for header in rebuild.rest():
            assert header.end_physical_offset > durable
            rest_of_it.index_recovered(header)
        rest_of_it.committer.commit(2**62)
    assert by_table.index.position() == by_one.index.position()
    assert by_table.entries() == by_one.entries()
    assert by_table.ends() == by_one.ends()
    assert by_table.index.producers() == by_one.index.producers()
    assert sorted(by_table.gaps) == sorted(_gaps(headers))
    by_one.index.close()
    by_table.index.close()


def _gaps(headers: list[BatchHeader]) -> Iterator[tuple[QueueKey, int, int]]:
    ends: dict[QueueKey, int] = {}
    for header in headers:
        key = (header.topic_id, header.queue_id)
        if header.base_offset > ends.get(key, 0) and header.topic_id != GONE_TOPIC:
            yield key, ends.get(key, 0), header.base_offset
        ends[key] = header.end_offset


def test_reput_indexes_what_lmdb_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    headers = _headers([(1, 0), (1, 1), (1, 0), (1, 1)])
    indexed = Indexed(tmp_path)
    rebuild = indexed.rebuild()

    def full(*args: object) -> None:
        raise lmdb.DiskError("full")

    monkeypatch.setattr(indexed.index, "commit_table", full)
    for run in _runs(headers, 2):
        rebuild.add(run)
    rebuild.end()
    reput = indexed.reput()
    for header in rebuild.rest():
        reput.index_recovered(header)
    assert indexed.index.position() == ReputPosition()
    assert [cq.max_offset for cq in indexed.queues.values()] == [4, 3]
    assert reput.uncommitted_count == len(headers)
    reput.committer.commit(2**62)
    assert indexed.index.position().physical_offset == headers[-1].end_physical_offset
    indexed.index.close()


def test_blocks_that_are_not_durable_wait_for_twice_as_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(index_rebuild, "_GROUP", 4)
    indexed = Indexed(tmp_path)
    rebuild = indexed.rebuild()
    tries = 0
    commit = rebuild._commit

    def counted() -> None:
        nonlocal tries
        tries += 1
        commit()

    monkeypatch.setattr(rebuild, "_commit", counted)
    for run in _runs(_headers([(1, 0)] * 128, lag=1000), 1):
        rebuild.add(run)
    assert tries == 6  # at 4, 8, 16, 32, 64, 128
    indexed.index.close()
