"""All kinds of invalid input: each has its status, problem and hint, and changes nothing.

Each row is one request to an API with the topic "orders" of two queues, whose queue 0 holds the
offsets 2 to 5 (0 and 1 are trimmed), and the group "g".
"""

import gzip
import json
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgpack
import pytest
import pytest_asyncio

from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.consumequeue.message_store import MessageStore
from tests.support.servers.api_server import Api, running_api

JSON = {"Content_Type": "application/json"}
NDJSON = {"Content_Type": "application/x-ndjson"}
MSGPACK = {"Content_Type": "application/msgpack"}
BATCH = {"Content_Type": "application/vnd.holdfast.batch"}

LIMIT = 64 * 1024

TOPIC = "/v1/topics/orders"
MESSAGES = f"{TOPIC}/messages"
PULL = f"{TOPIC}/queues/0/messages"
OFFSETS = "/v1/groups/g/topics/orders/offsets"


@dataclass(frozen=True)
class Bad:
    """One request and its expected refusal. `mend` is a part of the detail."""

    method: str
    path: str
    status: int
    problem: str
    mend: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    members: Mapping[str, object] = field(default_factory=dict)


def get(path: str, status: int, problem: str, mend: str, **members: object) -> Bad:
    return Bad("GET", path, status, problem, mend, members=members)


def post(
    body: bytes, headers: Mapping[str, str], status: int, problem: str, mend: str, **members: object
) -> Bad:
    return Bad("POST", MESSAGES, status, problem, mend, body, headers, members)


def message(**fields: object) -> bytes:
    return json.dumps({"messages": [fields]}).encode()


NAMES: Sequence[Bad] = [
    get(f"/v1/topics/{name}", 400, "invalid-name", "use 1 to 127 of")
    for name in (
        "a%2fb", "..", "%2e%2e", "..%2f..%2fetc%2fpasswd", "a%00b", "x" * 128, "a%20b", "__state",
        "%E2%80%AEgnp.exe", "caf%C3%A9", "a%0Ab", ".", "a:b", "a%5Cb",
    )
] + [
    Bad("PUT", "/v1/topics/__mine", 400, "invalid-name", "reserved for the broker", b"{}", JSON),
    Bad("POST", "/v1/topics/a%2fb/messages", 400, "invalid-name", "use 1 to 127", b"x"),
    Bad("PUT", "/v1/groups/..%2f/topics/orders/offsets", 400, "invalid-name", "group name",
        b'{"offsets":{}}', JSON),
    get("/v1/groups/a%2fb", 400, "invalid-name", "group name", kind="group"),
]  # fmt: skip

PATHS: Sequence[Bad] = [
    get("/v1/nothing", 404, "not-found", "/openapi.json"),
    get("/v1/topics/orders/", 404, "not-found", "/openapi.json"),
    get("/v1/topics//queues/0/messages", 404, "not-found", "/openapi.json"),
    Bad("DELETE", "/v1/topics", 405, "method-not-allowed", "use GET or HEAD"),
    Bad("PUT", MESSAGES, 405, "method-not-allowed", "use GET or HEAD or POST"),
    get("/v1/topics/unknown", 404, "unknown-topic", "create it", topic="unknown"),
    get("/v1/topics/unknown/queues/0/messages?offset=0", 404, "unknown-topic", "create it"),
    get("/v1/topics/unknown/splits", 404, "unknown-topic", "create it"),
    get(f"{TOPIC}/queues/2/messages?offset=0", 404, "unknown-queue", "0 to 1", queue_count=2),
    get(f"{TOPIC}/queues/-1/messages?offset=0", 400, "invalid-parameter", "from 0 to 1"),
    get(f"{TOPIC}/queues/x/messages?offset=0", 400, "invalid-parameter", "whole number"),
    get(f"{TOPIC}/queues/1.0/offset?timestamp_ms=1", 400, "invalid-parameter", "whole number"),
    get(f"{TOPIC}/queues/{10**30}/offset?timestamp_ms=1", 400, "invalid-parameter", "0 to 1"),
    get("/v1/groups/unknown", 404, "unknown-group", "storing offsets", group="unknown"),
    get("/v1/groups/unknown/topics/orders/offsets", 404, "unknown-group", "storing offsets"),
    get("/v1/groups/g/topics/unknown/offsets", 404, "unknown-topic", "create it"),
    get("/v1/messages/zzz", 404, "unknown-message", "use the message_id from"),
    get(f"/v1/messages/{'F' * 32}", 404, "unknown-message", "use the message_id from"),
    get(f"/v1/messages/{1:08X}{0:08X}{6:016X}", 404, "unknown-message", "use the message_id"),
    get(f"/v1/messages/{1:08X}{0:08X}{0:016X}", 410, "offset-trimmed", "offset=2"),
    Bad("DELETE", TOPIC, 400, "confirm-required", "?confirm=orders"),
    Bad("DELETE", f"{TOPIC}?confirm=Orders", 400, "confirm-required", "?confirm=orders"),
    Bad("DELETE", "/v1/topics/unknown?confirm=unknown", 404, "unknown-topic", "create it"),
]

