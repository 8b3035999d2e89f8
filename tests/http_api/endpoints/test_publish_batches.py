"""Binary publishes: a batch is stored unchanged, and each error in a batch is named."""

from dataclasses import replace

import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch, encode_batch
from holdfast.commitlog.format.batch_header import ANY_QUEUE, HEADER_SIZE
from holdfast.commitlog.format.checksum import crc32c
from tests.support.servers.api_server import Answer, Api, running_api

PATH = "/v1/topics/orders/messages"
BATCH = "application/vnd.holdfast.batch"

GOOD = encode_batch(
    [b"one", b"", b"three"],
    keys=["k1", None, "k3"],
    tags=[None, "t", None],
    properties=[{"a": "b"}, None, None],
    born_timestamps_us=[1, 2, 3],
    queue_id=1,
)


def with_header(**fields: object) -> bytes:
    """Return the valid batch with some header fields changed and a correct header CRC."""
    header = replace(Batch.decode(GOOD).header, **fields)  # type: ignore[arg-type]
    return bytes(header.encode()) + GOOD[HEADER_SIZE:]


async def send(api: Api, body: bytes, path: str = PATH) -> Answer:
    return await api.ask("POST", path, body, Content_Type=BATCH)


async def test_batches_are_stored_unchanged(api: Api) -> None:
    plain = encode_batch([b"x"] * 5, queue_id=1)
    answer = await send(api, GOOD + plain)
    assert answer.json() == {
        "results": [
            {"queue": 1, "offset": 0, "count": 3, "message_id": f"{1:08X}{1:08X}{0:016X}"},
            {"queue": 1, "offset": 3, "count": 5, "message_id": f"{1:08X}{1:08X}{3:016X}"},
        ],
        "durable": True,
    }
    first, second = api.publishes[-1][1]
    assert bytes(first.block) == GOOD
    assert bytes(second.block) == plain

    read = await api.get("/v1/topics/orders/queues/1/messages?offset=0", Accept=BATCH)
    blocks = read.body
    assert blocks[HEADER_SIZE : len(GOOD)] == GOOD[HEADER_SIZE:]
    assert read.headers["Holdfast-Next-Offset"] == "8"


async def test_batches_without_queue_alternate_between_queues(api: Api) -> None:
    anywhere = encode_batch([b"x"], queue_id=ANY_QUEUE)
    answer = await send(api, anywhere * 3)
    assert [each["queue"] for each in answer.json()["results"]] == [0, 1, 0]


async def test_a_batch_may_name_the_topics_id(api: Api) -> None:
    assert (await send(api, with_header(topic_id=1))).status == 200


async def test_every_truncation_is_refused(api: Api) -> None:
    for length in range(len(GOOD)):
        answer = await send(api, GOOD[:length])
        assert answer.problem == "malformed-batch", length
    assert api.publishes == []


async def test_any_flipped_bit_is_refused(api: Api) -> None:
    for at in range(len(GOOD)):
        damaged = bytearray(GOOD)
        damaged[at] ^= 1 << (at % 8)
        answer = await send(api, bytes(damaged))
        assert answer.problem == "malformed-batch", at
    assert api.publishes == []


@pytest.mark.parametrize(
    ("fields", "reason"),
    [
        ({"physical_offset": 1}, "stamped"),
        ({"durable_offset": 1}, "stamped"),
        ({"base_offset": 1}, "stamped"),
        ({"store_timestamp_us": 1}, "stamped"),
        ({"message_count": 0}, "bad-count"),
        ({"message_count": 2}, "bad-size"),
        ({"message_count": 2**32 - 1}, "bad-size"),
        ({"total_size": len(GOOD) + 8}, "truncated"),
        ({"total_size": len(GOOD) - 8}, "bad-size"),
        ({"total_size": 2**32 - 8}, "truncated"),
        ({"total_size": 3}, "bad-size"),
        ({"payload_crc": 7}, "payload-crc"),
        ({"flags": 1 << 15}, "format-version"),
        ({"flags": 1 << 6}, "format-version"),
        ({"flags": 0}, "bad-size"),
        ({"body_bytes": 7}, "padding"),
        ({"body_bytes": 2**32 - 1}, "bad-size"),
        ({"key_bytes": 3}, "padding"),
        ({"tag_bytes": 2}, "tag-offsets"),
        ({"property_count": 2**31}, "bad-size"),
        ({"property_name_bytes": 0}, "bad-size"),
        ({"property_value_bytes": 2}, "property-value-offsets"),
        ({"born_timestamp_us": -1}, "born-timestamp"),
        ({"producer_id": 1, "sequence": -1}, "sequence"),
        ({"producer_id": 1, "queue_id": ANY_QUEUE}, "queue-not-named"),
        ({"producer_id": 1, "flags": 0b101111}, "request-sequence"),
    ],
)
async def test_the_problem_names_the_wrong_field(
    api: Api, fields: dict[str, object], reason: str
) -> None:
    good_first = encode_batch([b"x"], queue_id=0)
    answer = await send(api, good_first + with_header(**fields))
    problem = answer.json()
    assert (answer.status, answer.problem) == (400, "malformed-batch"), problem
    assert (problem["reason"], problem["batch"]) == (reason, 1)
    assert "encode it again" in problem["detail"]
    assert api.publishes == []


async def test_a_batch_with_envelopes_is_refused(api: Api) -> None:
    batch = as_batch(Rows(0, [b"x"], 1, envelopes=[b"of AMQP"]))
    answer = await send(api, bytes(batch.block))
    assert (answer.problem, answer.json()["reason"]) == ("malformed-batch", "envelopes")
    assert api.publishes == []


async def test_a_newer_format_is_refused(api: Api) -> None:
    newer = bytearray(GOOD)
    newer[4] = 2
    newer[12:16] = bytes(4)
    newer[12:16] = crc32c(bytes(newer[:HEADER_SIZE])).to_bytes(4, "little")
    answer = await send(api, bytes(newer))
    assert answer.json()["reason"] == "format-version"


async def test_an_empty_binary_body_is_refused(api: Api) -> None:
    answer = await send(api, b"")
    assert (answer.problem, answer.json()["reason"]) == ("malformed-batch", "empty")


@pytest.mark.parametrize("path", [PATH, "/v1/topics/fresh/messages"])
async def test_a_batch_for_another_topic_id_is_refused(api: Api, path: str) -> None:
    answer = await send(api, with_header(topic_id=9), path)
    assert (answer.status, answer.problem) == (409, "topic-recreated")
    assert "look the topic up again" in answer.json()["detail"]
    assert [topic.name for topic in api.store.table.all()] == ["orders"]


async def test_a_batch_for_no_queue_of_the_topic_is_refused(api: Api) -> None:
    answer = await send(api, with_header(queue_id=2))
    assert (answer.status, answer.problem) == (404, "unknown-queue")


async def test_the_index_of_a_too_large_message_counts_over_the_request() -> None:
    async with running_api() as api:
        body = encode_batch([b"x", b"y"], queue_id=0) + encode_batch(
            [b"x", b"y"], keys=[None, "k" * 4097], queue_id=0
        )
        answer = await send(api, body)
        problem = answer.json()
        assert (answer.status, problem["limit_name"]) == (413, "max_key_bytes")
        assert problem["index"] == 3
