"""A line is a message: reading lines byte for byte, and keys and tags out of them."""

import re
from collections.abc import Iterator
from typing import BinaryIO

#: Beyond what any broker takes as one message by default; a file without line breaks would
#: otherwise be read into memory whole.
MAX_LINE_BYTES = 16 * 1024 * 1024


class LineError(Exception):
    """A line that cannot be a message. Lines count from 1."""

    def __init__(self, line: int, reason: str) -> None:
        super().__init__(line, reason)
        self.line = line
        self.reason = reason

    def __str__(self) -> str:
        return f"line {self.line}: {self.reason}"


def read_lines(file: BinaryIO) -> Iterator[bytes]:
    """Yield the lines without their \\n, every other byte kept (also \\r); empty ones too.

    Raises LineError at a line of more than MAX_LINE_BYTES.
    """
    number = 0
    while line := file.readline(MAX_LINE_BYTES + 1):
        number += 1
        if line.endswith(b"\n"):
            line = line[:-1]
        if len(line) > MAX_LINE_BYTES:
            raise LineError(number, f"longer than {MAX_LINE_BYTES} bytes; is this text by lines?")
        yield line


class Extractor:
    """Finds a key or a tag in a line by a regular expression."""

    def __init__(self, what: str, pattern: str) -> None:
        self._what = what
        self._search = re.compile(pattern).search
        self._group = 1 if re.compile(pattern).groups else 0

    def find(self, line: bytes, number: int) -> str | None:
        """Return group 1 (without groups, the whole match); None for no or an empty match.

        Raises LineError when the match is not UTF-8.
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