PULLS: Sequence[Bad] = [
    get(PULL, 400, "missing-parameter", "from=earliest|latest", parameter="offset"),
    get(f"{PULL}?offset=2&from=latest", 400, "invalid-parameter", "exactly one start"),
    get(f"{PULL}?offset=2&offset=3", 400, "invalid-parameter", "more than once"),
    get(f"{PULL}?offset=", 400, "invalid-parameter", "a whole number from 0", parameter="offset"),
    get(f"{PULL}?offset=-1", 400, "invalid-parameter", "a whole number from 0", found="-1"),
    get(f"{PULL}?offset=2&tag=a%FF", 400, "invalid-parameter", "percent-encoded UTF-8"),
    get(f"{MESSAGES}/search?key=%C3", 400, "invalid-parameter", "percent-encoded UTF-8"),
    Bad("POST", f"{MESSAGES}?key=%FF", 400, "invalid-parameter", "percent-encoded UTF-8", b"x"),
    get(f"{PULL}?offset=two", 400, "invalid-parameter", "a whole number from 0"),
    get(f"{PULL}?offset=%EF%BC%92", 400, "invalid-parameter", "a whole number from 0"),
    get(f"{PULL}?offset=1e3", 400, "invalid-parameter", "a whole number from 0"),
    get(f"{PULL}?offset={2**63}", 400, "limit-exceeded", f"{2**63 - 1} at most"),
    get(f"{PULL}?offset={10**40}", 400, "limit-exceeded", f"{2**63 - 1} at most"),
    get(f"{PULL}?offset=1", 410, "offset-trimmed", "offset=2", min_offset=2, max_offset=6),
    get(f"{PULL}?offset=7", 416, "offset-beyond-end", "up to 6", min_offset=2, max_offset=6),
    get(f"{PULL}?from=middle", 400, "invalid-parameter", "earliest or latest"),
    get(f"{PULL}?offset=2&wait_ms=60001", 400, "limit-exceeded", "60000 at most", limit=60000),
    get(f"{PULL}?offset=2&wait_ms=-1", 400, "invalid-parameter", "a whole number from 0 to 60000"),
    get(f"{PULL}?offset=2&max_messages=0", 400, "invalid-parameter", "from 1 to 10000"),
    get(f"{PULL}?offset=2&max_messages=10001", 400, "limit-exceeded", "10000 at most"),
    get(f"{PULL}?offset=2&max_bytes=0", 400, "invalid-parameter", "from 1"),
    get(f"{PULL}?offset=2&max_bytes={16 * 1024**2 + 1}", 400, "limit-exceeded", "16777216 at most"),
    get(f"{PULL}?offset=2&waitms=5", 400, "invalid-parameter", "wait_ms", parameter="waitms"),
    get(f"{PULL}?offset=2&tag=", 400, "invalid-parameter", "leave the parameter out"),
    get(f"{PULL}?offset=2&filter=a+%3D", 400, "invalid-filter", "SQL92"),
    get(f"{PULL}?offset=2&filter={'(' * 100}a%3D1{')' * 100}", 400, "invalid-filter", "SQL92"),
    get(f"{PULL}?offset=2&filter=a%3D'{'x' * 4096}'", 400, "invalid-filter", "SQL92"),
    Bad("GET", f"{PULL}?offset=2", 406, "not-acceptable", "accept one of: application/json",
        headers={"Accept": "text/html"}),
    Bad("GET", f"{PULL}?offset=2", 406, "not-acceptable", "accept one of",
        headers={"Accept": "application/json;q=0, text/*"}),
    get(f"{MESSAGES}?wait_ms=0", 400, "missing-parameter", "offsets=QUEUE:OFFSET"),
    get(f"{MESSAGES}?offsets=0", 400, "invalid-parameter", "0:12,1:40", parameter="offsets"),
    get(f"{MESSAGES}?offsets=0:2,", 400, "invalid-parameter", "0:12,1:40"),
    get(f"{MESSAGES}?offsets=0:2,0:3", 400, "invalid-parameter", "each queue once"),
    get(f"{MESSAGES}?offsets=0:2,2:0", 404, "unknown-queue", "0 to 1"),
    get(f"{MESSAGES}?offsets={','.join(f'{i}:0' for i in range(1025))}", 400, "limit-exceeded",
        "name at most 1024", parameter="offsets"),
    get(f"{TOPIC}/queues/0/offset", 400, "missing-parameter", "the time to look for"),
    get(f"{TOPIC}/queues/0/offset?timestamp_ms=-5", 400, "invalid-parameter", "milliseconds"),
    get(f"{MESSAGES}/search", 400, "missing-parameter", "the key to look for"),
    get(f"{MESSAGES}/search?key=k&limit=1001", 400, "limit-exceeded", "1000 at most"),
    get(f"{TOPIC}/splits?start=0:1", 410, "offset-trimmed", "offset=2"),
    get(f"{TOPIC}/splits?end=0:7", 416, "offset-beyond-end", "up to 6"),
    get(f"{TOPIC}/splits?start=first", 400, "invalid-parameter", "0:12,1:40"),
    get(f"{TOPIC}/splits?start=earliest&start_timestamp_ms=3", 400, "invalid-parameter", "start"),
    get("/v1/topics?limit=1001", 400, "limit-exceeded", "1000 at most"),
    get("/v1/topics?limit=0", 400, "invalid-parameter", "from 1 to 1000"),
    get("/v1/info?verbose=1", 400, "invalid-parameter", "no parameters at all"),
    get("/healthz?x=1", 400, "invalid-parameter", "no parameters at all"),
]  # fmt: skip

