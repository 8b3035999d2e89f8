import asyncio

import msgpack
import msgspec
import pytest

from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import REBUILT
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.http_api.app import BrokerStatus
from tests.support.servers.api_server import Answer, Api, raising_at_once, running_api

PULL = "/v1/topics/orders/queues/0/messages"
BATCH = "application/vnd.holdfast.batch"


async def publish(api: Api, *bodies: str, **fields: object) -> None:
    for body in bodies:
        answer = await api.publish("orders", {"body": body, "queue": 0, **fields})
        assert answer.status == 200


def bodies(answer: Answer) -> list[str]:
    assert answer.status == 200, answer.body
    return [message["body"] for message in answer.json()["messages"]]


def offsets(answer: Answer) -> tuple[int, int, int]:
    """Return next, min and max offset; check that the headers have the same values."""
    reply = answer.json()
    found = tuple(reply[name] for name in ("next_offset", "min_offset", "max_offset"))
    headers = ("Holdfast-Next-Offset", "Holdfast-Min-Offset", "Holdfast-Max-Offset")
    assert tuple(int(answer.headers[name]) for name in headers) == found
    return found


# -- found messages ------------------------------------------------------------------------


async def test_a_message_is_delivered_with_all_its_fields(api: Api) -> None:
    await publish(api, "hé", key="k", tag="t", properties={"a": "b"})

    answer = await api.get(f"{PULL}?offset=0")

    (message,) = answer.json()["messages"]
    born, kept = message.pop("born_timestamp_ms"), message.pop("store_timestamp_ms")
    assert born <= kept
    assert message == {
        "topic": "orders",
        "queue": 0,
        "offset": 0,
        "message_id": f"{1:08X}{0:08X}{0:016X}",
        "key": "k",
        "tag": "t",
        "properties": {"a": "b"},
        "body": "hé",
    }
    assert offsets(answer) == (1, 0, 1)


async def test_a_message_without_anything_has_nulls_and_bytes_are_base64(api: Api) -> None:
    await api.ask("POST", "/v1/topics/orders/messages?queue=0", b"\xff\x00")
    (message,) = (await api.get(f"{PULL}?offset=0")).json()["messages"]
    assert (message["key"], message["tag"], message["properties"]) == (None, None, {})
    assert message["body_base64"] == "/wA="
    assert "body" not in message


async def test_messages_of_one_batch_keep_their_columns_apart(api: Api) -> None:
    messages = [
        {"body": f"body {i}", "queue": 0}
        | ({"key": f"key {i}"} if i % 2 else {})
        | ({"tag": f"tag {i}"} if i % 3 else {})
        | ({"properties": {f"n{j}": f"{i}.{j}" for j in range(i % 4)}})
        for i in range(20)
    ]
    await api.publish("orders", *messages)
    for query, rows in (("offset=0", range(20)), ("offset=7&max_messages=5", range(7, 12))):
        answer = await api.get(f"{PULL}?{query}")
        found = answer.json()["messages"]
        assert [each["offset"] for each in found] == list(rows)
        for row, each in zip(rows, found, strict=True):
            wanted = messages[row]
            assert each["body"] == wanted["body"]
            assert each["key"] == wanted.get("key")
            assert each["tag"] == wanted.get("tag")
            assert each["properties"] == wanted["properties"]


@pytest.mark.parametrize(
    ("query", "found", "next_offset"),
    [
        ("offset=0", ["0", "1", "2", "3"], 4),
        ("offset=3", ["3"], 4),
        ("offset=4", [], 4),
        ("from=earliest&max_messages=2", ["0", "1"], 2),
        ("from=latest", [], 4),
        ("timestamp_ms=0", ["0", "1", "2", "3"], 4),
        ("timestamp_ms=9000000000000", [], 4),
        ("offset=1&max_bytes=1", ["1"], 2),
        ("offset=1&max_bytes=2", ["1", "2"], 3),
    ],
)
async def test_a_pull_has_a_start_and_limits(
    api: Api, query: str, found: list[str], next_offset: int
) -> None:
    await publish(api, "0", "1", "2", "3")
    answer = await api.get(f"{PULL}?{query}")
    assert bodies(answer) == found
    assert offsets(answer) == (next_offset, 0, 4)


async def test_a_pull_may_have_the_maximum_limits(api: Api) -> None:
    await publish(api, "x")
    answer = await api.get(f"{PULL}?offset=0&max_messages=10000&max_bytes=16777216&wait_ms=60000")
    assert bodies(answer) == ["x"]


async def test_thousands_of_messages_are_delivered_in_order(api: Api) -> None:
    await api.publish("orders", *({"body": f"{i}", "queue": 0} for i in range(3000)))
    answer = await api.get(f"{PULL}?offset=0&max_messages=3000")
    assert bodies(answer) == [str(i) for i in range(3000)]


