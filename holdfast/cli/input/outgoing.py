"""The messages that `holdfast publish` sends, read from lines of text or lines of JSON.

Each function yields the messages in order, and raises LineError at the first line that is not a
message.
"""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

from holdfast.cli.input.lines import MAX_LINE_BYTES, Extractor, LineError, read_lines

#: In JSON a body may need six times as many bytes, if each byte is written as \u00xx.
MAX_JSON_LINE_BYTES = 6 * MAX_LINE_BYTES

Find = Callable[[bytes, int], str | None]


class Outgoing(NamedTuple):
    """A message to publish. `size` is the number of bytes of its input line, without the line
    break."""

    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    size: int
    priority: int | None = None
    ttl_ms: int | None = None


def text_lines(
    file: BinaryIO, key_of: Find, tag_of: Find, properties: dict[str, str]
) -> Iterator[Outgoing]:
    """Yield one message per line. The body is the line, byte for byte."""
    for number, line in enumerate(read_lines(file), 1):
        yield Outgoing(line, key_of(line, number), tag_of(line, number), properties, len(line))


def json_lines(file: BinaryIO) -> Iterator[Outgoing]:
    """Yield one message per line: a JSON object as `pull` prints it. Empty lines are skipped.

    The body, key, tag, properties, priority and ttl_ms of the object are used. Fields that the
    broker had set, such as the offset, are ignored.
    """
    import msgspec

    from holdfast.cli.output.json_message import JsonMessage

    decode = msgspec.json.Decoder(JsonMessage).decode
    for number, line in enumerate(read_lines(file, MAX_JSON_LINE_BYTES), 1):
        if not line.strip():
            continue
        try:
            found = decode(line)
        except ValueError as error:  # msgspec's, and UnicodeDecodeError
            raise LineError(number, f"it is no message as 'pull' prints it: {error}") from error
        if (found.body is None) == (found.body_base64 is None):
            raise LineError(number, "it needs either body (a text) or body_base64")
        body = found.body_base64 if found.body is None else found.body.encode()
        assert body is not None
        yield Outgoing(
            body,
            found.key,
            found.tag,
            found.properties or {},
            len(line),
            found.priority,
            found.ttl_ms,
        )


def finder(what: str, pattern: str | None, given: str | None) -> Find:
    """Return the function that gives the key or the tag of a line. It applies `pattern` to the
    line; if `pattern` is None, it always returns `given`."""
    if pattern is not None:
        return Extractor(what, pattern).find
    return lambda line, number: given


def parse_property(text: str) -> tuple[str, str]:
    """Return the name and the value of NAME=VALUE. Raises ValueError for any other text."""
    found = re.fullmatch(r"([^=]+)=(.*)", text, re.DOTALL)
    if found is None:
        raise ValueError(f"{text!r}: write NAME=VALUE, as in colour=red")
    return found[1], found[2]
