"""Fuzz the API's parsing of requests: bodies in every text format, queries, headers, paths.

Each input is refused with a Problem that can be sent, or is accepted. Accepted values can be
stored, and read back as they were sent. The first byte of the input selects the parser.
"""

from collections.abc import Callable
from dataclasses import replace

import msgpack
import msgspec
from msgspec import Struct
from multidict import MultiDict
from yarl import URL

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_check import MessageLimits, check_batch
from holdfast.commitlog.format.batch_encoding import as_batch
from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import Topic, TopicConfig, check_name
from holdfast.groups.config import GroupsConfig
from holdfast.groups.settings import GroupSettings
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints.groups import check_settings
from holdfast.http_api.endpoints.publish import make_rows
from holdfast.http_api.endpoints.publish_request import (
    MessageToStore,
    check_messages,
    check_queues,
    from_json,
    from_lines,
    from_msgpack,
    request_producer,
)
from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.codecs import decode, encode, media_type, negotiate
from holdfast.http_api.routing.params import parse_pairs, query_pairs, read_params
from holdfast.http_api.routing.router import Router
from holdfast.http_api.schemas.groups import OffsetsRequest, ResetRequest
from holdfast.http_api.schemas.leases import (
    AckRequest,
    ExtendRequest,
    LeaveRequest,
    NackRequest,
    ReceiveRequest,
    RejectRequest,
    ReleaseRequest,
    SeekRequest,
)
from holdfast.http_api.schemas.messages import TopicSettings
from holdfast.http_api.wire.problems import Problem, problem_for
from tests.fuzz.wire import check_wire, wire_seeds

LIMITS = MessageLimits(4096, 64, 32, 256)
MAX_MESSAGES = 50
DICTIONARY = [
    *('{"messages":[', '"body"', '"body_base64"', '"key"', '"tag"', '"properties"', '"queue"'),
    *('"ttl_ms"', '"priority"', "null", "true", "1e999", "-1", "18446744073709551616"),
    *("\\ud800", "{}", "[]", '""', '{"":""}'),
    *("offset=", "from=earliest", "tag=", "filter=", "%00", "%FF", "%2f", "wait_ms=", "0:12,1:4"),
    *("charset=utf-8", ";q=0.5", "/v1/topics/", "/queues/", "application/json", "*/*"),
]

_CONFIG = HttpConfig()
_LIMITS = GroupsConfig()
_TOPIC = Topic("t", 1, 4, TopicConfig("fsync", None, None, 4096), 0)
_ROUTER = Router(ROUTES)
_OFFERS = ("application/json", "application/msgpack")


def seeds() -> list[bytes]:
    """Return request parts of each kind, valid and invalid."""
    message = {"key": "k", "tag": "t", "properties": {"a": "b"}, "queue": 1, "ttl_ms": 5}
    message |= {"priority": 9}
    text = msgspec.json.encode({"messages": [{"body": "x", **message}, {"body_base64": "/w=="}]})
    line = msgspec.json.encode({"body": "x", **message})
    packed = msgpack.packb({"messages": [{"body": b"\xff", **message}, {"body": "x"}]})
    return [
        b"\0" + text,
        b"\1" + line + b"\n\n" + line,
        b"\2" + packed,
        b"\2\x81\xa8messages\xdd\xff\xff\xff\xff",
        b'\0{"messages":[{"body":"x","properties":{"a":"b"}}]}',
        b'\0{"messages":[{"body":"x","key":"k"}]}',
        b'\1{"body":"x","tag":"t"}',
        b"\3application/json\n" + b'{"queues":3,"retention_ms":null,"durability":"written"}',
        b'\3application/json\n{"queues":3,"priority_levels":10}',
        b"\3application/msgpack\n" + msgpack.packb({"offsets": {"0": 7}}),
        b'\3\n{"to":{"timestamp_ms":5},"queues":[0],"dry_run":true}',
        b'\3\n{"topics":{"t":{"weight":4,"filter":"a,b"}},"fairness":{"cost":"time"},"mode":"keyed"}',
        b'\3\n{"lease_ms":5000,"backoff_ms":[0,9],"dead_letter_topic":null,"max_attempts":3}',
        b'\3\n{"member":"m","max_messages":5,"wait_ms":1,"topics":["t"],"attempt_id":"a"}',
        b'\3\n{"receipts":["AQAAAA"],"delay_ms":5,"used_ms":1.5}',
        b'\3\n{"to":{"t":{"0":12}}}',
        b"\4offset=5&wait_ms=10&tag=a%2Cb&filter=a%3D1",
        b"\4from=earliest&from=latest&max_bytes=99999999999999999999999",
        b"\4offsets=0:1,1:2&key=%C3%A9&x=%FF",
        b"\5p\n1\n2",
        b"\5\xb2\n\n" + b"9" * 40,
        b"\6/v1/topics/a%2fb/queues/0/messages",
        b"\6/v1/groups/..%2f/topics/%00/offsets",
        b"\7application/json;q=0.5, */*;q=2\napplication/json; charset=latin-1",
        b"\x080:12,1:40",
        b"\x09\0\0\1\2\1\4\x10",
        b"\x09\1\0\1\xff\0\0\1",
        b"\x09\2\0\1\3\2",
        *(b"\x0a" + bytes([size]) + wire for size in (0, 1, 7) for wire in wire_seeds()),
    ]


def check(data: bytes) -> None:
    """Raise for any behaviour that the API must not show."""
    if not data:
        return
    try:
        _CHECKS[data[0] % len(_CHECKS)](data[1:])
    except Problem as problem:
        _can_be_sent(problem)
    except StoreError as error:
        _can_be_sent(problem_for(error))


