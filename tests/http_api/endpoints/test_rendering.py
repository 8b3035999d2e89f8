"""The text of a reply is rendered in small steps, with the same result as in one step."""

import asyncio
import json
import random
from base64 import b64decode
from collections.abc import Sequence
from types import SimpleNamespace
from typing import Any

import msgpack
import msgspec
import pytest
from msgspec import UNSET

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.reading.fetched import BatchSlice, message_sizes, row_sizes
from holdfast.groups.service_types import Delivery
from holdfast.http_api.endpoints.leases import leased_messages
from holdfast.http_api.endpoints.rendering import (
    JSON_GROWTH,
    MAX_BYTES_WITHOUT_SLOT,
    PORTION_BYTES,
    YIELD_EVERY_BYTES,
    encode_portions,
    fits_one_call,
    make_leased_messages,
    make_messages,
    split_portions,
)
from holdfast.http_api.routing.codecs import JSON, MSGPACK, NDJSON, encode_elements, encode_listing
from tests.support.servers.api_server import Api

BODIES = {
    "control characters": b"\x00\x01\x1f" * 300_000,
    "quotes": b'"\\' * 300_000,
    "wide characters": "é😀".encode() * 200_000,
    "no text": b"\xff\x00" * 300_000,
    "as long as a piece": b"x" * PORTION_BYTES,
    "a byte longer": b"x" * (PORTION_BYTES + 1),
    "empty": b"",
}


def batch(*bodies: bytes, **columns: Any) -> Batch:
    block = encode_batch(list(bodies), born_timestamp_us=1, queue_id=0, **columns)
    return Batch.decode(block, verify_payload=False)


async def made(media: str, slices: Sequence[BatchSlice], *, has_slot: bool = True) -> Any:
    """Return the parts of a reply."""
    some = split_portions(slices, 500, PORTION_BYTES)
    messages = (make_messages(media, "t", each) for each in some)
    return await encode_portions(media, messages, has_slot=has_slot)


def body_of(message: dict[str, Any]) -> bytes:
    found: bytes | str | None = message.get("body")
    if found is None:
        return b64decode(message["body_base64"])
    return found if isinstance(found, bytes) else found.encode()


@pytest.mark.parametrize("media", [JSON, NDJSON, MSGPACK])
@pytest.mark.parametrize("name", BODIES)
async def test_the_pieces_of_a_long_message_are_equal_to_the_whole(name: str, media: str) -> None:
    bodies = [b"before", BODIES[name], b"behind"]
    held = batch(*bodies, properties=[{"body": ""}] * 3)
    parts = await made(media, [BatchSlice(held, range(3))])
    text = b"".join(parts)
    if media == JSON:
        found = json.loads(b"[" + text + b"]")
    elif media == NDJSON:
        found = [json.loads(line) for line in text.splitlines()]
    else:
        found = msgpack.unpackb(b"\x93" + text)
    assert [body_of(each) for each in found] == bodies
    assert [each["offset"] for each in found] == [0, 1, 2]
    assert [each["properties"] for each in found] == [{"body": ""}] * 3


@pytest.mark.parametrize("media", [JSON, NDJSON])
@pytest.mark.parametrize("name", BODIES)
async def test_no_part_is_longer_than_the_limit(name: str, media: str) -> None:
    body = BODIES[name]
    small = batch(*[body[:1000]] * 2000)
    for slices in (
        [BatchSlice(batch(body), range(1))],
        [BatchSlice(batch(b"x", body, *[b"y"] * 1000, body), range(1003))],
        [BatchSlice(small, range(2000))],
    ):
        parts = await made(media, slices)
        overhead = 500 * 300  # the text of a message without its body
        assert max(map(len, parts)) <= YIELD_EVERY_BYTES + overhead


async def test_one_part_is_encoded_per_loop_iteration() -> None:
    slices = [BatchSlice(batch(b"\x00" * 1_000_000, b"x"), range(2))]
    turns = 0
    is_done = False

    async def count() -> None:
        nonlocal turns
        while not is_done:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    parts = await made(JSON, slices)
    is_done = True
    await counting
    assert len(parts) > 6
    assert turns >= len(parts)


@pytest.mark.parametrize(("more", "is_made"), [(-1, True), (0, True), (1, False)])
async def test_without_a_slot_a_large_reply_is_not_encoded(more: int, is_made: bool) -> None:
    one = batch(b"x" * 1000)
    (encoded,) = await made(JSON, [BatchSlice(one, range(1))])
    other_bytes = len(encoded) - 1000
    size = MAX_BYTES_WITHOUT_SLOT - other_bytes + more
    slices = [BatchSlice(batch(b"x" * size), range(1))]
    parts = await made(JSON, slices, has_slot=False)
    assert (parts is not None) == is_made
    if is_made:
        assert sum(map(len, parts)) == MAX_BYTES_WITHOUT_SLOT + more


