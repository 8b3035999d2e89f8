"""Large replies are made in portions, and say the same as those made at once."""

import random

import pytest

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_encoding import encode_batch
from holdfast.consumequeue.fetched import BatchSlice
from holdfast.http_api.delivery import portions
from holdfast.http_api.messages import messages_of


def batch(count: int, base: int) -> Batch:
    bodies = [f"{base + row}".encode() for row in range(count)]
    return Batch.decode(encode_batch(bodies, born_timestamp_us=1, queue_id=0), verify_payload=False)


@pytest.mark.parametrize(
    ("sizes", "most", "expected"),
    [
        ([], 5, []),
        ([5], 5, [5]),
        ([6], 5, [5, 1]),
        ([4, 1, 1], 5, [5, 1]),
        ([2, 2, 2], 5, [5, 1]),
        ([12], 5, [5, 5, 2]),
        ([5, 5], 5, [5, 5]),
        ([1, 9], 5, [5, 5]),
    ],
)
def test_a_portion_is_full_but_the_last(sizes: list[int], most: int, expected: list[int]) -> None:
    slices = [BatchSlice(batch(size, 0), range(size)) for size in sizes]
    found = [sum(len(each.rows) for each in portion) for portion in portions(slices, most)]
    assert found == expected


def test_portions_hold_the_same_rows_in_the_same_order() -> None:
    chance = random.Random(3)
    slices = []
    for _ in range(20):
        count = chance.randrange(1, 30)
        made = batch(count, chance.randrange(1000))
        rows = [row for row in range(count) if chance.random() < 0.7]
        slices.append(BatchSlice(made, rows or range(count)))
    whole = messages_of("t", slices)
    for most in (1, 2, 7, 500):
        assert [m for part in portions(slices, most) for m in messages_of("t", part)] == whole