async def test_damage_is_a_problem_and_later_messages_can_be_read(api: Api) -> None:
    await publish(api, "0", "1", "2")
    api.damage(0, 1)
    assert bodies(await api.get(f"{PULL}?offset=0")) == ["0"]
    answer = await api.get(f"{PULL}?offset=1")
    assert (answer.status, answer.problem) == (500, "corrupt-record")
    assert answer.json()["next_offset"] == 2
    assert bodies(await api.get(f"{PULL}?offset=2")) == ["2"]


async def test_a_pull_skips_damage_if_asked_and_lists_it(api: Api) -> None:
    await publish(api, "0", "1", "2", "3", "4")
    for offset in (1, 2, 4):
        api.damage(0, offset)
    answer = await api.get(f"{PULL}?offset=0&skip_corrupt=true")
    assert bodies(answer) == ["0", "3"]
    assert answer.json()["skipped"] == [
        {"queue": 0, "start_offset": 1, "end_offset": 3, "reason": "payload-crc"},
        {"queue": 0, "start_offset": 4, "end_offset": 5, "reason": "payload-crc"},
    ]
    assert answer.json()["next_offset"] == 5
    for accept in (
        "application/json",
        "application/msgpack",
        "application/x-ndjson",
        "application/vnd.holdfast.batch",
    ):
        answer = await api.get(f"{PULL}?offset=0&skip_corrupt=true", Accept=accept)
        assert answer.status == 200
        assert answer.headers["Holdfast-Skipped"] == "0:1:3,0:4:5"
        answer = await api.get(f"{PULL}?offset=1&skip_corrupt=false", Accept=accept)
        assert (answer.status, answer.json()["next_offset"]) == (500, 3)
    answer = await api.get(f"{PULL}?offset=3&max_messages=1&skip_corrupt=true")
    assert "skipped" not in answer.json()
    assert "Holdfast-Skipped" not in answer.headers


async def test_a_held_pull_lists_skipped_damage_at_its_deadline(api: Api) -> None:
    await publish(api, "0")
    api.damage(0, 0)
    answer = await api.get(f"{PULL}?offset=0&skip_corrupt=true&wait_ms=30")
    assert bodies(answer) == []
    assert answer.headers["Holdfast-Skipped"] == "0:0:1"
    assert answer.json()["next_offset"] == 1


@pytest.mark.parametrize("value", ["", "1", "yes", "True"])
async def test_a_flag_is_true_or_false(api: Api, value: str) -> None:
    answer = await api.get(f"{PULL}?offset=0&skip_corrupt={value}")
    assert (answer.status, answer.problem) == (400, "invalid-parameter")


# -- media types ---------------------------------------------------------------------------


async def test_ndjson_has_one_message_per_line(api: Api) -> None:
    await publish(api, "a\nb", "c")
    answer = await api.get(f"{PULL}?offset=0", Accept="application/x-ndjson")
    lines = answer.body.split(b"\n")
    assert lines[2:] == [b""]
    assert [msgspec.json.decode(line)["body"] for line in lines[:2]] == ["a\nb", "c"]
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    assert answer.headers["Holdfast-Next-Offset"] == "2"


async def test_msgpack_has_bodies_as_bin(api: Api) -> None:
    await api.ask("POST", "/v1/topics/orders/messages?queue=0", b"\xff\x00")
    answer = await api.get(f"{PULL}?offset=0", Accept="application/msgpack")
    reply = msgpack.unpackb(answer.body)
    assert reply["messages"][0]["body"] == b"\xff\x00"
    assert reply["next_offset"] == 1


async def test_a_binary_reply_has_whole_stored_batches(api: Api) -> None:
    for _ in range(2):
        block = encode_batch([b"a", b"b", b"c"], queue_id=0)
        await api.ask("POST", "/v1/topics/orders/messages", block, Content_Type=BATCH)
    answer = await api.get(f"{PULL}?offset=1&max_messages=3", Accept=BATCH)
    batches = list(iter_batches(answer.body))
    assert [(each.header.base_offset, len(each)) for each in batches] == [(0, 3), (3, 3)]
    assert answer.headers["Holdfast-Next-Offset"] == "4"
    assert answer.headers["Holdfast-Topic-Id"] == "1"


async def test_a_binary_reply_without_messages_is_empty(api: Api) -> None:
    answer = await api.get(f"{PULL}?offset=0", Accept=BATCH)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Holdfast-Next-Offset"] == "0"


# -- filters -------------------------------------------------------------------------------


