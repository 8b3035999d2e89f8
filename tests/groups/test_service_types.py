"""Deliveries by batch: in any order of deliveries, each batch appears once with ascending rows."""

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.topics import Topic, TopicConfig
from holdfast.groups.service_types import Delivery, batch_parts

TOPIC = Topic("t", 1, 1, TopicConfig("fsync", None, None, 1 << 20), 0)


def batch(*sizes: int) -> Batch:
    return Batch.decode(
        encode_batch([b"x" * each for each in sizes], born_timestamp_us=1, queue_id=0)
    )


def delivery(of: Batch, row: int) -> Delivery:
    return Delivery(TOPIC, 0, row, of, row, None, 1, False)


def test_nothing_has_no_parts() -> None:
    assert batch_parts([]) == []


def test_batches_that_take_turns_are_parted() -> None:
    one, other = batch(1, 2, 4, 8), batch(16, 32, 64, 128)
    deliveries = [delivery(*each) for each in ((one, 1), (other, 0), (one, 2), (other, 3))]
    first, second = batch_parts(deliveries)
    assert (first.rows, first.places) == (range(1, 3), [0, 2])
    assert (second.rows, second.places) == ([0, 3], [1, 3])
    assert [part.body_bytes() for part in (first, second)] == [2 + 4, 16 + 128]
    assert second.deliveries == [deliveries[1], deliveries[3]]


def test_rows_ascend_whatever_the_order_of_the_deliveries() -> None:
    one = batch(1, 2, 4, 8)
    deliveries = [delivery(one, row) for row in (3, 1, 2)]
    (part,) = batch_parts(deliveries)
    assert (part.rows, part.places) == (range(1, 4), [1, 2, 0])
    assert [each.row for each in part.deliveries] == [1, 2, 3]
    assert part.body_bytes() == 2 + 4 + 8
