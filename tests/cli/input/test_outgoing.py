"""Lines become messages, byte for byte; regular expressions find keys and tags in lines."""

import io

import pytest

from holdfast.cli.input.outgoing import Extractor, LineError, read_json, read_lines


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", []),
        (b"a\nb\n", [b"a", b"b"]),
        (b"a\nb", [b"a", b"b"]),
        (b"\n\na\n", [b"", b"", b"a"]),
        (b"a\r\n", [b"a\r"]),
        (b"\x00\xff\x0b\x85\n", [b"\x00\xff\x0b\x85"]),
        ("\u2028\n".encode(), ["\u2028".encode()]),
    ],
)
def test_lines_keep_every_byte_but_the_line_break(content: bytes, expected: list[bytes]) -> None:
    assert list(read_lines(io.BytesIO(content))) == expected


def test_an_endless_line_is_refused_before_it_is_read() -> None:
    assert list(read_lines(io.BytesIO(b"1234\n1234"), 4)) == [b"1234", b"1234"]
    with pytest.raises(LineError, match="line 2: longer than 4 bytes"):
        list(read_lines(io.BytesIO(b"1234\n12345\n"), 4))


def test_blank_lines_between_json_messages_are_skipped() -> None:
    lines = b'\n{"body": "a"}\n \t\r\n{"body_base64": "Yg=="}\n'
    assert [each.body for each in read_json(io.BytesIO(lines))] == [b"a", b"b"]
    with pytest.raises(LineError, match="line 3: it is not a message"):
        list(read_json(io.BytesIO(b'\n{"body": "a"}\nx\n')))


@pytest.mark.parametrize(
    ("pattern", "line", "found"),
    [
        (r"^\S+", b"10.0.0.1 - GET", "10.0.0.1"),
        (r'" (\d{3}) ', b'"GET /" 200 12', "200"),
        (r"user=(\w+)", "user=Jürgen x".encode(), "Jürgen"),
        (r"nothing", b"x", None),
        (r"x*", b"abc", None),
        (r"a(b)?", b"a", None),
        (r"\w+", b"\xff\xfe abc \xff", "abc"),
    ],
)
def test_a_match_or_its_first_group_is_taken(pattern: str, line: bytes, found: str | None) -> None:
    assert Extractor("key", pattern).find(line, 1) == found


def test_a_match_that_is_no_text_is_refused() -> None:
    with pytest.raises(LineError, match="line 7: its key is not UTF-8"):
        Extractor("key", ".+").find(b"a\xff", 7)
