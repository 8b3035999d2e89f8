"""Topics with priority levels, and messages that expire, over HTTP."""

import msgpack
import pytest

from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import ANY_QUEUE
from tests.support.servers.api_server import Answer, Api

TOPIC = "/v1/topics/urgent"
MESSAGES = f"{TOPIC}/messages"
BATCH = {"Content_Type": "application/vnd.holdfast.batch"}
MSGPACK = {"Content_Type": "application/msgpack"}
NDJSON = {"Content_Type": "application/x-ndjson"}


@pytest.fixture
async def urgent(api: Api) -> Api:
    """An API with a topic of two queues for each of three levels: priorities 0-3, 4, 5-9."""
    answer = await api.send_json("PUT", TOPIC, {"queues": 2, "priority_levels": 3})
    assert answer.status == 201
    return api


def queues(answer: Answer) -> list[int]:
    assert answer.status == 200, answer.body
    return [each["queue"] for each in answer.json()["results"]]


def stored(api: Api) -> list[Batch]:
    return [batch for _, batches, _ in api.publishes for batch in batches]


# -- topics --------------------------------------------------------------------------------


async def test_each_level_has_its_own_queue(urgent: Api) -> None:
    described = (await urgent.get(TOPIC)).json()
    assert described["queue_count"] == 6
    assert [each["queue"] for each in described["queues"]] == list(range(6))
    assert described["config"]["priority_levels"] == 3
    listed = (await urgent.get("/v1/topics")).json()["topics"]
    assert [each["config"].get("priority_levels") for each in listed] == [None, 3]


async def test_queues_are_added_to_every_level_and_levels_are_fixed(urgent: Api) -> None:
    assert (await urgent.send_json("PUT", TOPIC, {"priority_levels": 3})).status == 200
    answer = await urgent.send_json("PUT", TOPIC, {"priority_levels": 2})
    assert (answer.status, answer.problem) == (409, "topic-conflict")
    assert answer.json()["existing"] == 3
    answer = await urgent.send_json("PATCH", TOPIC, {"queues": 3, "priority_levels": 3})
    assert (answer.status, answer.json()["queue_count"]) == (200, 9)
    answer = await urgent.send_json("PATCH", TOPIC, {"priority_levels": 2})
    assert (answer.status, answer.problem) == (422, "invalid-topic-change")


@pytest.mark.parametrize(("levels", "status"), [(0, 400), (1, 201), (10, 201), (11, 400)])
async def test_there_are_one_to_ten_levels(api: Api, levels: int, status: int) -> None:
    answer = await api.send_json("PUT", TOPIC, {"queues": 1, "priority_levels": levels})
    assert answer.status == status
    if status == 201:
        assert answer.json()["queue_count"] == levels


# -- publishing ----------------------------------------------------------------------------


async def test_a_message_goes_to_the_level_of_its_priority(urgent: Api) -> None:  # Q20
    index = queue_for_key("k", 2)
    expected = [0, 0, 0, 0, 1, 2, 2, 2, 2, 2]
    levels = [{"body": "x", "key": "k", "priority": priority} for priority in range(10)]
    answer = await urgent.publish("urgent", *levels, {"body": "x", "key": "k"})
    assert queues(answer) == [index * 3 + level for level in expected] + [index * 3 + 1]
    packed = {"messages": [{"body": b"x", "key": "k", "priority": 9}]}
    answer = await urgent.ask("POST", MESSAGES, msgpack.packb(packed), **MSGPACK)
    assert queues(answer) == [index * 3 + 2]
    line = b'{"body":"x","key":"k","priority":5}\n'
    answer = await urgent.ask("POST", MESSAGES, line, **NDJSON)
    assert queues(answer) == [index * 3 + 2]
    for query, level in (("?key=k&priority=9", 2), ("?key=k&priority=0", 0), ("?key=k", 1)):
        assert queues(await urgent.ask("POST", MESSAGES + query, b"raw")) == [index * 3 + level]


async def test_messages_without_key_alternate_within_their_level(urgent: Api) -> None:
    found = [queues(await urgent.publish("urgent", {"body": "x", "priority": 9})) for _ in range(4)]
    assert sorted(found) == [[2], [2], [5], [5]]
    assert found[0] != found[1]
    # Messages of one request go to one index as usual, each to its own level there.
    low, high = queues(await urgent.publish("urgent", {"body": "x"}, {"body": "x", "priority": 7}))
    assert high == low + 1


