import asyncio
import gzip
import threading
from typing import Any

import msgpack
import msgspec
import pytest

from holdfast.commitlog.errors import (
    DiskFull,
    LogOverloaded,
    LogPoisoned,
    MemoryLow,
    ProducerFenced,
    SequenceGap,
)
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import BatchFlag
from holdfast.consumequeue.config import TopicsConfig
from holdfast.http_api.endpoints import publish as publish_module
from holdfast.http_api.endpoints.publish import OFFLOAD_TEXT_BYTES
from holdfast.http_api.endpoints.publish_batches import OFFLOAD_BATCHES, is_slow_to_decode
from holdfast.storage.alarms import MEMORY
from tests.support.clients.raw_http import raw_connection
from tests.support.servers.api_server import Api, raising_at_once, running_api
from tests.support.storage.stored import until

ORDERS = "/v1/topics/orders/messages"
T = "/v1/topics/t/messages"
NDJSON = {"Content_Type": "application/x-ndjson"}
MSGPACK = {"Content_Type": "application/msgpack"}
JSON = {"Content_Type": "application/json"}
BATCH = {"Content_Type": "application/vnd.holdfast.batch"}
PRODUCER = {
    "Holdfast_Producer_Id": "metering-7",
    "Holdfast_Producer_Epoch": "2",
    "Holdfast_Producer_Sequence": "5",
}


def stored(api: Api, publish: int = -1) -> list[Batch]:
    return api.publishes[publish][1]


async def test_results_are_in_the_order_of_the_request(api: Api) -> None:
    answer = await api.publish(
        "orders", {"body": "a", "queue": 1}, {"body": "b", "queue": 0}, {"body": "c", "queue": 1}
    )

    assert answer.status == 200
    reply = answer.json()
    assert reply["durable"] is True
    assert [(each["queue"], each["offset"]) for each in reply["results"]] == [
        (1, 0),
        (0, 0),
        (1, 1),
    ]
    assert reply["results"][2]["message_id"] == f"{1:08X}{1:08X}{1:016X}"
    assert set(reply) == {"results", "durable"}
    assert {batch.header.queue_id: len(batch) for batch in stored(api)} == {1: 2, 0: 1}


async def test_every_value_of_a_message_is_stored(api: Api) -> None:
    await api.publish(
        "orders",
        {
            "body_base64": "AP8=",
            "key": "clé",
            "tag": "new",
            "properties": {"colour": "red", "empty": ""},
            "ttl_ms": 5000,
        },
        {"body": "", "key": None, "tag": None, "properties": None, "queue": None},
    )

    first, second = (
        next(b for b in stored(api) if b.key(0) == "clé"),
        next(b for b in stored(api) if b.key(len(b) - 1) is None),
    )
    assert first.body(0) == b"\x00\xff"
    assert (first.tag(0), first.properties(0)) == ("new", {"colour": "red", "empty": ""})
    assert first.expires_timestamp_us(0) == first.born_timestamp_us(0) + 5_000_000
    row = len(second) - 1
    assert second.body(row) == b""
    assert (second.tag(row), second.properties(row), second.expires_timestamp_us(row)) == (
        None,
        {},
        0,
    )


async def test_a_key_chooses_its_queue_and_an_explicit_queue_wins(api: Api) -> None:
    keys = [f"key-{number}" for number in range(20)]
    answer = await api.publish("orders", *({"body": "x", "key": key} for key in keys))
    assert [each["queue"] for each in answer.json()["results"]] == [
        queue_for_key(key, 2) for key in keys
    ]
    other = 1 - queue_for_key("key-0", 2)
    answer = await api.publish("orders", {"body": "x", "key": "key-0", "queue": other})
    assert answer.json()["results"][0]["queue"] == other


async def test_requests_without_key_alternate_between_queues(api: Api) -> None:
    queues = []
    for _ in range(4):
        answer = await api.publish("orders", {"body": "a"}, {"body": "b"})
        results = answer.json()["results"]
        assert results[0]["queue"] == results[1]["queue"]
        queues.append(results[0]["queue"])
    assert queues == [0, 1, 0, 1]


async def test_a_raw_body_of_any_type_is_one_message(api: Api) -> None:
    path = "/v1/topics/orders/messages?queue=1&key=k%20%C3%A9&tag=t"
    for content_type in ({}, {"Content_Type": "image/png"}, {"Content_Type": "nonsense"}):
        answer = await api.ask("POST", path, b"\x00\xff{", **content_type)
        assert answer.json()["results"][0]["queue"] == 1
        batch = stored(api)[0]
        assert (batch.body(0), batch.key(0), batch.tag(0)) == (b"\x00\xff{", "k é", "t")


