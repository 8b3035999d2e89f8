"""The real access log that tests publish. The file is next to the repository, not part of it."""

import re
from pathlib import Path

import pytest

PATH = Path(__file__).parents[3].parent / "shared" / "data" / "apache_access.log"
STATUSES = {
    "200": 9126, "304": 445, "404": 213, "301": 164, "206": 45, "500": 3, "416": 2, "403": 2,
}  # fmt: skip
KEY_COUNT = 1753

_LINE = re.compile(rb'(\S+) .*?" (\d{3}) ')


def read_lines() -> list[bytes]:
    """Return the lines of the log. Skip the test if the log file is missing."""
    if not PATH.is_file():
        pytest.skip(f"{PATH} is not there: the access log is no part of the project")
    return PATH.read_bytes().splitlines()


def key_and_tag(line: bytes) -> tuple[str, str]:
    """Return the client's address and the status code of one line."""
    match = _LINE.match(line)
    assert match is not None, line
    return match[1].decode(), match[2].decode()
