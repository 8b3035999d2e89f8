import asyncio
from datetime import UTC, datetime
from urllib.parse import quote

import msgspec
import pytest

from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_encoding import encode_batch
from tests.support.servers.api_server import Answer, Api, running_api

POLL = "/v1/topics/orders/messages"
BATCH = "application/vnd.holdfast.batch"


async def publish(api: Api, queue: int, *bodies: str, **fields: object) -> None:
    await api.publish("orders", *({"body": body, "queue": queue, **fields} for body in bodies))


def found(answer: Answer) -> list[tuple[int, str]]:
    assert answer.status == 200, answer.body
    return [(each["queue"], each["body"]) for each in answer.json()["messages"]]


def queues(answer: Answer) -> list[tuple[int, ...]]:
    return [
        tuple(each[name] for name in ("queue", "next_offset", "min_offset", "max_offset"))
        for each in answer.json()["queues"]
    ]


async def test_several_queues_are_read_at_once(api: Api) -> None:
    await publish(api, 0, "a", "b")
    await publish(api, 1, "c")
    answer = await api.get(f"{POLL}?offsets=1:0,0:1")
    assert found(answer) == [(1, "c"), (0, "b")]
    assert queues(answer) == [(1, 1, 0, 1), (0, 2, 0, 2)]
    assert set(answer.json()) == {"messages", "queues"}


async def test_a_poll_ends_empty_at_its_deadline(api: Api) -> None:
    await publish(api, 0, "red", tag="red")
    answer = await api.get(f"{POLL}?offsets=0:0,1:0&wait_ms=30&tag=blue")
    assert found(answer) == []
    assert queues(answer) == [(0, 1, 0, 1), (1, 0, 0, 0)]


async def test_the_queues_of_a_poll_share_its_limits(api: Api) -> None:
    await publish(api, 0, *(f"a{i}" for i in range(10)))
    await publish(api, 1, *(f"b{i}" for i in range(10)))
    answer = await api.get(f"{POLL}?offsets=0:0,1:0&max_messages=4")
    assert found(answer) == [(0, "a0"), (0, "a1"), (1, "b0"), (1, "b1")]


@pytest.mark.parametrize("bound", ["max_messages=1", "max_bytes=50"])
async def test_full_queues_take_turns_when_not_all_can_deliver(api: Api, bound: str) -> None:
    await publish(api, 0, *("a" * 100 for _ in range(4)))
    await publish(api, 1, *("b" * 100 for _ in range(4)))
    offsets, delivered = {0: 0, 1: 0}, []
    for _ in range(4):
        places = ",".join(f"{queue}:{offset}" for queue, offset in offsets.items())
        answer = await api.get(f"{POLL}?offsets={places}&{bound}")
        delivered += [queue for queue, _ in found(answer)]
        offsets = {queue: next_offset for queue, next_offset, _, _ in queues(answer)}
        assert list(offsets) == [0, 1]
    assert delivered == [0, 1, 0, 1]


async def test_one_message_is_delivered_above_the_byte_limit(api: Api) -> None:
    await publish(api, 0, "x" * 100)
    await publish(api, 1, "y" * 100)
    answer = await api.get(f"{POLL}?offsets=0:0,1:0&max_bytes=1")
    assert found(answer) == [(0, "x" * 100)]
    assert queues(answer) == [(0, 1, 0, 1), (1, 0, 0, 1)]


@pytest.mark.parametrize(
    ("offset", "slug", "status"), [(0, "offset-trimmed", 410), (3, "offset-beyond-end", 416)]
)
async def test_a_queue_that_cannot_be_read_has_a_problem_and_others_are_read(
    api: Api, offset: int, slug: str, status: int
) -> None:
    await publish(api, 0, "gone", "kept")
    api.trim(0, 1)
    await publish(api, 1, "fine")
    answer = await api.get(f"{POLL}?offsets=0:{offset},1:0&wait_ms=60000")
    assert found(answer) == [(1, "fine")]
    first, second = answer.json()["queues"]
    assert (first["queue"], first["next_offset"], first["min_offset"]) == (0, offset, 1)
    assert first["problem"]["type"] == f"/problems/{slug}"
    assert first["problem"]["status"] == status
    assert "problem" not in second


