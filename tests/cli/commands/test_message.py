"""holdfast message, against a broker."""

import json

from tests.cli.conftest import Run, assert_refused, lines


def test_search_and_get(holdfast: Run) -> None:
    holdfast("publish", "t", "--key-regex", r"^\w", input=b"a1\nb1\na2\n")
    found = lines(holdfast("message", "search", "t", "a").stdout)
    assert [message["body"] for message in found] == ["a2", "a1"]
    got = holdfast("message", "get", found[1]["message_id"])
    assert json.loads(got.stdout) == found[1]
    assert holdfast("message", "get", found[1]["message_id"], "--format", "raw").stdout == "a1\n"
    assert holdfast("message", "search", "t", "z").stdout == ""
    one = holdfast("message", "search", "t", "a", "--limit", "1", "--format", "%b").stdout
    assert one == "a2"


def test_an_unknown_id_is_code_4(holdfast: Run) -> None:
    for unknown in ("0" * 32, "no-id"):
        assert_refused(holdfast("message", "get", unknown), 4)