async def test_an_empty_body_is_an_empty_message(api: Api) -> None:
    answer = await api.ask("POST", ORDERS)
    assert answer.status == 200
    assert stored(api)[0].body(0) == b""


async def test_ndjson_has_one_message_per_line(api: Api) -> None:
    body = b'{"body":"a","queue":0}\r\n\n  \n{"body":"b","queue":0}\n'
    answer = await api.ask("POST", ORDERS, body, **NDJSON)
    assert [each["offset"] for each in answer.json()["results"]] == [0, 1]
    assert [stored(api)[0].body(row) for row in (0, 1)] == [b"a", b"b"]


async def test_msgpack_accepts_bin_and_str(api: Api) -> None:
    body = msgpack.packb(
        {"messages": [{"body": b"\x00\xff", "queue": 0}, {"body": "é", "queue": 0}]}
    )
    answer = await api.ask(
        "POST", "/v1/topics/orders/messages", body, **MSGPACK, Accept="application/msgpack"
    )
    assert answer.headers["Content-Type"] == "application/msgpack"
    assert msgpack.unpackb(answer.body)["results"][1]["offset"] == 1
    assert [stored(api)[0].body(row) for row in (0, 1)] == [b"\x00\xff", "é".encode()]


async def test_a_gzipped_body_counts_with_its_decompressed_size(api: Api) -> None:
    body = gzip.compress(b'{"messages":[{"body":"zipped"}]}')
    answer = await api.ask("POST", ORDERS, body, Content_Encoding="gzip", **JSON)
    assert answer.status == 200
    assert stored(api)[0].body(0) == b"zipped"


@pytest.mark.parametrize(("durability", "durable"), [("written", False), ("fsync", True)])
async def test_durability_can_be_asked_for(api: Api, durability: str, durable: bool) -> None:
    answer = await api.publish("orders", {"body": "x"}, query=f"?durability={durability}")
    assert answer.json()["durable"] is durable
    assert api.publishes[-1][2] == durability


async def test_a_large_request_keeps_its_order(api: Api) -> None:
    bodies = [f"{number:0200}" for number in range(2000)]
    answer = await api.publish("orders", *({"body": body, "queue": 0} for body in bodies))
    assert [each["offset"] for each in answer.json()["results"]] == list(range(2000))
    assert [stored(api)[0].body(row).decode() for row in range(2000)] == bodies


# -- limits --------------------------------------------------------------------------------


@pytest.mark.parametrize(("extra", "status"), [(-1, 200), (0, 200), (1, 413)])
async def test_message_limits_to_the_byte(extra: int, status: int) -> None:
    async with running_api(topics=TopicsConfig(default_max_message_bytes=100)) as api:
        size = 100 + extra
        named = {"key": "kk", "tag": "t", "properties": {"n": "é"}}
        # H5: the limit is for the body alone; key, tag and properties have their own limits
        answer = await api.publish("t", {"body": "b" * size, **named})
        assert answer.status == status
        block = encode_batch([b"x", b"b" * size], queue_id=0, keys=[None, "kk"],
                             tags=[None, "t"], properties=[None, {"n": "é"}])  # fmt: skip
        answer = await api.ask("POST", T, block, **BATCH)
        assert answer.status == status
        if status == 413:
            assert answer.problem == "message-too-large"
            assert answer.json()["index"] == 1


@pytest.mark.parametrize(("extra", "status"), [(-1, 200), (0, 200), (1, 413)])
async def test_request_limits_to_the_byte_and_the_message(extra: int, status: int) -> None:
    async with running_api(max_request_bytes=2048, max_messages_per_request=3) as api:
        answer = await api.ask("POST", T, b"x" * (2048 + extra))
        assert answer.status == status
        count = 3 + extra
        assert (await api.publish("t", *([{"body": "x"}] * count))).status == status
        lines = b'{"body":"x"}\n' * count
        answer = await api.ask("POST", T, lines, **NDJSON)
        assert answer.status == status
        packed = msgpack.packb({"messages": [{"body": b"x"}] * count})
        answer = await api.ask("POST", T, packed, **MSGPACK)
        assert answer.status == status
        block = encode_batch([b"x"] * count, queue_id=0)
        assert (await api.ask("POST", T, block, **BATCH)).status == status


