"""Which heads are stored, and which requests are served from them."""

from typing import Any

import pytest
from aiohttp import hdrs
from multidict import CIMultiDict

from holdfast.http_api.wire.head_cache import (
    MAX_HEAD_BYTES,
    MAX_HEADS,
    MAX_HEADS_PER_CLIENT,
    MAX_SEEN,
    SEQUENCE,
    HeadCache,
)

CLIENT = "192.0.2.1"


class Message:
    """The parts of aiohttp's RawRequestMessage that the cache uses."""

    def __init__(self, data: bytes, should_close: bool = False) -> None:
        lines = data.partition(b"\r\n\r\n")[0].decode("latin-1").split("\r\n")
        self.method = lines[0].split()[0]
        self.headers = CIMultiDict(
            (name, value) for name, _, value in (line.partition(": ") for line in lines[1:])
        )
        self.should_close = should_close


def pull(offset: object, *headers: str) -> bytes:
    lines = (f"GET /v1/q/messages?offset={offset}&wait_ms=5 HTTP/1.1", "Host: x", *headers)
    return "".join(f"{line}\r\n" for line in (*lines, "")).encode()


def post(body: bytes, path: str = "/v1/t/messages") -> bytes:
    return b"POST %s HTTP/1.1\r\nContent-Length: %d\r\n\r\n%s" % (path.encode(), len(body), body)


def numbered(sequence: object, *headers: str, body: bytes = b"abc") -> bytes:
    """A publish of a producer that numbers its requests."""
    lines = ("POST /v1/t/messages HTTP/1.1", f"{SEQUENCE}: {sequence}", *headers)
    head = "".join(f"{line}\r\n" for line in (*lines, f"Content-Length: {len(body)}", ""))
    return head.encode() + body


def store(cache: HeadCache, data: bytes, client: str = CLIENT, **message: Any) -> bool:
    """Send a request twice. Return whether its head was stored."""
    parsed: Any = Message(data, **message)
    assert cache.consider(client, data, parsed) is None, "the first time"
    head = cache.consider(client, data, parsed)
    if head is not None:
        cache.store(head, "plan")
    return head is not None


def test_a_head_is_found_after_its_second_time_with_any_body_of_its_length() -> None:
    cache = HeadCache()
    assert cache.find(CLIENT, post(b"abc")) is None
    assert store(cache, post(b"abc"))
    match = cache.find(CLIENT, post(b"xyz"))
    assert match is not None
    assert (match.head.plan, match.offset, match.target) == ("plan", None, None)
    assert post(b"xyz")[match.end :] == b"xyz"
    assert cache.find(CLIENT, post(b"abcd")) is None
    assert cache.find(CLIENT, post(b"abc")[:-1]) is None, "the body is incomplete"
    assert cache.find(CLIENT, post(b"abc") + b"P") is None, "the next request follows"
    assert cache.find(CLIENT, post(b"abc", "/v1/t/messageS")) is None
    assert cache.find("192.0.2.2", post(b"abc")) is None, "each client has its own heads"


def test_the_offset_of_a_pull_may_differ() -> None:
    cache = HeadCache()
    assert store(cache, pull(5))
    for offset in (0, 6, 10**17, 10**18 - 1):
        match = cache.find(CLIENT, pull(offset))
        assert match is not None
        assert match.offset == offset
        assert match.target == f"/v1/q/messages?offset={offset}&wait_ms=5"
    for other in (10**18, "007", "-1", "", "5x", "%35", "+5", " 5"):
        assert cache.find(CLIENT, pull(other)) is None, other


def test_only_the_request_line_has_an_offset() -> None:
    cache = HeadCache()
    plain = b"GET /v1/q HTTP/1.1\r\nReferer: http://x/?offset=%d \r\n\r\n"
    assert store(cache, plain % 5)
    assert cache.find(CLIENT, plain % 6) is None
    assert cache.find(CLIENT, plain % 5) is not None
    posted = b"POST /v1/q?offset=%d HTTP/1.1\r\n\r\n"
    assert store(cache, posted % 5)
    assert cache.find(CLIENT, posted % 6) is None