async def test_a_retry_goes_to_the_same_queue_of_its_level(urgent: Api) -> None:
    headers = {"Holdfast_Producer_Id": "7", "Holdfast_Producer_Epoch": "0"}
    for sequence in range(4):
        answer = await urgent.send_json(
            "POST",
            MESSAGES,
            {"messages": [{"body": "x", "priority": 5}]},
            **headers,
            Holdfast_Producer_Sequence=str(sequence),
        )
        assert queues(answer) == [(7 + sequence) % 2 * 3 + 2]


async def test_a_named_queue_determines_the_level(urgent: Api) -> None:
    answer = await urgent.publish(
        "urgent", {"body": "x", "queue": 4}, {"body": "x", "queue": 5, "priority": 6}
    )
    assert queues(answer) == [4, 5]
    answer = await urgent.publish("urgent", {"body": "x"}, {"body": "x", "queue": 5, "priority": 4})
    assert (answer.status, answer.problem) == (400, "invalid-parameter")
    assert answer.json()["parameter"] == "messages[1].priority"
    answer = await urgent.ask("POST", f"{MESSAGES}?queue=3&priority=9", b"raw")
    assert (answer.status, answer.problem) == (400, "invalid-parameter")
    answer = await urgent.publish("urgent", {"body": "x", "queue": 6})
    assert (answer.status, answer.problem) == (404, "unknown-queue")


async def test_a_topic_without_levels_accepts_every_priority(api: Api) -> None:
    for priority in (None, 0, 9):
        message = {"body": "x", "queue": 1, "priority": priority}
        assert queues(await api.publish("orders", message)) == [1]
    assert queues(await api.publish("fresh", {"body": "x", "key": "k", "priority": 9})) == [
        queue_for_key("k", 4)
    ]


@pytest.mark.parametrize(("priority", "status"), [(-1, 400), (0, 200), (9, 200), (10, 400)])
async def test_priorities_are_0_to_9(urgent: Api, priority: int, status: int) -> None:
    answer = await urgent.publish("urgent", {"body": "x", "priority": priority})
    assert answer.status == status
    answer = await urgent.ask("POST", f"{MESSAGES}?priority={priority}", b"raw")
    assert answer.status == status


async def test_a_batch_for_any_queue_has_the_default_priority(urgent: Api) -> None:
    raw = encode_batch([b"x"], queue_id=ANY_QUEUE)
    found = set()
    for _ in range(2):
        answer = await urgent.ask("POST", MESSAGES, raw, **BATCH)
        found.update(queues(answer))
    assert found == {1, 4}
    named = encode_batch([b"x"], queue_id=5)
    assert queues(await urgent.ask("POST", MESSAGES, named, **BATCH)) == [5]


# -- expiry --------------------------------------------------------------------------------


async def test_every_format_sets_the_expiry_time(urgent: Api) -> None:  # T32
    await urgent.publish("urgent", {"body": "x", "ttl_ms": 1500}, {"body": "x"})
    packed = {"messages": [{"body": b"x", "ttl_ms": 1500}]}
    await urgent.ask("POST", MESSAGES, msgpack.packb(packed), **MSGPACK)
    line = b'{"body":"x","ttl_ms":1500}\n'
    await urgent.ask("POST", MESSAGES, line, **NDJSON)
    answer = await urgent.ask("POST", f"{MESSAGES}?ttl_ms=1500", b"raw")
    assert answer.status == 200
    both, *others = stored(urgent)
    assert both.expires_at_ms(1) == 0
    for batch in (both, *others):
        lived_us = batch.expires_timestamp_us(0) - batch.born_timestamp_us(0)
        assert lived_us == 1_500_000
        assert batch.expires_at_ms(0) == -(-batch.expires_timestamp_us(0) // 1000)


@pytest.mark.parametrize(
    ("ttl_ms", "status"), [(0, 400), (1, 200), (10**15, 200), (10**15 + 1, 400)]
)
async def test_a_time_to_live_has_bounds(urgent: Api, ttl_ms: int, status: int) -> None:
    answer = await urgent.publish("urgent", {"body": "x", "ttl_ms": ttl_ms})
    assert answer.status == status
    assert (await urgent.ask("POST", f"{MESSAGES}?ttl_ms={ttl_ms}", b"raw")).status == status


@pytest.mark.parametrize("query", ["priority=9", "ttl_ms=5"])
async def test_raw_parameters_are_refused_for_other_formats(urgent: Api, query: str) -> None:
    answer = await urgent.publish("urgent", {"body": "x"}, query=f"?{query}")
    assert (answer.status, answer.problem) == (400, "invalid-parameter")
    raw = encode_batch([b"x"])
    answer = await urgent.ask("POST", f"{MESSAGES}?{query}", raw, **BATCH)
    assert (answer.status, answer.problem) == (400, "invalid-parameter")
