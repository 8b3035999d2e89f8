"""Attempts at a partition in any order, interrupted anywhere: each row is stored once, in order."""

import random
from collections.abc import Iterator

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.append.producer_sequences import ProducerLimits, ProducerSequences
from holdfast.commitlog.errors import ProducerFenced, SequenceGap, SequenceTooOld
from holdfast.commitlog.format.batch import Batch, iter_batches
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.spark.broker.client import PublishedBatch, PullOutcome
from holdfast.spark.errors import BrokerRefused, ReplayDiffers
from holdfast.spark.write.outgoing import BatchEncoder, OutgoingBatch
from holdfast.spark.write.partitioner import TargetTopic
from holdfast.spark.write.producer_identity import Producer, WriterRun
from holdfast.spark.write.publisher import Publisher
from holdfast.spark.write.windows import cut_windows
from tests.support.storage.batches import stamped

TARGET = TargetTopic("orders", 1, 3, 1)
_PROBLEMS = {
    SequenceGap: "sequence-gap",
    SequenceTooOld: "sequence-too-old",
    ProducerFenced: "producer-fenced",
}


class FakeStore:
    """Queues of batches, and the log's record of the producers' sequences."""

    def __init__(self, *, readable: bool = True) -> None:
        self.queues: dict[int, list[Batch]] = {}
        self.sequences = ProducerSequences(expiry_us=10**15, limits=ProducerLimits(1000))
        self.readable = readable

    def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
        sent = list(iter_batches(batches))
        try:
            known = [
                self.sequences.find(batch.header, batch.header.topic_id, batch.queue_id, 1)
                for batch in sent
            ]
        except (SequenceGap, SequenceTooOld, ProducerFenced) as error:
            kind = f"/problems/{_PROBLEMS[type(error)]}"
            raise BrokerRefused(409, {"type": kind, "detail": str(error)}) from error
        return [
            PublishedBatch(batch.queue_id, before.base_offset, before.message_count, True)
            if before
            else self.store(batch)
            for batch, before in zip(sent, known, strict=True)
        ]

    def store(self, batch: Batch) -> PublishedBatch:
        held = self.queues.setdefault(batch.queue_id, [])
        offset = held[-1].header.end_offset if held else 0
        placed = stamped(
            bytes(batch.block),
            physical_offset=0,
            base_offset=offset,
            topic_id=batch.header.topic_id,
            queue_id=batch.queue_id,
        )
        self.sequences.record(placed.header)
        held.append(placed)
        return PublishedBatch(batch.queue_id, offset, len(batch), False)

    def pull(
        self, topic: str, topic_id: int, queue: int, offset: int, *, max_bytes: int
    ) -> PullOutcome[Buffer]:
        if not self.readable:
            raise BrokerRefused(403, {"type": "/problems/forbidden"})
        (block,) = [b.block for b in self.queues[queue] if b.header.base_offset == offset]
        return PullOutcome(bytes(block), offset)

    def bodies(self) -> dict[int, list[bytes]]:
        return {
            queue: [batch.body(row) for batch in held for row in range(len(batch))]
            for queue, held in self.queues.items()
        }


def rows(numbers: list[int]) -> pa.RecordBatch:
    bodies = pa.array([b"%d" % number for number in numbers], pa.binary())
    keys = pa.array([f"k{number % 7}" for number in numbers], pa.string())
    return pa.RecordBatch.from_arrays([bodies, keys], names=["body", "key"])


def requests(
    batch: pa.RecordBatch, *, max_rows: int, epoch: int = 0
) -> Iterator[list[OutgoingBatch]]:
    """Yield the requests of an attempt at these rows, window by window."""
    encoder = BatchEncoder(Producer(WriterRun("job", epoch), 5))
    for window in cut_windows([batch], max_rows=max_rows, max_bytes=1 << 20, digest=encoder.digest):
        yield list(encoder.encode(window, TARGET))


def begin(store: FakeStore) -> Publisher:
    return Publisher(store, Producer(WriterRun("job", 0), 5), "fsync")


def attempt(store: FakeStore, batch: pa.RecordBatch, *, max_rows: int, epoch: int = 0) -> Publisher:
    publisher = Publisher(store, Producer(WriterRun("job", epoch), 5), "fsync")
    for request in requests(batch, max_rows=max_rows, epoch=epoch):
        publisher.send(request)
    publisher.finish()
    return publisher


def alone(batch: pa.RecordBatch, *, max_rows: int) -> dict[int, list[bytes]]:
    store = FakeStore()
    attempt(store, batch, max_rows=max_rows)
    return store.bodies()