async def test_a_problem_ends_the_wait_although_nothing_was_found(api: Api) -> None:
    answer = await api.get(f"{POLL}?offsets=0:5,1:0&wait_ms=60000")
    assert answer.json()["queues"][0]["problem"]["type"] == "/problems/offset-beyond-end"
    assert api.hold.stats().held_max == 0


async def test_without_envelope_headers_have_the_offsets(api: Api) -> None:
    await api.ask("POST", POLL, encode_batch([b"a", b"b"], queue_id=0), Content_Type=BATCH)
    await api.ask("POST", POLL, encode_batch([b"c"], queue_id=1), Content_Type=BATCH)
    answer = await api.get(f"{POLL}?offsets=0:1,1:0", Accept=BATCH)
    assert [b.header.queue_id for b in iter_batches(answer.body)] == [0, 1]
    assert answer.headers["Holdfast-Next-Offset"] == "0:2,1:1"
    assert answer.headers["Holdfast-Max-Offset"] == "0:2,1:1"
    as_json = await api.get(f"{POLL}?offsets=0:1,1:0")
    assert as_json.headers["Holdfast-Next-Offset"] == "0:2,1:1"
    lines = await api.get(f"{POLL}?offsets=0:1,1:0", Accept="application/x-ndjson")
    assert [msgspec.json.decode(line)["body"] for line in lines.body.splitlines()] == ["b", "c"]


async def test_without_envelope_a_queues_problem_is_the_reply(api: Api) -> None:
    answer = await api.get(f"{POLL}?offsets=0:0,1:5", Accept=BATCH)
    assert (answer.status, answer.problem) == (416, "offset-beyond-end")
    assert answer.json()["queue"] == 1


@pytest.mark.parametrize("accept", ["application/json", "application/msgpack", BATCH])
async def test_a_poll_skips_damage_in_one_queue_if_asked(api: Api, accept: str) -> None:
    await publish(api, 0, "a", "b")
    await publish(api, 1, "c")
    await publish(api, 1, "d")
    api.damage(1, 0)
    polled = await api.get(f"{POLL}?offsets=0:0,1:0&skip_corrupt=true", Accept=accept)
    assert polled.status == 200
    assert polled.headers["Holdfast-Skipped"] == "1:0:1"
    assert polled.headers["Holdfast-Next-Offset"] == "0:2,1:2"
    if accept == "application/json":
        assert found(polled) == [(0, "a"), (0, "b"), (1, "d")]
        lost = {"queue": 1, "start_offset": 0, "end_offset": 1, "reason": "payload-crc"}
        assert polled.json()["skipped"] == [lost]
        answer = await api.get(f"{POLL}?offsets=0:0,1:0")
        assert answer.json()["queues"][1]["problem"]["next_offset"] == 1
        assert found(answer) == [(0, "a"), (0, "b")]


async def test_without_envelope_a_poll_may_name_fewer_queues(api: Api) -> None:
    await api.store.topics.create("wide", queues=200)
    offsets = ",".join(f"{queue}:0" for queue in range(129))
    answer = await api.get(f"/v1/topics/wide/messages?offsets={offsets}", Accept=BATCH)
    assert (answer.problem, answer.json()["limit"]) == ("limit-exceeded", 128)
    assert (await api.get(f"/v1/topics/wide/messages?offsets={offsets}")).status == 200


