import pytest
from multidict import CIMultiDict

from holdfast.http_api.wire.aiohttp_parser import MAX_FIELD_BYTES
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import client_of, list_header, single_header
from tests.support.clients.raw_http import raw_connection
from tests.support.servers.api_server import Api

MESSAGES = b"POST /v1/topics/orders/messages"
OFFSETS = b"PUT /v1/groups/g/topics/orders/offsets"
PRODUCER = b"Holdfast-Producer-Epoch: 0\r\nHoldfast-Producer-Sequence: 0\r\n"


def test_a_list_header_joins_all_its_lines() -> None:
    headers = CIMultiDict([("Accept", "a/b"), ("Other", "x"), ("accept", "c/d, e/f")])
    assert list_header(headers, "Accept") == "a/b, c/d, e/f"
    assert list_header(headers, "Via") == ""


@pytest.mark.parametrize(("more", "is_refused"), [(-1, False), (0, False), (1, True)])
def test_the_lines_of_a_list_header_have_a_common_limit(more: int, is_refused: bool) -> None:
    """Otherwise 128 lines would be a megabyte to parse."""
    second = "b" * (MAX_FIELD_BYTES - len("a, ") + more)
    headers = CIMultiDict([("Accept", "a"), ("Accept", second)])
    if is_refused:
        with pytest.raises(Problem, match="header-too-large"):
            list_header(headers, "Accept")
    else:
        assert list_header(headers, "Accept") == f"a, {second}"


def test_a_single_header_may_occur_once() -> None:
    headers = CIMultiDict([("If-Match", '"1"'), ("Other", "x"), ("other", "x")])
    assert single_header(headers, "if-match") == '"1"'
    assert single_header(headers, "If-None-Match") is None
    with pytest.raises(Problem, match="given more than once"):
        single_header(headers, "Other")


@pytest.mark.parametrize(
    ("request_line", "lines", "answer", "said"),
    [
        # The second line counts, too.
        (b"GET /v1/topics", b"Accept: text/html\r\nAccept: application/json\r\n", b"200",
         b"topics"),
        (MESSAGES, b"Content-Encoding: identity\r\nContent-Encoding: gzip\r\n", b"415",
         b"unsupported-encoding"),
        (MESSAGES, b"Content-Encoding: gzip\r\nContent-Encoding: gzip\r\n", b"415",
         b"unsupported-encoding"),
        # It is unclear which of them applies.
        (MESSAGES, b"Holdfast-Producer-Id: a\r\nHoldfast-Producer-Id: b\r\n" + PRODUCER, b"400",
         b"Holdfast-Producer-Id is given more than once"),
        (OFFSETS, b'If-Match: *\r\nIf-Match: "1"\r\n', b"400", b"If-Match is given more than once"),
    ],
)  # fmt: skip
async def test_no_line_of_a_header_is_ignored(
    api: Api, request_line: bytes, lines: bytes, answer: bytes, said: bytes
) -> None:
    await api.store.topics.create("orders")
    body = b"" if request_line.startswith(b"GET") else b'{"offsets":{}}'
    async with raw_connection(api.server.port) as connection:
        await connection.send(
            request_line + b" HTTP/1.1\r\nHost: x\r\nConnection: close\r\n" + lines
            + b"Content-Length: %d\r\n\r\n" % len(body) + body
        )  # fmt: skip
        received = await connection.closed()
    assert received.startswith(b"HTTP/1.1 " + answer), received
    assert said in received


@pytest.mark.parametrize(
    ("host", "client"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("::1", "::1"),
        ("::ffff:10.0.0.1", "10.0.0.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2::9", "2001:db8:1:2::/64"),
        ("2001:db8:1:3::9", "2001:db8:1:3::/64"),
        ("fe80::1%eth0", "fe80::/64"),
        ("", ""),
        ("a-unix-socket", "a-unix-socket"),
    ],
)
def test_an_ipv6_network_or_an_ipv4_address_is_one_client(host: str, client: str) -> None:
    assert client_of(host) == client
