"""Large replies are rendered in portions, with the same content as small replies."""

import random

import msgspec
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading.fetched import BatchSlice
from holdfast.http_api.endpoints.rendering import split_portions
from holdfast.http_api.routing.codecs import JSON, MSGPACK, encode_elements, encode_listing
from holdfast.http_api.schemas.message_rows import messages_of


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
    found = [sum(len(each.rows) for each in portion) for portion in split_portions(slices, most)]
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
        assert [m for part in split_portions(slices, most) for m in messages_of("t", part)] == whole


def test_portions_are_bounded_by_bytes_and_hold_one_row_at_least() -> None:
    made = batch(10, 0)
    row_bytes = made.header.total_size // 10
    slices = [BatchSlice(made, range(10))]
    for most, expected in ((1, [1] * 10), (3 * row_bytes, [3, 3, 3, 1]), (10**9, [10])):
        found = [sum(len(each.rows) for each in p) for p in split_portions(slices, 500, most)]
        assert found == expected


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
@pytest.mark.parametrize("media", [JSON, MSGPACK])
def test_a_list_in_portions_is_the_list_at_once(media: str, count: int) -> None:
    values = [{"offset": number} for number in range(count)]
    whole = {"messages": values, "next_offset": 7}
    portion = 40_000
    encoded = [
        encode_elements(media, values[start : start + portion])
        for start in range(0, count, portion)
    ]
    parts = encode_listing(media, {**whole, "messages": []}, "messages", encoded, count)
    decode = msgspec.json.decode if media == JSON else msgspec.msgpack.decode
    assert decode(b"".join(parts)) == whole
