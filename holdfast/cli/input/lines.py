"""Read lines as messages, byte for byte, and extract keys and tags from them."""

import re
from collections.abc import Iterator
from typing import BinaryIO

#: This is more than a broker's default limit for a message. Without this limit, a file without line
#: breaks would be read into memory as a whole.
MAX_LINE_BYTES = 16 * 1024 * 1024


class LineError(Exception):
    """A line cannot be published as a message. `line` is the line's number, from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


def read_lines(file: BinaryIO, max_bytes: int = MAX_LINE_BYTES) -> Iterator[bytes]:
    """Yield the lines without their \\n. All other bytes are kept, including \\r. Empty lines are
    yielded.

    Raises LineError at a line longer than `max_bytes`.
    """
    number = 0
    while line := file.readline(max_bytes + 1):
        number += 1
        if line.endswith(b"\n"):
            line = line[:-1]
        if len(line) > max_bytes:
            raise LineError(number, f"longer than {max_bytes} bytes; is this text by lines?")
        yield line


class Extractor:
    """Extracts a key or a tag from a line with a regular expression."""

    def __init__(self, what: str, pattern: str) -> None:
        self._what = what
        self._search = re.compile(pattern).search
        self._group = 1 if re.compile(pattern).groups else 0

    def find(self, line: bytes, number: int) -> str | None:
        """Return the text that group 1 of the pattern matches in a line, or the whole match if the
        pattern has no group. Return None if there is no match, or if this text is empty.

        `number` is the line's number. Raises LineError if the text is not UTF-8.
        """
        matched = self._search(line.decode("utf-8", "surrogateescape"))
        if matched is None or not matched[self._group]:
            return None
        text: str = matched[self._group]
        if not text.isascii():
            try:
                text.encode()
            except UnicodeEncodeError as error:
                raise LineError(number, f"its {self._what} is not UTF-8") from error
        return text
