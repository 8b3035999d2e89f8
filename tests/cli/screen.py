"""The whole output of a command: on a terminal of a given width, or through a pipe.

Each screen is a file in `screens/`. `WRITE_SCREENS=1 pytest tests/cli` rewrites the files; look at
them before you commit them.
"""

import io
import os
import re
import sys
from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.cli.main import main

SCREENS = Path(__file__).parent / "screens"

#: Replacements for parts of the output that vary, where the width stays the same.
WORDS = (
    (r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d", "2026-11-21 10:00:00.000+00:00"),
    (r'(_timestamp_ms"?[:=])\d{13}', r"\g<1>1795255200000"),
    (r'"seconds":[\d.e-]+', '"seconds":0.004'),
    (r'"receipt":"[^"]+"', '"receipt":"RECEIPT"'),
    (r'"offset":\d+,"message_id":"\w+"}', '"offset":0,"message_id":"ID"}'),
    (r'"backup_id":"[^"]+"', '"backup_id":"BACKUP"'),
    (r"http://127\.0\.0\.1:\d+", "http://127.0.0.1:8711"),
)


class Terminal(io.TextIOWrapper):
    """A standard output that can claim to be a terminal."""

    def __init__(self, *, is_terminal: bool) -> None:
        super().__init__(io.BytesIO(), encoding="utf-8", write_through=True)
        self._is_terminal = is_terminal

    def isatty(self) -> bool:
        return self._is_terminal

    def text(self) -> str:
        assert isinstance(self.buffer, io.BytesIO)
        return self.buffer.getvalue().decode()


def shown_by(
    arguments: Sequence[str], width: int | None, monkeypatch: pytest.MonkeyPatch, **environment: str
) -> str:
    """Return a command's whole output and exit code, at a width or through a pipe (None)."""
    out, errors = Terminal(is_terminal=width is not None), Terminal(is_terminal=False)
    environment |= {"COLUMNS": str(width or 80), "LINES": "40", "TERM": "dumb"}
    with monkeypatch.context() as here:
        here.setattr(sys, "stdout", out)
        here.setattr(sys, "stderr", errors)
        for name, value in environment.items():
            here.setenv(name, value)
        with pytest.raises(SystemExit) as ended:
            main(list(arguments), prog_name="holdfast")
    said = errors.text()
    text = out.text() + (f"--- standard error\n{said}" if said else "")
    for found, put in WORDS:
        text = re.sub(found, put, text)
    return f"{text}--- code {int(ended.value.code or 0)}\n"


def compare(name: str, shown: str) -> None:
    file = SCREENS / f"{name}.txt"
    if os.environ.get("WRITE_SCREENS"):
        file.write_text(shown, "utf-8")
    assert shown == file.read_text("utf-8"), f"see {file.name}; WRITE_SCREENS=1 rewrites it"
