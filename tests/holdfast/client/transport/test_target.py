import pytest

from holdfast.client.transport.target import Target, check_token


@pytest.mark.parametrize("url", ["127.0.0.1:8711", "ftp://x", "", "http://"])
def test_an_invalid_address_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="looks like http"):
        Target.parse(url, None, None)


@pytest.mark.parametrize("url", ["http://me:secret@broker:8711", "ftp://secret@broker"])
def test_an_address_with_a_password_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="give a token") as raised:
        Target.parse(url, None, None)
    assert "secret" not in str(raised.value)


@pytest.mark.parametrize("token", ["", " ", "two words", "line\nbreak", "zé", "a\x00b", "a\x7f"])
def test_an_invalid_token_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="no token has") as raised:
        Target.parse("http://127.0.0.1:1", token, None)
    assert not token.strip() or token not in str(raised.value)


def test_blanks_around_a_token_are_not_part_of_it() -> None:
    assert check_token(" token\n") == "token"