DEEP = b'{"messages":' + b"[" * 50_000

PUBLISHES: Sequence[Bad] = [
    # malformed JSON
    post(b"{", JSON, 400, "malformed-json", "well-formed"),
    post(b'{"messages":[{"body":"x"}]} x', JSON, 400, "malformed-json", "well-formed"),
    post(b'{"messages":[{"body":"\xff"}]}', JSON, 400, "malformed-json", "UTF-8"),
    post(b'{"messages":[{"body":"\\ud800"}]}', JSON, 400, "malformed-json", "half of a pair"),
    post(b'{"messages":[{"body":"a\\udc00b"}]}', JSON, 400, "malformed-json", "well-formed"),
    post(b"[" * 50_000, JSON, 400, "invalid-parameter", "Expected `object`"),
    post(DEEP, JSON, 400, "invalid-parameter", "Expected `object`"),
    # JSON of the wrong shape
    post(b"[]", JSON, 400, "invalid-parameter", "Expected `object`"),
    post(b"{}", JSON, 400, "missing-parameter", "a single message", parameter="messages"),
    post(b'{"body": "x", "messages": []}', JSON, 400, "invalid-parameter", "both messages and body",
         parameter="body"),
    post(b'{"body": "x", "body_base64": ""}', JSON, 400, "invalid-parameter", "one of them"),
    post(b'{"key": "k"}', JSON, 400, "missing-parameter", "body_base64"),
    post(b'{"mesages": []}', JSON, 400, "invalid-parameter", "allowed: body, body_base64",
         parameter="mesages"),
    # H2: the Content-Type that `curl -d` sends by default
    post(b'{"messages": [{"body": "x"}]}', {"Content_Type": "application/x-www-form-urlencoded"},
         415, "unsupported-media-type", "application/json"),
    post(b' {\n "messages" :[', {"Content_Type": "application/x-www-form-urlencoded; a=b"},
         415, "unsupported-media-type", "--json"),
    # H5: the error names the property and its value
    post(b'{"messages": [{"body": "x", "properties": {"n": "1", "a b": 2}}]}', JSON, 400,
         "invalid-parameter", "Expected `str`", parameter='messages[0].properties["a b"]'),
    post(msgpack.packb({"messages": [{"body": b"x", "properties": {"n": 1}}]}), MSGPACK, 400,
         "invalid-parameter", "Expected `str`", parameter='messages[0].properties["n"]'),
    post(b'{"body": "x"}\n{"body": "x", "properties": {"n": 1}}', NDJSON, 400,
         "invalid-parameter", "Expected `str`", parameter='line 2.properties["n"]'),
    post(b'{"messages": [{"body": "x", "colour": "red"}]}', JSON, 400, "invalid-parameter",
         "allowed: body, body_base64, key, tag", parameter="messages[0].colour"),
    post(b"", JSON, 400, "malformed-json", "well-formed"),
    post(b'{"messages":[]}', JSON, 400, "invalid-parameter", "at least one"),
    post(message(body="x", colour="red"), JSON, 400, "invalid-parameter", "unknown field",
         parameter="messages[0].colour"),
    post(message(), JSON, 400, "missing-parameter", "body_base64", parameter="messages[0].body"),
    post(message(body=None), JSON, 400, "invalid-parameter", "got `null`",
         parameter="messages[0].body"),
    post(message(body="x", body_base64="eA=="), JSON, 400, "invalid-parameter", "one of them"),
    post(message(body_base64="eA"), JSON, 400, "invalid-parameter", "padding"),
    post(message(body_base64="e A="), JSON, 400, "invalid-parameter", "padding"),
    post(message(body_base64="eA==eA=="), JSON, 400, "invalid-parameter", "padding"),
    post(message(body_base64="e\u00e9=="), JSON, 400, "invalid-parameter", "padding"),
    post(message(body="x", key=""), JSON, 400, "invalid-parameter", "leave it out"),
    post(message(body="x", tag=""), JSON, 400, "invalid-parameter", "leave it out"),
    post(message(body="x", key=5), JSON, 400, "invalid-parameter", "Expected `str"),
    post(message(body="x", properties={"": "v"}), JSON, 400, "invalid-parameter", "name it"),
    post(message(body="x", properties={"n": 1}), JSON, 400, "invalid-parameter", "Expected `str"),
    post(message(body="x", ttl_ms=0), JSON, 400, "invalid-parameter", ">= 1",
         parameter="messages[0].ttl_ms"),
    post(message(body="x", ttl_ms=10**15 + 1), JSON, 400, "invalid-parameter", "<="),
    post(message(body="x", queue=2), JSON, 404, "unknown-queue", "0 to 1", queue=2),
    post(message(body="x", queue=-1), JSON, 400, "invalid-parameter", ">= 0"),
    post(message(body="x", queue=2**31), JSON, 400, "invalid-parameter", "<="),
    post(message(body="x", queue=True), JSON, 400, "invalid-parameter", "Expected `int"),
    post(message(body="x", key="k" * 4097), JSON, 413, "message-too-large", "max_key_bytes (4096)",
         limit=4096, limit_name="max_key_bytes", index=0),
    post(message(body="x", tag="t" * 1025), JSON, 413, "message-too-large", "max_tag_bytes"),
    post(message(body="x", properties={"n": "v" * 32 * 1024}), JSON, 413, "message-too-large",
         "max_properties_bytes"),
    post(message(body="x" * 4097), JSON, 413, "message-too-large", "send a smaller one",
         limit=4096, limit_name="max_message_bytes"),
    post(b'{"messages":[{"body":"fine"},{"body":"x","key":""}]}', JSON, 400, "invalid-parameter",
         "messages[1].key", index=1),
    # NDJSON, one message per line
    post(b'{"body":"x"}\n{"body":', NDJSON, 400, "malformed-json", "line 2"),
    post(b'{"body":"x"}\n\n{"bdy":"y"}', NDJSON, 400, "invalid-parameter", "unknown field",
         parameter="line 3.bdy"),
    post(b"\n\n", NDJSON, 400, "invalid-parameter", "at least one"),
    post(b"\n" * 201, NDJSON, 413, "request-too-large", "max_messages_per_request", limit=100),
    # msgpack
    post(b"\xc1", MSGPACK, 400, "malformed-msgpack", "encode it again"),
    post(b"", MSGPACK, 400, "malformed-msgpack", "encode it again"),
    post(b"\x81\xa8messages", MSGPACK, 400, "malformed-msgpack", "encode it again"),
    post(b"\xdd\xff\xff\xff\xff", MSGPACK, 400, "invalid-parameter", "got `array`"),
    post(b"\x81\xa8messages\xdd\xff\xff\xff\xff", MSGPACK, 413, "request-too-large",
         "max_messages_per_request", limit=100),
    post(b"\x81\xa8messages\xdd\0\0\0\x65" + b"\x81\xa4body\xc4\0" * 101, MSGPACK, 413,
         "request-too-large", "max_messages_per_request", limit=100),
    post(b"\x81\xa8messages\x91\x81\xa4body\xc6\xff\xff\xff\xff", MSGPACK, 400,
         "malformed-msgpack", "encode it again"),
    post(b"\x81\xa8messages\x91\x82\xa4body\xc0\xaaproperties\xdf\xff\xff\xff\xff", MSGPACK, 400,
         "malformed-msgpack", "encode it again"),
    post(b"\x81\xa8messages\x91\x81\xa4body" + b"\x91" * 50_000, MSGPACK, 400, "malformed-msgpack",
         "send it flat"),
    post(b"\x91" * 50_000, MSGPACK, 400, "invalid-parameter", "got `array`"),
    post(b"\x81\x01\x02", MSGPACK, 400, "invalid-parameter", "Expected `str`"),
    post(b"\xc7\x01\x05a", MSGPACK, 400, "invalid-parameter", "got `ext`"),
    post(msgpack.packb({"messages": [{"body": b"x"}]}) + b"\x01", MSGPACK, 400,
         "malformed-msgpack", "trailing characters"),
    post(msgpack.packb({"messages": [{"key": "k"}]}), MSGPACK, 400, "missing-parameter",
         "messages[0] has no body", parameter="messages[0].body"),
    post(msgpack.packb({"messages": [{"body": 5}]}), MSGPACK, 400, "invalid-parameter",
         "messages[0].body"),
    post(msgpack.packb({"messages": [{"body": b"x", "key": b"\xff"}]}), MSGPACK, 400,
         "invalid-parameter", "messages[0].key"),
    post(msgpack.packb([1]), MSGPACK, 400, "invalid-parameter", "Expected `object`"),
    # encodings and charsets
    post(b"x", {"Content_Encoding": "br"}, 415, "unsupported-encoding", "gzip"),
    post(b"no gzip", {"Content_Encoding": "gzip"}, 400, "malformed-encoding", "compress it again"),
    post(gzip.compress(b"x" * 500, mtime=0)[:-5], {"Content_Encoding": "gzip"}, 400,
         "malformed-encoding", "ends too early"),
    post(gzip.compress(b"x", mtime=0) * 2, {"Content_Encoding": "gzip"}, 400, "malformed-encoding",
         "follow its end"),
    post(gzip.compress(b"\0" * (LIMIT + 1), mtime=0), {"Content_Encoding": "gzip"}, 413,
         "request-too-large", "max_request_bytes"),
    post(b"{}", {"Content_Type": "application/json; charset=latin-1"}, 415,
         "unsupported-media-type", "UTF-8"),
    post(b"x" * (LIMIT + 1), {}, 413, "request-too-large", "max_request_bytes", limit=LIMIT),
    post(b'{"messages":[' + b'{"body":"x"},' * 100 + b'{"body":"x"}]}', JSON, 413,
         "request-too-large", "max_messages_per_request", limit=100),
    # the query
    Bad("POST", f"{MESSAGES}?queue=2", 404, "unknown-queue", "0 to 1", b"raw"),
    Bad("POST", f"{MESSAGES}?queue=x", 400, "invalid-parameter", "whole number", b"raw"),
    Bad("POST", f"{MESSAGES}?key=k", 400, "invalid-parameter", "only for a raw body",
        message(body="x"), JSON),
    Bad("POST", f"{MESSAGES}?durability=maybe", 400, "invalid-parameter", "fsync or written", b"x"),
    Bad("POST", f"{MESSAGES}?key={'k' * 4097}", 413, "message-too-large", "max_key_bytes", b"x"),
    # idempotent producers
    post(b"x", {"Holdfast_Producer_Id": "p"}, 400, "missing-parameter", "together, or none",
         parameter="Holdfast-Producer-Epoch"),
    post(b"x", {"Holdfast_Producer_Id": "0", "Holdfast_Producer_Epoch": "0",
                "Holdfast_Producer_Sequence": "0"}, 400, "invalid-parameter", "2^63-1"),
    post(b"x", {"Holdfast_Producer_Id": "a b", "Holdfast_Producer_Epoch": "0",
                "Holdfast_Producer_Sequence": "0"}, 400, "invalid-parameter", "2^63-1"),
    post(b"x", {"Holdfast_Producer_Id": "p", "Holdfast_Producer_Epoch": str(2**32),
                "Holdfast_Producer_Sequence": "0"}, 400, "invalid-parameter", "whole number"),
    post(encode_batch([b"x"], queue_id=0), {**BATCH, "Holdfast_Producer_Id": "p"}, 400,
         "invalid-parameter", "into the batches"),
]  # fmt: skip

