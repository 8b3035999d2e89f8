"""What the commands print: tables for people, JSON lines for programs, safe text for terminals.

Standard output is one or the other as a whole: JSON lines whenever it is no terminal. Rich
honours NO_COLOR by itself.
"""

import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import click

Row = Mapping[str, Any]


def is_terminal() -> bool:
    """Say whether standard output goes to a person."""
    return sys.stdout.isatty()


def write_json_line(value: object) -> None:
    """Write one value as a line of JSON to standard output."""
    import msgspec

    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


def write_rows(rows: Iterable[Row], columns: Sequence[str], *, title: str | None = None) -> None:
    """Write rows: a table of these columns on a terminal, else each whole row as a JSON line."""
    if not is_terminal():
        for row in rows:
            write_json_line(row)
        return
    if title is not None:
        click.echo(safe_text(title))
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False)
    for column in columns:
        is_number = all(isinstance(row.get(column), int | float | None) for row in rows)
        table.add_column(column.replace("_", " "), justify="right" if is_number else "left")
    for row in rows:
        table.add_row(*(Text(_shown(row.get(column))) for column in columns))
    Console().print(table)


def safe_text(text: str, *, keep: str = "") -> str:
    """Return `text` with all that a terminal might obey written as escapes.

    Messages are anybody's: without this one could move the cursor, recolour or reverse what
    follows. Signs in `keep` (such as a line break) stay.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in keep else sign.encode("unicode_escape").decode()
        for sign in text
    )


def _shown(value: object) -> str:
    if isinstance(value, list):
        return ", ".join(map(_shown, value))
    return "-" if value is None else safe_text(str(value))
