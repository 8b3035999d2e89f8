"""The allowed names; all others are refused."""

import pytest

from holdfast.consumequeue.errors import InvalidName
from holdfast.consumequeue.topics import check_name

GOOD = ["a", "A-Z_0.9", "...", "..a", "_own", "x" * 127, "0", "-", "orders.v1"]
BAD = [
    "",
    ".",
    "..",
    "x" * 128,
    "a/b",
    "/",
    "../../etc/passwd",
    "a\0b",
    "\0",
    "a\n",
    "a b",
    "a%2fb",
    "é",
    "\u0661",  # a digit, but not ASCII
    "a\u202eb",  # written from right to left
    "a\\b",
]


@pytest.mark.parametrize("name", GOOD)
def test_a_plain_name_is_returned(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize("name", BAD)
@pytest.mark.parametrize("own", [False, True])
def test_any_other_name_is_refused(name: str, own: bool) -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("group", name, own=own)
    assert (caught.value.kind, caught.value.name) == ("group", name)


def test_names_that_begin_with_two_underscores_are_the_brokers_own() -> None:
    with pytest.raises(InvalidName):
        check_name("topic", "__state")
    assert check_name("topic", "__state", own=True) == "__state"


def test_the_error_escapes_and_shortens_the_name() -> None:
    with pytest.raises(InvalidName) as caught:
        check_name("topic", "\u202e\0" + "x" * 10_000)
    sentence = str(caught.value)
    assert "\u202e" not in sentence
    assert "\0" not in sentence
    assert len(sentence) < 400