def test_the_sequence_of_a_publish_may_differ() -> None:
    cache = HeadCache()
    assert store(cache, numbered(5))
    assert len(cache) == 1
    for sequence in ("0", "6", "007", "9" * 19):
        match = cache.find(CLIENT, numbered(sequence, body=b"xyz"))
        assert match is not None
        assert (match.offset, match.target, match.sequence) == (None, None, sequence)
        assert numbered(sequence, body=b"xyz")[match.end :] == b"xyz"
    for other in ("9" * 20, "-1", "", "5x", "+5", " 5", "5 ", "5\r\nX: 5"):
        assert cache.find(CLIENT, numbered(other)) is None, other
    assert cache.find(CLIENT, numbered(5, body=b"abcd")) is None


def test_only_the_header_itself_is_a_sequence() -> None:
    for other in (f"X{SEQUENCE}: 5", f"X: {SEQUENCE}: 5", f"{SEQUENCE}:5"):
        cache = HeadCache()
        plain = "POST /v1/q HTTP/1.1\r\n%s\r\n\r\n"
        assert store(cache, (plain % other).encode())
        assert cache.find(CLIENT, (plain % other.replace("5", "6")).encode()) is None
        assert cache.find(CLIENT, (plain % other).encode()) is not None
    cache = HeadCache()
    in_body = numbered("x", body=f"\r\n{SEQUENCE}: 5\r\n".encode())
    assert store(cache, in_body)
    match = cache.find(CLIENT, in_body)
    assert match is not None
    assert match.sequence is None


@pytest.mark.parametrize("other", ["5", "", "x"])
@pytest.mark.parametrize("name", [SEQUENCE, SEQUENCE.lower()])
def test_heads_with_two_sequences_are_not_stored(name: str, other: str) -> None:
    assert not store(HeadCache(), numbered(5, f"{name}: {other}"))


@pytest.mark.parametrize(
    "name",
    [hdrs.TRANSFER_ENCODING, hdrs.EXPECT, hdrs.UPGRADE, hdrs.CONTENT_ENCODING],
)
def test_unusual_heads_are_not_stored(name: str) -> None:
    assert not store(HeadCache(), pull(5, f"{name}: x"))


def test_heads_that_end_the_connection_are_not_stored() -> None:
    assert not store(HeadCache(), pull(5), should_close=True)


def test_only_ascii_heads_are_stored() -> None:
    assert not store(HeadCache(), pull(5, "X: \u00e9"))


def test_long_heads_are_not_stored() -> None:
    length = MAX_HEAD_BYTES - len(pull(5, "X: "))
    for more, is_stored in ((-1, True), (0, True), (1, False)):
        assert store(HeadCache(), pull(5, "X: " + "x" * (length + more))) is is_stored


def test_a_client_with_too_many_heads_loses_its_oldest() -> None:
    cache = HeadCache()
    assert store(cache, post(b"", "/other"), client="192.0.2.2")
    for number in range(MAX_HEADS_PER_CLIENT):
        assert store(cache, post(b"", f"/{number}"))
    assert len(cache) == MAX_HEADS_PER_CLIENT + 1
    assert cache.find(CLIENT, post(b"", "/0")) is not None
    assert store(cache, post(b"", "/more"))
    assert len(cache) == MAX_HEADS_PER_CLIENT + 1
    assert cache.find(CLIENT, post(b"", "/0")) is None
    assert cache.find(CLIENT, post(b"", "/1")) is not None
    assert cache.find("192.0.2.2", post(b"", "/other")) is not None


def test_with_too_many_heads_in_total_the_oldest_client_loses_one() -> None:
    cache = HeadCache()
    for number in range(MAX_HEADS):
        assert store(cache, post(b""), client=f"client {number}")
    assert len(cache) == MAX_HEADS
    assert cache.find("client 0", post(b"")) is not None
    assert store(cache, post(b""), client="one more")
    assert len(cache) == MAX_HEADS
    assert cache.find("client 0", post(b"")) is None
    assert cache.find("client 1", post(b"")) is not None
    assert cache.find("one more", post(b"")) is not None


def test_a_stored_head_gets_a_new_plan() -> None:
    cache = HeadCache()
    assert store(cache, post(b""))
    message: Any = Message(post(b""))
    head = cache.consider(CLIENT, post(b""), message)
    assert head is not None
    cache.store(head, "a later plan")
    match = cache.find(CLIENT, post(b""))
    assert match is not None
    assert match.head.plan == "a later plan"
    assert len(cache) == 1


def test_few_heads_that_arrived_once_are_remembered() -> None:
    cache = HeadCache()
    message: Any = Message(post(b""))
    for number in range(MAX_SEEN + 1):
        assert cache.consider(CLIENT, post(b"", f"/{number}"), message) is None
    assert len(cache._seen) == 1
