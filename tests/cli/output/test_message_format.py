"""The printed form of messages."""

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from holdfast.cli.output.message_format import make_formatter

if TYPE_CHECKING:
    from holdfast.client import Message


def message(body: bytes = b"hello", **changed: object) -> "Message":
    fields: dict[str, object] = {
        "topic": "orders",
        "queue": 3,
        "offset": 12,
        "message_id": "0" * 31 + "C",
        "key": "k1",
        "tag": None,
        "properties": {"a": "ü"},
        "body": body,
        "born_timestamp_ms": 1000,
        "store_timestamp_ms": 2000,
    }
    return cast("Message", SimpleNamespace(**fields | changed))


@pytest.mark.parametrize(
    ("form", "printed"),
    [
        ("%b", b"hello"),
        (r"%n %q:%o %k [%t] %b %S %T %B\n", b"orders 3:12 k1 [] hello 5 2000 1000\n"),
        (r"%i\t%p\0", b"0" * 31 + 'C\t{"a":"ü"}\0'.encode()),
        (r"100%% \x1F\xff\\%o\r", b"100% \x1f\xff\\12\r"),
        ("é%o", "é12".encode()),
        ("raw", b"hello\n"),
    ],
)
def test_formats(form: str, printed: bytes) -> None:
    assert make_formatter(form)(message()) == printed


def test_a_body_is_printed_byte_for_byte() -> None:
    body = bytes(range(256))
    assert make_formatter("%b")(message(body)) == body
    assert make_formatter("raw")(message(body)) == body + b"\n"


@pytest.mark.parametrize("form", ["", "jsonl", "no sign", "%", "%x %b", "%b\\q", r"%b\x1"])
def test_unknown_fields_and_escapes_are_refused(form: str) -> None:
    with pytest.raises(ValueError, match=r"neither json|is unknown; known are"):
        make_formatter(form)


def test_json_has_the_shape_of_the_api() -> None:
    line = make_formatter("json")(message())
    assert line.endswith(b"}\n")
    assert json.loads(line) == {
        "topic": "orders",
        "queue": 3,
        "offset": 12,
        "message_id": "0" * 31 + "C",
        "key": "k1",
        "tag": None,
        "properties": {"a": "ü"},
        "body": "hello",
        "born_timestamp_ms": 1000,
        "store_timestamp_ms": 2000,
    }
    binary = json.loads(make_formatter("json")(message(b"\xff\x00")))
    assert "body" not in binary
    assert binary["body_base64"] == "/wA="


def test_pretty_escapes_control_characters() -> None:
    hostile = "\x1b[31mred\x07 \u202eback\u0085".encode()
    printed = make_formatter("pretty")(message(hostile, key="\x1b]0;title\x07", tag="t\n"))
    text = printed.decode()
    assert "\x1b" not in text
    assert "\\x1b[31mred\\x07 \\u202eback\\x85" in text
    assert "key=\\x1b]0;title\\x07  tag=t\\n" in text


def test_pretty_keeps_lines_and_letters() -> None:
    printed = make_formatter("pretty")(message("zwei\nZeilen\tß \xe9".encode() + b"\xff"))
    assert printed.decode().endswith("\nzwei\nZeilen\tß é\\xff\n")