async def test_next_offset_is_after_messages_that_do_not_match(api: Api) -> None:
    await publish(api, "0", "1", tag="red")
    await publish(api, "2", tag="blue")
    assert bodies(await api.get(f"{PULL}?offset=0&tag=blue,green")) == ["2"]
    answer = await api.get(f"{PULL}?offset=0&tag=green")
    assert (bodies(answer), offsets(answer)) == ([], (3, 0, 3))


async def test_sql92_and_tag_hold_together(api: Api) -> None:
    await publish(api, "0", tag="red", properties={"size": "4"})
    await publish(api, "1", tag="red", properties={"size": "2"})
    await publish(api, "2", tag="blue", properties={"size": "4"})
    answer = await api.get(f"{PULL}?offset=0&tag=red&filter=size%20%3D%20'4'")
    assert bodies(answer) == ["0"]


# -- holding -------------------------------------------------------------------------------


async def test_a_pull_at_the_end_is_held_and_one_outside_the_queue_is_not(api: Api) -> None:
    # L8
    await publish(api, "0", "1", "2")
    api.trim(0, 1)
    waiting = await api.held_pull(f"{PULL}?offset=3&wait_ms=60000")
    for offset, status, problem in ((4, 416, "offset-beyond-end"), (0, 410, "offset-trimmed")):
        answer = await api.get(f"{PULL}?offset={offset}&wait_ms=60000")
        assert (answer.status, answer.problem) == (status, problem)
        assert (answer.json()["min_offset"], answer.json()["max_offset"]) == (1, 3)
    assert api.hold.stats().held_max == 1
    await publish(api, "3")
    assert bodies(await waiting) == ["3"]
    assert bodies(await api.get(f"{PULL}?offset=3&wait_ms=60000")) == ["3"]
    assert (api.hold.stats().held, api.hold.stats().held_max) == (0, 1)


async def test_a_message_that_does_not_match_does_not_wake(api: Api) -> None:  # L13
    waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=60000&tag=blue")
    await publish(api, "0", "1", tag="red")
    assert not waiting.done()
    await publish(api, "2", tag="blue")
    answer = await waiting
    assert (bodies(answer), offsets(answer)) == (["2"], (3, 0, 3))
    assert api.hold.stats().woken_total == 1


async def test_an_expired_pull_returns_the_scanned_offset(api: Api) -> None:  # L14
    waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=4000&tag=blue")
    await publish(api, "0", "1", tag="red")
    answer = await waiting
    assert (bodies(answer), offsets(answer)) == ([], (2, 0, 2))
    assert api.hold.stats().expired_total == 1


async def test_a_disconnected_client_frees_its_slot(api: Api) -> None:
    waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=60000")
    waiting.cancel()
    await api.held(0)
    assert api.hold.stats().cancelled_total == 1


async def test_too_many_held_pulls_are_refused() -> None:
    async with running_api(hold=HoldServiceConfig(max_held=1), orders=2) as api:
        waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=60000")
        answer = await api.get(f"{PULL}?offset=0&wait_ms=60000")
        assert (answer.status, answer.problem) == (429, "too-many-held")
        assert answer.headers["Retry-After"] == "1"
        assert answer.json()["limit"] == 1
        await publish(api, "x")
        assert bodies(await waiting) == ["x"]


async def test_deleting_the_topic_answers_its_pulls(api: Api) -> None:
    waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=60000")
    await api.ask("DELETE", "/v1/topics/orders?confirm=orders")
    answer = await waiting
    assert (answer.status, answer.problem) == (404, "unknown-topic")


async def test_a_stop_answers_every_held_pull(api: Api) -> None:
    waiting = [
        asyncio.create_task(
            api.get(f"/v1/topics/orders/queues/{i % 2}/messages?offset=0&wait_ms=60000")
        )
        for i in range(20)
    ]
    await api.held(20)
    await api.server.stop()
    for answer in await asyncio.gather(*waiting):
        assert (answer.status, answer.problem) == (503, "draining")
        assert answer.headers["Retry-After"]
        assert answer.headers["Connection"] == "close"