SETTINGS: Sequence[Bad] = [
    Bad("PUT", TOPIC, 409, "topic-conflict", "PATCH", b'{"queues":3}', JSON,
        {"field": "queues", "given": 3, "existing": 2}),
    Bad("PUT", "/v1/topics/new", 400, "invalid-parameter", ">= 1", b'{"queues":0}', JSON),
    Bad("PUT", "/v1/topics/new", 400, "invalid-parameter", "unknown field", b'{"queue":1}', JSON),
    Bad("PUT", "/v1/topics/new", 400, "invalid-parameter", "fsync or written",
        b'{"durability":"no"}', JSON, {"parameter": "durability"}),
    Bad("PUT", "/v1/topics/new", 415, "unsupported-media-type", "Content-Type: application/json",
        b"{}", {"Content_Type": "text/html"}),
    Bad("PATCH", TOPIC, 422, "invalid-topic-change", "added", b'{"queues":1}', JSON),
    Bad("PATCH", "/v1/topics/unknown", 404, "unknown-topic", "create it", b'{"queues":9}', JSON),
    Bad("PUT", OFFSETS, 404, "unknown-queue", "0 to 1", b'{"offsets":{"2":0}}', JSON),
    Bad("PUT", OFFSETS, 400, "invalid-parameter", "queue numbers", b'{"offsets":{"00":0}}', JSON),
    Bad("PUT", OFFSETS, 400, "invalid-parameter", ">= 0", b'{"offsets":{"0":-1}}', JSON),
    Bad("PUT", OFFSETS, 400, "missing-parameter", "offsets", b"", JSON),
    Bad("PUT", OFFSETS, 412, "offsets-changed", "read them again", b'{"offsets":{"0":3}}',
        {**JSON, "If_Match": '"7"'}, {"version": 1}),
    Bad("PUT", OFFSETS, 412, "offsets-changed", "read them again", b'{"offsets":{"0":3}}',
        {**JSON, "If_None_Match": "*"}),
    Bad("PUT", "/v1/groups/new/topics/orders/offsets", 412, "offsets-changed", "read them again",
        b'{"offsets":{"0":3}}', {**JSON, "If_Match": "*"}),
    Bad("PUT", OFFSETS, 400, "invalid-parameter", "ETag", b'{"offsets":{"0":3}}',
        {**JSON, "If_Match": "1"}),
    Bad("POST", f"{OFFSETS}/reset", 400, "invalid-parameter", "to", b'{"to":"middle"}', JSON),
    Bad("POST", f"{OFFSETS}/reset", 404, "unknown-queue", "0 to 1",
        b'{"to":"latest","queues":[5]}', JSON),
]  # fmt: skip


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def api() -> AsyncIterator[Api]:
    async with running_api(max_request_bytes=LIMIT, max_messages_per_request=100) as api:
        await api.store.topics.create("orders", queues=2, fields={"max_message_bytes": 4096})
        for number in range(6):
            await api.publish("orders", {"body": f"message {number}", "queue": 0})
        api.trim(0, 2)
        topic = api.store.table.get("orders")
        await api.store.offsets.store_offsets("g", topic, {0: 2})
        yield api