def _can_be_sent(problem: Problem) -> None:
    assert problem.slug != "internal-error", problem.__context__
    sent = msgspec.json.decode(problem.encode())
    assert sent["detail"]
    assert sent["status"] == problem.kind.status < 500
    for name, value in problem.all_headers():
        assert name.isascii()
        assert value.isprintable()
        value.encode("latin-1")


def _messages(decode_body: Callable[[bytes, int], list[MessageToStore]]) -> Callable[[bytes], None]:
    def check_body(data: bytes) -> None:
        messages = decode_body(data, MAX_MESSAGES)
        assert 1 <= len(messages) <= MAX_MESSAGES
        check_messages(messages, LIMITS)
        check_queues(messages, replace(_TOPIC, queue_count=2**31, priority_levels=2))
        batch = as_batch(make_rows(messages, 0, 1_700_000_000_000_000, None))
        check_batch(Batch.decode(batch.block), LIMITS)
        for row, message in enumerate(messages):
            assert batch.body(row) == message.body
            assert batch.key(row) == message.key
            assert batch.tag(row) == message.tag
            assert batch.properties(row) == (message.properties or {})

    return check_body


_FIELDS = (
    *("body", "body_base64", "key", "tag", "properties", "queue", "ttl_ms", "priority", "other"),
)
_VALUES: tuple[object, ...] = (
    *("", "x", "é\0", "k" * 33, "/w==", None, 0, 1, -1, 2**31, 10**15 + 1, True, 0.5, [], {}),
    *({"": "b"}, {"a": "b"}, {"a": 1}, {"a": "b" * 300}, {"é": "\0", "b": ""}),
)


def _built(data: bytes) -> None:
    """Check well-formed messages whose fields and values the bytes select."""
    messages: list[dict[str, object]] = [{}]
    for choice, value in zip(data[1::2], data[2::2], strict=False):
        if choice >= 0xF0:
            messages.append({})
        else:
            messages[-1][_FIELDS[choice % len(_FIELDS)]] = _VALUES[value % len(_VALUES)]
    match data[0] % 3 if data else 0:
        case 0:
            _messages(from_json)(msgspec.json.encode({"messages": messages}))
        case 1:
            _messages(from_lines)(msgspec.json.Encoder().encode_lines(messages))
        case 2:
            _messages(from_msgpack)(msgspec.msgpack.encode({"messages": messages}))


_BODIES: tuple[type[Struct], ...] = (
    *(TopicSettings, OffsetsRequest, ResetRequest, GroupSettings, SeekRequest, LeaveRequest),
    *(ReceiveRequest, AckRequest, NackRequest, ReleaseRequest, ExtendRequest, RejectRequest),
)


def _typed(data: bytes) -> None:
    content_type, _, body = data.partition(b"\n")
    problems = []
    for type_ in _BODIES:
        try:
            value = decode(_header(content_type), body, type_)
        except Problem as problem:
            problems.append(problem)
            continue
        for media in _OFFERS:
            try:
                encoded = encode(media, value)
            except OverflowError:
                continue  # msgpack has no integer of this size, and a limit refuses it
            assert decode(media, encoded, type_) == value
        if isinstance(value, GroupSettings):
            try:
                check_settings(value, _LIMITS)
            except Problem as problem:
                problems.append(problem)
            except StoreError as error:
                problems.append(problem_for(error))
    for each in problems:
        _can_be_sent(each)


def _query(data: bytes) -> None:
    raw = data.decode("ascii", errors="ignore")  # the parser refuses all other bytes
    url = URL.build(path="/", query_string=raw, encoded=True)
    pairs = list(query_pairs(raw))
    assert pairs == list(url.query.items())
    problems = []
    for route in ROUTES:
        try:
            read_params(route.params, pairs, _CONFIG)
        except Problem as problem:
            problems.append(problem)
    for each in problems:
        _can_be_sent(each)


def _producer(data: bytes) -> None:
    names = ("Holdfast-Producer-Id", "Holdfast-Producer-Epoch", "Holdfast-Producer-Sequence")
    parts = [_header(part) for part in data.split(b"\n")]
    headers = MultiDict(zip(names, parts, strict=False))
    producer = request_producer(headers)
    if producer is not None:
        assert 1 <= producer.producer_id < 2**63
        assert 0 <= producer.epoch < 2**32
        assert 0 <= producer.sequence < 2**63


def _path(data: bytes) -> None:
    _, values = _ROUTER.find("GET", _header(data))
    for name, value in values.items():
        if name in ("topic", "group"):
            assert check_name(name, value) == value
            assert value.isascii()
            assert "/" not in value


def _media(data: bytes) -> None:
    accept, _, content_type = data.partition(b"\n")
    assert negotiate(_header(accept), _OFFERS) in _OFFERS
    media_type(_header(content_type))


def _pairs(data: bytes) -> None:
    offsets = parse_pairs("offsets", _header(data), _TOPIC)
    assert offsets
    assert all(0 <= queue < 4 for queue in offsets)


def _header(data: bytes) -> str:
    """Return bytes of a request's head as aiohttp passes them."""
    return data.decode(errors="surrogateescape")


def _wire(data: bytes) -> None:
    """Check a whole connection; the first byte is the size of the pieces."""
    if data:
        check_wire(data[1:], data[0] or 4096)


_CHECKS: tuple[Callable[[bytes], None], ...] = (
    _messages(from_json),
    _messages(from_lines),
    _messages(from_msgpack),
    _typed,
    _query,
    _producer,
    _path,
    _media,
    _pairs,
    _built,
    _wire,
)