@pytest.mark.parametrize(
    ("media", "count", "size", "expected"),
    [
        (JSON, 500, YIELD_EVERY_BYTES // JSON_GROWTH, True),
        (JSON, 501, 1, False),
        (JSON, 1, YIELD_EVERY_BYTES // JSON_GROWTH + 1, False),
        (NDJSON, 1, YIELD_EVERY_BYTES // JSON_GROWTH + 1, False),
        (MSGPACK, 1, YIELD_EVERY_BYTES, True),
        (MSGPACK, 1, YIELD_EVERY_BYTES + 1, False),
    ],
)
def test_small_replies_fit_one_call(media: str, count: int, size: int, expected: bool) -> None:
    assert fits_one_call(media, count, size) == expected


def test_a_large_row_is_its_own_portion() -> None:
    held = batch(*[b"x"] * 10, b"y" * 100_000, *[b"z"] * 10)
    found = [
        [row for each in portion for row in each.rows]
        for portion in split_portions([BatchSlice(held, range(21))], 500, 50_000)
    ]
    assert found == [list(range(10)), [10], list(range(11, 21))]


@pytest.mark.parametrize("rows", [range(3), range(1, 3), [0, 2], []])
def test_rows_have_the_sizes_of_their_texts(rows: range | list[int]) -> None:
    held = batch(
        b"a", b"bb", b"", keys=["k", None, "kkk"], tags=["t", None, None],
        properties=[{"a": "1"}, {}, {"bb": "22", "c": ""}],
    )  # fmt: skip
    whole = message_sizes(held).tolist()
    assert row_sizes(held, rows).tolist() == [whole[row] for row in rows]


@pytest.mark.parametrize("accept", [JSON, MSGPACK])
async def test_every_request_for_a_large_message_waits_for_a_slot(api: Api, accept: str) -> None:
    """A thousand such replies in progress would fill the memory."""
    topic = api.store.table.get("orders")
    size = (
        4 * MAX_BYTES_WITHOUT_SLOT
        if accept == MSGPACK
        else MAX_BYTES_WITHOUT_SLOT // JSON_GROWTH + 1
    )
    await api.store.publishing.publish(topic, [batch(b"\x00" * size, keys=["k"])])
    offset = "/v1/topics/orders/queues/0/messages?offset=0"
    headers = {"Accept": accept}
    whole = (await api.get(f"{offset}&max_messages=501", **headers)).body
    message_id = json.loads((await api.get(offset)).body)["messages"][0]["message_id"]
    turns = api.context.large_replies
    count = turns._value
    for _ in range(count):
        await turns.acquire()
    paths = [offset, "/v1/topics/orders/messages?offsets=0:0", f"/v1/messages/{message_id}"]
    asking = [asyncio.create_task(api.get(path, **headers)) for path in paths]
    async with asyncio.timeout(20):
        while len(turns._waiters or ()) < len(paths):
            await asyncio.sleep(0)
    assert not any(each.done() for each in asking)
    for _ in range(count):
        turns.release()
    answers = await asyncio.gather(*asking)
    assert [each.status for each in answers] == [200] * len(paths)
    assert answers[0].body == whole
    decode: Any = msgpack.unpackb if accept == MSGPACK else json.loads
    first = decode(whole)["messages"][0]
    assert decode(answers[1].body)["messages"] == [first]
    assert decode(answers[2].body) == first
    assert turns._value == count


# -- portions ------------------------------------------------------------------------------


def numbered(count: int, base: int) -> Batch:
    return batch(*(b"%d" % (base + row) for row in range(count)))


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
def test_every_portion_except_the_last_is_full(
    sizes: list[int], most: int, expected: list[int]
) -> None:
    slices = [BatchSlice(numbered(size, 0), range(size)) for size in sizes]
    found = [sum(len(each.rows) for each in portion) for portion in split_portions(slices, most)]
    assert found == expected


def test_portions_hold_the_same_rows_in_the_same_order() -> None:
    chance = random.Random(3)
    slices = []
    for _ in range(20):
        count = chance.randrange(1, 30)
        made = numbered(count, chance.randrange(1000))
        rows = [row for row in range(count) if chance.random() < 0.7]
        slices.append(BatchSlice(made, rows or range(count)))
    whole = make_messages(JSON, "t", slices)
    for most in (1, 2, 7, 500):
        assert [
            m for part in split_portions(slices, most) for m in make_messages(JSON, "t", part)
        ] == whole


def test_portions_are_limited_by_bytes_and_have_at_least_one_row() -> None:
    made = numbered(10, 0)
    row_bytes = made.header.total_size // 10
    slices = [BatchSlice(made, range(10))]
    for most, expected in ((1, [1] * 10), (3 * row_bytes, [3, 3, 3, 1]), (10**9, [10])):
        found = [sum(len(each.rows) for each in p) for p in split_portions(slices, 500, most)]
        assert found == expected


@pytest.mark.parametrize("count", [0, 1, 15, 16, 70_000])
@pytest.mark.parametrize("media", [JSON, MSGPACK])
def test_a_list_encoded_in_portions_is_complete(media: str, count: int) -> None:
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


@pytest.mark.parametrize("media", [JSON, MSGPACK])
@pytest.mark.parametrize("bodies", [(b"text", b"other"), (b"\xff", b"text"), (b"",), (b"\xff",)])
@pytest.mark.parametrize("columns", [{}, {"keys": ["k", None]}, {"tags": ["a", "b"]}])
def test_a_leased_message_alone_is_made_as_among_others(
    media: str, bodies: tuple[bytes, ...], columns: dict[str, list[str | None]]
) -> None:
    rows = range(len(bodies))
    of = batch(*bodies, **{name: texts[: len(bodies)] for name, texts in columns.items()})
    lease = [f"r{row}" for row in rows], [row + 1 for row in rows], [row == 1 for row in rows]
    made = make_leased_messages(media, "t", BatchSlice(of, rows), *lease, [UNSET for _ in rows])
    topic: Any = SimpleNamespace(name="t")
    alone = [
        leased_messages([Delivery(topic, 0, row, of, row, *each)], media)
        for row, each in zip(rows, zip(*lease, strict=True), strict=True)
    ]
    assert alone == [[each] for each in made]