def snapshot(store: MessageStore) -> tuple[object, ...]:
    """Return all state that a refused request must not change."""
    topics = store.table.all()
    return (
        topics,
        [store.reading.queue_states(topic) for topic in topics],
        {group: store.offsets.group_topics(group) for group in store.table.groups()},
    )


def _title(bad: Bad) -> str:
    body = "" if bad.body is None else f" {bad.body[:30]!r}"
    return f"{bad.method} {bad.path[:60]}{body}"


@pytest.mark.parametrize("bad", [*NAMES, *PATHS, *PULLS, *PUBLISHES, *SETTINGS], ids=_title)
@pytest.mark.asyncio(loop_scope="module")
async def test_bad_input_is_refused_and_changes_nothing(api: Api, bad: Bad) -> None:
    # L21
    before = snapshot(api.store)

    answer = await api.ask(bad.method, bad.path, bad.body, **bad.headers)

    assert (answer.status, answer.problem) == (bad.status, bad.problem), answer.body
    problem = answer.json()
    assert bad.mend in problem["detail"]
    for name, value in bad.members.items():
        assert problem[name] == value
    assert snapshot(api.store) == before


LONG = "x" * 20_000


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("PUT", TOPIC, {LONG: 1}),
        ("PUT", TOPIC, {"durability": LONG}),
        ("POST", MESSAGES, {"messages": [{"body": "x", LONG: 1}]}),
        ("PUT", "/v1/groups/new", {"topics": {LONG: {}}}),
        ("PUT", "/v1/groups/new", {"topics": {"orders": {}}, "dead_letter_topic": LONG}),
        ("GET", f"{PULL}?{LONG}=1", None),
    ],
)
@pytest.mark.asyncio(loop_scope="module")
async def test_a_problem_shortens_the_wrong_value(
    api: Api, method: str, path: str, body: object
) -> None:
    """Otherwise an error for 16 MiB of bad input would make the broker hold several times as
    much."""
    sent = None if body is None else json.dumps(body).encode()
    answer = await api.ask(method, path, sent, **JSON)
    assert answer.status == 400
    assert len(answer.body) < 4096