@pytest.mark.parametrize(("extra", "status"), [(-1, 200), (0, 200), (1, 413)])
async def test_the_number_of_batches_and_queues_is_limited(extra: int, status: int) -> None:
    # S4: a request of 100,000 batches delayed all publishes for seconds
    async with running_api(max_batches_per_request=3) as api:
        await api.store.topics.create("t", queues=8)
        count = 3 + extra
        blocks = b"".join(encode_batch([b"x", b"y"], queue_id=queue) for queue in range(count))
        answers = [
            await api.ask("POST", T, blocks, **BATCH),
            await api.publish("t", *({"body": "x", "queue": queue % count} for queue in range(9))),
        ]
        for answer in answers:
            assert answer.status == status
            if status == 413:
                assert answer.problem == "request-too-large"
                assert answer.json()["limit_name"] == "max_batches_per_request"


@pytest.mark.parametrize(("epoch", "status"), [(2**32 - 2, 200), (2**32 - 1, 400)])
async def test_the_highest_epoch_is_the_brokers_own(epoch: int, status: int) -> None:
    async with running_api() as api:
        await api.store.topics.create("t")
        headers = {
            "Holdfast_Producer_Id": "p",
            "Holdfast_Producer_Epoch": str(epoch),
            "Holdfast_Producer_Sequence": "0",
        }
        raw = await api.ask("POST", T, b"x", **headers)
        block = encode_batch([b"x"], queue_id=0, producer_id=7, producer_epoch=epoch)
        binary = await api.ask("POST", T, block, **BATCH)
        assert (raw.status, binary.status) == (status, status)


# -- unknown topics ------------------------------------------------------------------------


async def test_an_unknown_topic_is_created(api: Api) -> None:
    answer = await api.publish("fresh", {"body": "x", "queue": 3})
    assert answer.status == 200
    assert api.store.table.get("fresh").queue_count == 4


async def test_a_bad_request_creates_no_topic(api: Api) -> None:
    for message in ({"body": "x", "queue": 4}, {"body": "x", "key": ""}, {"body": "x" * 5_000_000}):
        assert (await api.publish("fresh", message)).status in (400, 404, 413)
    bad = encode_batch([b"x"], queue_id=9)
    assert (await api.ask("POST", "/v1/topics/fresh/messages", bad, **BATCH)).status == 404
    assert [topic.name for topic in api.store.table.all()] == ["orders"]


async def test_no_topic_is_created_if_auto_create_is_off() -> None:
    async with running_api(topics=TopicsConfig(auto_create_topics=False)) as api:
        answer = await api.publish("fresh", {"body": "x"})
        assert (answer.status, answer.problem) == (404, "unknown-topic")
        assert api.store.table.all() == []


# -- idempotence ---------------------------------------------------------------------------


async def test_the_producer_headers_reach_every_batch(api: Api) -> None:
    body = b'{"messages":[{"body":"a","queue":0},{"body":"b","queue":1}]}'
    await api.ask("POST", ORDERS, body, **JSON, **PRODUCER)
    for batch in stored(api):
        header = batch.header
        assert (header.producer_epoch, header.sequence) == (2, 5)
        assert 0 < header.producer_id < 2**63
        assert header.flags & BatchFlag.REQUEST_SEQUENCE
    ids = {batch.header.producer_id for batch in stored(api)}
    assert len(ids) == 1


async def test_a_number_is_used_as_producer_id(api: Api) -> None:
    producer = {**PRODUCER, "Holdfast_Producer_Id": "77"}
    await api.ask("POST", ORDERS, b"x", **producer)
    assert stored(api)[0].header.producer_id == 77


async def test_a_retry_goes_to_the_same_queue(api: Api) -> None:
    queues = set()
    for _ in range(3):
        answer = await api.ask("POST", ORDERS, b"x", **PRODUCER)
        queues.add(answer.json()["results"][0]["queue"])
        await api.publish("orders", {"body": "in between"})
    assert len(queues) == 1


async def test_the_reply_reports_a_duplicate(api: Api) -> None:
    for duplicate in (None, True):
        answer = await api.ask("POST", ORDERS, b"x", **PRODUCER)
        assert answer.json().get("duplicate") is duplicate


