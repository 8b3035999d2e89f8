"""The messages that `holdfast publish` sends, read from lines of text or lines of JSON.

`read_text` and `read_json` yield the messages in order, and raise LineError at the first line that
is not a message.
"""

import re
from collections.abc import Callable, Iterator
from typing import BinaryIO, NamedTuple

#: This is more than a broker's default limit for a message. Without this limit, a file without line
#: breaks would be read into memory as a whole.
MAX_LINE_BYTES = 16 * 1024 * 1024
#: In JSON a body may need six times as many bytes, if each byte is written as \u00xx.
MAX_JSON_LINE_BYTES = 6 * MAX_LINE_BYTES

Find = Callable[[bytes, int], str | None]


class LineError(Exception):
    """A line cannot be published as a message. `line` is the line's number, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


class Outgoing(NamedTuple):
    """A message to publish. `size` is the size of its input line without the line break. `queue`
    and `born_timestamp_ms` are those of the message when it was printed; only `import` uses them.
    """

    body: bytes
    key: str | None
    tag: str | None
    properties: dict[str, str]
    size: int
    priority: int | None = None
    ttl_ms: int | None = None
    queue: int | None = None
    born_timestamp_ms: int | None = None


def read_text(
    file: BinaryIO, key_of: Find, tag_of: Find, properties: dict[str, str]
) -> Iterator[Outgoing]:
    """Yield one message per line. The body is the line, byte for byte."""
    for number, line in enumerate(read_lines(file), 1):
        yield Outgoing(line, key_of(line, number), tag_of(line, number), properties, len(line))


def read_json(file: BinaryIO) -> Iterator[Outgoing]:
    """Yield one message per line: a JSON object as `pull` prints it. Empty lines are skipped. The
    body, key, tag, properties, priority and ttl_ms of the object are used. Fields that the broker
    had set, such as the offset, are ignored."""
    import msgspec

    from holdfast.cli.output.json_message import JsonMessage

    decode = msgspec.json.Decoder(JsonMessage).decode
    for number, line in enumerate(read_lines(file, MAX_JSON_LINE_BYTES), 1):
        if not line.strip():
            continue
        try:
            found = decode(line)
        except ValueError as error:  # msgspec's, and UnicodeDecodeError
            raise LineError(number, f"it is not a message as 'pull' prints it: {error}") from error
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
            found.queue,
            found.born_timestamp_ms,
        )


def read_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines, also empty ones, without their \\n. All other bytes are kept, including \\r.
    Raises LineError at a line longer than `max_bytes`."""
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        line = line.removesuffix(b"\n")
        if len(line) > max_bytes:
            raise LineError(number, f"longer than {max_bytes} bytes; is the input lines of text?")
        yield line


class Extractor:
    """Extracts a key or a tag from a line with a regular expression."""

    def __init__(self, what: str, pattern: str) -> None:
        self._what = what
        self._pattern = re.compile(pattern)
        self._group = 1 if self._pattern.groups else 0

    def find(self, line: bytes, number: int) -> str | None:
        """Return the text that group 1 of the pattern matches in a line, or the whole match if the
        pattern has no group. Return None if there is no match, or if this text is empty. `number`
        is the line's number. Raises LineError if the text is not UTF-8."""
        matched = self._pattern.search(line.decode("utf-8", "surrogateescape"))
        if matched is None or not matched[self._group]:
            return None
        text: str = matched[self._group]
        try:
            text.encode()
        except UnicodeEncodeError as error:
            raise LineError(number, f"its {self._what} is not UTF-8") from error
        return text


def make_finder(what: str, pattern: str | None, given: str | None) -> Find:
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
