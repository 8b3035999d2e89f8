import pytest

from holdfast.amqp.sasl import FailureLimit, offered_mechanisms, token_in


@pytest.mark.parametrize(
    ("is_required", "offers_external", "offered"),
    [
        (False, False, ("ANONYMOUS", "PLAIN")),
        (True, False, ("PLAIN", "XOAUTH2", "OAUTHBEARER")),
        (True, True, ("EXTERNAL", "PLAIN", "XOAUTH2", "OAUTHBEARER")),
    ],
)
def test_mechanisms_are_offered_that_can_admit_the_client(
    is_required: bool, offers_external: bool, offered: tuple[str, ...]
) -> None:
    found = offered_mechanisms(is_required=is_required, offers_external=offers_external)
    assert found == offered


@pytest.mark.parametrize(
    ("mechanism", "response", "token"),
    [
        ("PLAIN", b"\x00user\x00secret", "secret"),
        ("PLAIN", b"other\x00user\x00secret", "secret"),
        ("PLAIN", b"\x00\x00secret", "secret"),
        ("PLAIN", b"\x00user\x00", None),
        ("PLAIN", b"\x00secret", None),
        ("PLAIN", b"", None),
        ("PLAIN", b"\x00user\x00a\x00b", None),
        ("PLAIN", b"\x00user\x00\xff", None),
        ("XOAUTH2", b"user=me\x01auth=Bearer secret\x01\x01", "secret"),
        ("XOAUTH2", b"user=me\x01auth=bearer secret\x01\x01", "secret"),
        ("XOAUTH2", b"user=me\x01\x01", None),
        ("XOAUTH2", b"auth=Bearer a\x01auth=Bearer b\x01\x01", None),
        ("OAUTHBEARER", b"n,a=me,\x01host=h\x01port=1\x01auth=Bearer secret\x01\x01", "secret"),
        ("OAUTHBEARER", b"n,,\x01auth=Bearer \x01\x01", None),
    ],
)
def test_the_token_is_found_in_a_response(
    mechanism: str, response: bytes, token: str | None
) -> None:
    assert token_in(mechanism, response) == token


def test_a_client_that_fails_often_waits() -> None:
    limit = FailureLimit(most=3, clients=2)
    assert [limit.delay_s("a", 10.0 + index / 10) for index in range(5)] == [0, 0, 0, 1, 1]
    assert limit.delay_s("b", 10.5) == 0  # another client
    assert limit.delay_s("a", 11.0) == 0  # another second
    assert [limit.delay_s(name, 11.0) for name in ("c", "d")] == [0, 0]  # "b" is forgotten
    assert [limit.delay_s("a", 11.0) for _ in range(4)] == [0, 0, 0, 1]