async def test_the_reply_reports_each_duplicate_of_a_binary_request(api: Api) -> None:
    first, second = (encode_batch([b"x"], queue_id=queue, producer_id=7) for queue in (0, 1))
    for body in (first, first + second):
        answer = await api.ask("POST", ORDERS, body, **BATCH)
    reply = answer.json()
    assert [result.get("duplicate") for result in reply["results"]] == [True, None]
    assert "duplicate" not in reply


# -- what the store refuses ----------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "status", "problem", "retry"),
    [
        (DiskFull(4096), 507, "disk-full", True),
        (LogPoisoned("EIO"), 503, "read-only", False),
        (LogOverloaded(2, 1), 503, "overloaded", True),
        (SequenceGap(3, 5), 409, "sequence-gap", False),
        (ProducerFenced(1, 2), 403, "producer-fenced", False),
        (RuntimeError("a bug"), 500, "internal-error", False),
    ],
)
async def test_errors_of_the_store_are_problems(
    api: Api,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    status: int,
    problem: str,
    retry: bool,
) -> None:
    await api.publish("orders", {"body": "before", "queue": 0})
    monkeypatch.setattr(api.store.publishing, "begin", raising_at_once(error))
    answer = await api.publish("orders", {"body": "x"})
    assert (answer.status, answer.problem) == (status, problem)
    assert ("Retry-After" in answer.headers) is retry
    read = await api.get("/v1/topics/orders/queues/0/messages?offset=0")
    assert read.json()["messages"][0]["body"] == "before"


@pytest.mark.parametrize("kind", ["application/json", "application/vnd.holdfast.batch", "text/x"])
async def test_an_alarm_refuses_a_publish_before_its_body_is_read(
    api: Api, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    monkeypatch.setitem(api.storage.alarms.by_name, MEMORY, lambda: MemoryLow(2, 1))
    async with raw_connection(api.server.port) as connection:
        await connection.send(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: " + kind.encode() + b"\r\nContent-Length: 1000000\r\n\r\n"
        )
        status, _, body = await connection.answer()
    assert (status, b"max_memory_bytes" in body) == (503, True)
    assert api.publishes == []


async def test_a_disconnect_does_not_undo_a_publish(api: Api) -> None:
    api.publish_gate = asyncio.Event()
    task = asyncio.create_task(api.publish("fresh", {"body": "x", "queue": 0}))
    await until(lambda: api.publishes)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    read = await api.get("/v1/topics/fresh/queues/0/messages?offset=0")
    assert read.json()["messages"][0]["body"] == "x"


# -- properties that only the broker writes ----------------------------------------------------

_FORGED = {"a": "b", "holdfast-dead-topic": "payments"}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("application/json", b'{"messages": [{"body": "x"}, {"body": "x", "properties": %b}]}'),
        ("application/x-ndjson", b'{"body": "x"}\n{"body": "x", "properties": %b}'),
    ],
)
async def test_the_properties_of_dead_letters_are_refused(api: Api, kind: str, body: bytes) -> None:
    """S3: a forged dead letter could bring a message into a topic of another user."""
    body %= msgspec.json.encode(_FORGED)
    answer = await api.ask("POST", ORDERS, body, Content_Type=kind)
    assert (answer.status, answer.problem) == (400, "reserved-property")
    assert answer.json()["parameter"] == 'messages[1].properties["holdfast-dead-topic"]'
    assert "leave it out" in answer.json()["detail"]
    assert not api.publishes


async def test_the_properties_of_dead_letters_are_refused_in_msgpack_and_in_batches(
    api: Api,
) -> None:
    packed = msgpack.packb({"messages": [{"body": b"x", "properties": _FORGED}]})
    answer = await api.ask("POST", ORDERS, packed, **MSGPACK)
    assert (answer.status, answer.problem) == (400, "reserved-property")
    plain = encode_batch([b"x", b"y"], queue_id=1)
    batch = encode_batch([b"x"] * 3, properties=[None, {"n": "1"}, _FORGED], queue_id=1)
    answer = await api.ask("POST", ORDERS, plain + batch, **BATCH)
    assert (answer.status, answer.problem) == (400, "reserved-property")
    assert answer.json()["parameter"] == 'messages[4].properties["holdfast-dead-topic"]'
    assert not api.publishes