@settings(deadline=None)
@given(
    st.integers(1, 60),
    st.integers(1, 8),
    st.booleans(),
    st.lists(st.tuples(st.integers(0, 3), st.booleans()), max_size=60),
)
def test_attempts_that_alternate_store_each_row_once(
    count: int, max_rows: int, readable: bool, steps: list[tuple[int, bool]]
) -> None:
    """Four attempts send their requests alternately. An attempt may die after or before its request
    is stored, and is started again."""
    store = FakeStore(readable=readable)
    batch = rows(list(range(count)))
    begun = [(begin(store), requests(batch, max_rows=max_rows)) for _ in range(4)]
    for which, dies in steps:
        publisher, sends = begun[which]
        if (request := next(sends, None)) is not None:
            publisher.send(request)
        if dies:
            begun[which] = (begin(store), requests(batch, max_rows=max_rows))
    attempt(store, batch, max_rows=max_rows)
    assert store.bodies() == alone(batch, max_rows=max_rows)


@pytest.mark.parametrize("stored", [1, 4, 5, 6, 20])
def test_a_request_stored_in_part_is_completed(stored: int) -> None:
    """After a crash in the middle of a write, some queues of a request lack their batch."""
    batch = rows(list(range(80)))
    store = FakeStore()
    publisher = begin(store)
    sends = requests(batch, max_rows=4)
    for _ in range(stored - 1):
        publisher.send(next(sends))
    publisher.send(next(sends)[:1])
    attempt(store, batch, max_rows=4)
    assert store.bodies() == alone(batch, max_rows=4)


def test_batches_that_are_too_old_count_as_stored() -> None:
    store, batch = FakeStore(), rows(list(range(200)))
    attempt(store, batch, max_rows=3)
    counts = attempt(store, batch, max_rows=3).counts
    assert counts.duplicates == counts.batches > 3 * 5
    assert counts.rows == 200
    assert store.bodies() == alone(batch, max_rows=3)


def other_rows() -> dict[str, list[int]]:
    numbers = list(range(200))
    shuffled = numbers[:]
    random.Random(3).shuffle(shuffled)
    return {
        "in another order": shuffled,
        "one swapped near the end": [*numbers[:-2], 199, 198],
        "one left out": numbers[1:],
        "one more at the beginning": [1000, *numbers],
        "so few that all of them are too old": [7] * 40,
    }


@pytest.mark.parametrize("kind", other_rows())
def test_other_rows_of_the_same_producer_never_count_as_stored(kind: str) -> None:
    store, batch = FakeStore(), rows(list(range(200)))
    attempt(store, batch, max_rows=3)
    before = store.bodies()
    with pytest.raises(ReplayDiffers, match="sortBy"):
        attempt(store, rows(other_rows()[kind]), max_rows=3)
    assert store.bodies() == before


def test_the_beginning_of_the_same_rows_is_found_stored() -> None:
    store, batch = FakeStore(), rows(list(range(200)))
    attempt(store, batch, max_rows=3)
    counts = attempt(store, batch.slice(0, 198), max_rows=3).counts
    assert counts.duplicates == counts.batches
    assert store.bodies() == alone(batch, max_rows=3)


def test_without_the_right_to_read_numbers_of_rows_are_compared() -> None:
    store = FakeStore(readable=False)
    attempt(store, rows(list(range(20))), max_rows=6)
    with pytest.raises(ReplayDiffers, match=r"cannot be compared: .*403"):
        attempt(store, rows([7] * 20), max_rows=6)


def test_without_identity_everything_is_stored_again() -> None:
    store = FakeStore()
    for _ in range(2):
        encoder = BatchEncoder(Producer(None, 5))
        publisher = Publisher(store, Producer(None, 5), "fsync")
        for window in cut_windows([rows(list(range(10)))], max_rows=3, max_bytes=1 << 20):
            publisher.send(encoder.encode(window, TARGET))
        publisher.finish()
    assert sum(map(len, store.bodies().values())) == 20


def test_rows_that_changed_places_with_later_ones_are_found_out_long_after() -> None:
    """The broker remembers only the last five batches. Without this check, exchanging an early row
    with a late row would lose one of them and store the other twice."""
    numbers = list(range(10_000, 14_000))
    store = FakeStore()
    publisher = begin(store)
    sends = requests(rows(numbers), max_rows=100)
    for _ in range(20):
        publisher.send(next(sends))
    numbers[0], numbers[3500] = numbers[3500], numbers[0]  # both of one key
    before = store.bodies()
    with pytest.raises(ReplayDiffers):
        attempt(store, rows(numbers), max_rows=100)
    assert store.bodies() == before


def test_a_request_keeps_the_brokers_limits(monkeypatch: pytest.MonkeyPatch) -> None:
    class Counting(FakeStore):
        sizes: tuple[int, ...] = ()

        def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
            self.sizes += (len(batches),)
            return super().publish(topic, batches, durability=durability)

    batch = rows(list(range(9)))
    one, two, three = (each.header.total_size for each in next(requests(batch, max_rows=9)))
    for limit, expected in (
        (one + two - 1, (one, two + three) if two + three < one + two else (one, two, three)),
        (one + two, (one + two, three)),
        (one + two + three - 1, (one + two, three)),
        (one + two + three, (one + two + three,)),
    ):
        monkeypatch.setattr("holdfast.spark.write.publisher.MAX_REQUEST_BYTES", limit)
        store = Counting()
        attempt(store, batch, max_rows=9)
        assert store.sizes == expected
