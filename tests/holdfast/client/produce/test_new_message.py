import pytest

from holdfast.client.produce.new_message import MAX_SHARED_BYTES, NewMessage, can_share_request


@pytest.mark.parametrize(
    ("message", "shares"),
    [
        (NewMessage(b"x"), True),
        (NewMessage(b"x", "k", "t", {"a": "b"}, 3, 1000, 9), True),
        (NewMessage(b"x", properties={}), True),
        (NewMessage(b"x", ""), False),
        (NewMessage(b"x", tag=""), False),
        (NewMessage(b"x", "k" * 4097), False),
        (NewMessage(b"x", tag="t" * 1025), False),
        (NewMessage(b"x", "\ud800"), False),
        (NewMessage(b"x", 1), False),  # type: ignore[arg-type]
        (NewMessage(b"x", properties={"": "v"}), False),
        (NewMessage(b"x", properties={"n": 1}), False),  # type: ignore[dict-item]
        (NewMessage(b"x", properties={"n": "v" * 32 * 1024}), False),
        (NewMessage(b"x", queue=-1), False),
        (NewMessage(b"x", queue="0"), False),  # type: ignore[arg-type]
        (NewMessage(b"x", "k", queue=-1), False),
        (NewMessage(b"x", ttl_ms=-1), False),
        (NewMessage(b"x", ttl_ms=0), False),
        (NewMessage(b"x", priority=10), False),
        (NewMessage(b"x", ttl_ms=1.5), False),  # type: ignore[arg-type]
    ],
)
def test_an_invalid_message_does_not_share_a_request(message: NewMessage, shares: bool) -> None:
    assert can_share_request(message, 10) is shares


def test_a_large_message_does_not_share_a_request() -> None:
    assert can_share_request(NewMessage(b"x"), MAX_SHARED_BYTES)
    assert not can_share_request(NewMessage(b"x"), MAX_SHARED_BYTES + 1)