async def test_similar_names_are_not_reserved(api: Api) -> None:
    names = {"x-holdfast-dead-topic": "1", "holdfast-": "2", "dead-a": "3", "holdfast-dead": "4"}
    assert (await api.publish("orders", {"body": "x", "properties": names})).status == 200
    batch = encode_batch([b"x"], properties=[names], queue_id=1)
    assert (await api.ask("POST", ORDERS, batch, **BATCH)).status == 200


# -- a single message, and unsupported forms ---------------------------------------------------


async def test_a_request_may_be_a_single_message(api: Api) -> None:
    """H2: `curl --json '{"body": "x"}'`."""
    path = "/v1/topics/orders/messages"
    one = {"body": "x", "key": "k", "tag": "t", "properties": {"n": "1"}, "queue": 1}
    assert (await api.send_json("POST", path, one)).status == 200
    (batch,) = stored(api)
    assert (batch.body(0), batch.key(0), batch.tag(0)) == (b"x", "k", "t")
    assert batch.properties(0) == {"n": "1"}
    answer = await api.send_json("POST", path, {"body_base64": "AAE=", "priority": 4})
    assert len(answer.json()["results"]) == 1
    assert stored(api)[0].body(0) == b"\0\1"
    packed = msgpack.packb({"body": b"\xff", "key": "k"})
    answer = await api.ask("POST", path, packed, **MSGPACK)
    assert answer.status == 200
    assert stored(api)[0].body(0) == b"\xff"


@pytest.mark.parametrize(
    "body",
    [
        b"name=value",
        b'{"messages": 5}',
        b'{"message": [',
        b"{}",
        b'["messages"]',
        b'x{"messages":[',
    ],
)
async def test_any_other_form_body_is_one_raw_message(api: Api, body: bytes) -> None:
    form = "application/x-www-form-urlencoded"
    answer = await api.ask("POST", ORDERS, body, Content_Type=form)
    assert answer.status == 200
    assert stored(api)[0].body(0) == body


async def test_a_request_with_another_type_is_a_raw_message(api: Api) -> None:
    body = b'{"messages": [{"role": "user"}]}'
    for kind in ("application/octet-stream", "text/plain"):
        answer = await api.ask("POST", ORDERS, body, Content_Type=kind)
        assert answer.status == 200
        assert stored(api)[0].body(0) == body


# -- work that would block the event loop ------------------------------------------------------


@pytest.mark.parametrize("kind", ["application/json", "application/x-ndjson"])
async def test_a_large_text_is_processed_in_threads(
    monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    """Each of the steps that process all messages blocked the event loop for a tenth of a
    second."""
    ran_in: dict[str, set[str]] = {}

    def watched(name: str) -> None:
        plain = getattr(publish_module, name)

        def step(*given: Any) -> Any:
            ran_in.setdefault(name, set()).add(threading.current_thread().name)
            return plain(*given)

        monkeypatch.setattr(publish_module, name, step)

    steps = (
        "_check",
        "_group_by_queue",
        "_make_batches_by_queue",
        "_make_results",
        "_encode_results",
    )
    for name in steps:
        watched(name)
    loop_thread = threading.current_thread().name
    count = OFFLOAD_TEXT_BYTES // len('{"body":"x"},') + 1
    messages = [b'{"body":"%d"}' % number for number in range(count)]
    body = b"\n".join(messages)
    if kind == "application/json":
        body = b'{"messages":[' + b",".join(messages) + b"]}"
    async with running_api() as api:
        await api.store.topics.create("t", queues=4)
        answer = await api.ask("POST", T, body, Content_Type=kind)
    assert [each["offset"] for each in answer.json()["results"]] == list(range(count))
    assert set(ran_in) == set(steps)
    assert all(loop_thread not in threads for threads in ran_in.values())


@pytest.mark.parametrize(("more", "is_apart"), [(-1, False), (0, False), (1, True)])
def test_many_small_batches_are_decoded_in_a_thread(more: int, is_apart: bool) -> None:
    one = encode_batch([b"x"], queue_id=0)
    assert is_slow_to_decode(one * (OFFLOAD_BATCHES + more)) is is_apart
    assert is_slow_to_decode(memoryview(one * (OFFLOAD_BATCHES + more))) is is_apart


def test_wrong_sizes_in_headers_end_the_count_of_batches() -> None:
    assert not is_slow_to_decode(b"\0" * 127)
    assert is_slow_to_decode(
        b"\0" * 1000
    )  # a size of 0: it stays on the loop, and is refused later
    assert not is_slow_to_decode(b"\xff" * 1000)
