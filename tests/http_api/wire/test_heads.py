"""Whether a head has begun after complete requests: one rule for each kind of request end."""

import pytest

from holdfast.http_api.wire.heads import head_begins

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
POST = b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
CHUNKED = POST + b"Transfer-Encoding: chunked\r\n\r\n2\r\nab\r\n0\r\n\r\n"

BODIES = [b"", b"x", b"ends with a line\r\n", b"x" * 5000]


def post(body: bytes) -> bytes:
    return POST + b"Content-Length: %d\r\n\r\n" % len(body) + body


#: Request ends, and for each the length of the body that it contains.
ENDS = [
    (HEALTH, 0),
    (HEALTH + HEALTH, 0),
    (HEALTH[10:], 0),
    (CHUNKED, 0),
    (CHUNKED[-3:], 0),
    *((post(body), len(body)) for body in BODIES),
    *((HEALTH + post(body), len(body)) for body in BODIES),
]


@pytest.mark.parametrize(("data", "known_bytes"), ENDS)
@pytest.mark.parametrize("behind", [b"", b"\r\n"])
def test_the_end_of_a_request_is_not_the_beginning_of_a_head(
    data: bytes, known_bytes: int, behind: bytes
) -> None:
    assert not head_begins(data + behind, known_bytes)


@pytest.mark.parametrize(("data", "known_bytes"), ENDS)
def test_each_beginning_of_a_head_after_a_request_is_detected(
    data: bytes, known_bytes: int
) -> None:
    for length in range(1, len(HEALTH)):
        assert head_begins(data + HEALTH[:length], known_bytes)


@pytest.mark.parametrize("body", [b"\r\n\r\n", b"has\r\n\r\nan empty line"])
def test_a_body_with_an_empty_line_is_never_taken_for_a_head(body: bytes) -> None:
    """The body may contain another body of exactly that length; its end must not look like a
    head."""
    assert not head_begins(post(body), len(body))


@pytest.mark.parametrize("data", [b"", b"\n", b"\r\n", b"\r\n\r\n", b"\r\n" * 5])
def test_empty_lines_are_no_head(data: bytes) -> None:
    assert not head_begins(data)


def test_a_head_in_pieces_has_begun_until_it_ends() -> None:
    for length in range(1, len(HEALTH)):
        assert head_begins(HEALTH[:length])
        assert not head_begins(HEALTH[length:])


@pytest.mark.parametrize("known_bytes", [1, 5, 5000])
@pytest.mark.parametrize("end", [b"\n", b"\r\n", b"\n\r\n"])
def test_no_head_is_detected_after_a_body_whose_head_arrived_before(
    known_bytes: int, end: bytes
) -> None:
    assert not head_begins(end + b"x" * known_bytes, known_bytes)
    assert not head_begins(b"x" * 5, known_bytes)