async def test_other_requests_do_not_affect_a_held_pull(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Other requests, including bad ones, do not affect it."""
    waiting = await api.held_pull(f"{PULL}?offset=0&wait_ms=60000")
    await api.get("/nowhere")
    with monkeypatch.context() as broken:
        broken.setattr(api.store.publishing, "begin", raising_at_once(RuntimeError("a bug")))
        await api.publish("orders", {"body": "lost"})
    await publish(api, "found")
    assert bodies(await waiting) == ["found"]


@pytest.mark.parametrize("phase", ["recovering", "draining"])
async def test_no_pull_is_served_unless_the_broker_is_ready(api: Api, phase: str) -> None:
    api.status = BrokerStatus(phase)
    answer = await api.get(f"{PULL}?offset=0&wait_ms=1000")
    assert (answer.status, answer.problem) == (503, phase)
    assert int(answer.headers["Retry-After"]) > 0
    api.status = BrokerStatus("ready")


async def test_a_broker_that_holds_no_requests_answers_at_once() -> None:
    # L5: a pull is held if its client asks for it and the broker allows it
    async with running_api(max_wait_ms=0, orders=2) as api:
        await api.groups.put_group("g", GroupSettings({"orders": Subscription()}))
        for path in (f"{PULL}?offset=0", "/v1/topics/orders/messages?offsets=0:0,1:0"):
            for wait_ms in ("0", "1", "60000", str(10**15)):
                answer = await api.get(f"{path}&wait_ms={wait_ms}")
                assert (answer.status, answer.json()["messages"]) == (200, [])
            assert (await api.get(f"{path}&wait_ms=-1")).status == 400
        answer = await api.send_json("POST", "/v1/groups/g/receive", {"wait_ms": 10**15})
        assert (answer.status, answer.json()["messages"]) == (200, [])
        assert api.groups.asks[0].wait_s == 0


async def test_wait_ms_is_at_most_the_limit_of_the_broker() -> None:
    # L5: a limit of 0 is in the test above
    async with running_api(max_wait_ms=1, orders=2) as api:
        await api.groups.put_group("g", GroupSettings({"orders": Subscription()}))
        for path in (f"{PULL}?offset=0", "/v1/topics/orders/messages?offsets=0:0,1:0"):
            for wait_ms, status in ((0, 200), (1, 200), (2, 400)):
                answer = await api.get(f"{path}&wait_ms={wait_ms}")
                assert answer.status == status
        for wait_ms, status in ((0, 200), (1, 200), (2, 400)):
            answer = await api.send_json("POST", "/v1/groups/g/receive", {"wait_ms": wait_ms})
            assert answer.status == status
        assert (answer.problem, answer.json()["limit_name"]) == ("limit-exceeded", "max_wait_ms")


# -- merged batches --------------------------------------------------------------------------

REBUILT_BATCH = f"{BATCH}; rebuilt=1"


async def publish_small_batches(api: Api, count: int) -> None:
    """Publish so many batches of one message that a pull of all needs a reader thread."""
    body = b"".join(encode_batch([b"%d" % i], queue_id=0) for i in range(count))
    answer = await api.ask("POST", "/v1/topics/orders/messages", body, Content_Type=BATCH)
    assert answer.status == 200


async def test_small_batches_are_merged_only_for_clients_that_accept_it(api: Api) -> None:
    await publish_small_batches(api, 200)
    for path in (f"{PULL}?offset=0&", "/v1/topics/orders/messages?offsets=0:0&"):
        path += "max_messages=1000"
        plain = await api.get(path, Accept=BATCH)
        assert len([*iter_batches(plain.body)]) == 200
        for accept in (f"{BATCH}; rebuilt=0", f"{BATCH}; q=1", f"{BATCH}, text/x; rebuilt=1"):
            assert (await api.get(path, Accept=accept)).body == plain.body
        for accept in (REBUILT_BATCH, f"{BATCH};q=0.9 ;Rebuilt=1, */*;q=0.1"):
            merged = await api.get(path, Accept=accept)
            (block,) = iter_batches(merged.body, rebuilt=True)
            assert block.header.flags & REBUILT
            stored = list(iter_batches(plain.body))
            assert [block.body(row) for row in range(200)] == [each.body(0) for each in stored]
            assert block.store_timestamps_us is not None
            assert block.store_timestamps_us.tolist() == [
                each.header.store_timestamp_us for each in stored
            ]
            for name in ("Content-Type", "Holdfast-Next-Offset", "Holdfast-Max-Offset"):
                assert merged.headers[name] == plain.headers[name]


async def test_a_few_batches_and_other_formats_are_never_merged(api: Api) -> None:
    await publish_small_batches(api, 200)
    few = f"{PULL}?offset=190"
    plain = await api.get(few, Accept=BATCH)
    assert (await api.get(few, Accept=REBUILT_BATCH)).body == plain.body
    answer = await api.get(f"{PULL}?offset=0", Accept=f"application/json, {REBUILT_BATCH};q=0.5")
    assert bodies(answer) == [str(i) for i in range(32)]


async def test_a_merged_batch_cannot_be_published(api: Api) -> None:
    await publish_small_batches(api, 200)
    merged = await api.get(f"{PULL}?offset=0&max_messages=1000", Accept=REBUILT_BATCH)
    answer = await api.ask("POST", "/v1/topics/orders/messages", merged.body, Content_Type=BATCH)
    assert answer.json()["reason"] == "format-version"
    assert (await api.get("/v1/topics/orders")).json()["queues"][0]["max_offset"] == 200