async def test_a_thousand_queues_fit_one_poll(api: Api) -> None:
    await api.store.topics.create("wide", queues=1024)
    offsets = ",".join(f"{queue}:0" for queue in range(1024))
    waiting = asyncio.create_task(
        api.get(f"/v1/topics/wide/messages?offsets={offsets}&wait_ms=60000")
    )
    await api.held(1)
    await api.publish("wide", {"body": "x", "queue": 777})
    answer = await waiting
    assert found(answer) == [(777, "x")]
    ends = [0] * 777 + [1] + [0] * 246
    assert queues(answer) == [(queue, end, 0, end) for queue, end in enumerate(ends)]


# -- H3: a whole topic without queue numbers ---------------------------------------------------


async def test_a_poll_reads_a_topic_from_its_beginning_and_continues(api: Api) -> None:
    for number in range(4):
        await api.publish("orders", {"body": str(number), "queue": number % 2})
    reply = (await api.get(f"{POLL}?from=earliest")).json()
    assert sorted(each["body"] for each in reply["messages"]) == ["0", "1", "2", "3"]
    assert [each["queue"] for each in reply["queues"]] == [0, 1]
    await api.publish("orders", {"body": "4", "queue": 1})
    offsets = ",".join(f"{each['queue']}:{each['next_offset']}" for each in reply["queues"])
    reply = (await api.get(f"{POLL}?offsets={offsets}")).json()
    assert [each["body"] for each in reply["messages"]] == ["4"]


async def test_a_poll_waits_at_the_end_of_a_topic(api: Api) -> None:
    await api.publish("orders", {"body": "old", "queue": 0})
    waiting = await api.held_pull(f"{POLL}?from=latest&wait_ms=60000")
    await api.publish("orders", {"body": "new", "queue": 1})
    assert [each["body"] for each in (await waiting).json()["messages"]] == ["new"]


async def test_a_poll_begins_at_a_time(api: Api) -> None:
    for number in range(4):
        await api.publish("orders", {"body": str(number), "queue": number % 2})
    topic = api.store.table.get("orders")
    fetched = await api.store.reading.read(topic, 0, 1, max_messages=1, max_bytes=1 << 20)
    stored_us = fetched.slices[0].batch.header.store_timestamp_us
    exact = datetime.fromtimestamp(stored_us // 1000 / 1000, UTC)
    for time in (str(stored_us // 1000), quote(exact.isoformat()), exact.isoformat()):
        answer = await api.get(f"{POLL}?timestamp_ms={time}")
        found = {each["body"] for each in answer.json()["messages"]}
        assert {"2", "3"} <= found
    answer = await api.get(f"{POLL}?timestamp_ms=9999-12-31T00:00:00Z")
    assert answer.json()["messages"] == []
    assert [each["next_offset"] for each in answer.json()["queues"]] == [2, 2]


@pytest.mark.parametrize(
    ("query", "problem", "mend"),
    [
        ("", "missing-parameter", "from=earliest|latest"),
        ("?from=earliest&offsets=0:0", "invalid-parameter", "exactly one start"),
        ("?from=earliest&timestamp_ms=5", "invalid-parameter", "exactly one start"),
        ("?from=middle", "invalid-parameter", "earliest or latest"),
        ("?timestamp_ms=2025-10-09", "invalid-parameter", "ISO 8601 with its zone"),
    ],
)
async def test_a_poll_has_exactly_one_start(api: Api, query: str, problem: str, mend: str) -> None:
    answer = await api.get(POLL + query)
    assert (answer.status, answer.problem) == (400, problem)
    assert mend in answer.json()["detail"]


@pytest.mark.parametrize(("queues", "status"), [(4, 200), (5, 200), (6, 400)])
async def test_a_poll_over_all_queues_has_the_same_limit(queues: int, status: int) -> None:
    async with running_api(max_queues_per_poll=5) as api:
        await api.store.topics.create("wide", queues=queues)
        answer = await api.get("/v1/topics/wide/messages?from=earliest")
        assert answer.status == status
        if status == 400:
            assert answer.problem == "limit-exceeded"
            assert "name at most 5 queues" in answer.json()["detail"]
