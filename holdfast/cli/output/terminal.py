"""Output of the commands: tables for people, JSON lines for programs, safe text for terminals.

If standard output is not a terminal, commands write only JSON lines there. NO_COLOR needs no code
here, because the library Rich obeys it.
"""

import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, NamedTuple

import click

Row = Mapping[str, Any]

#: In a narrow terminal, a text column is at least this wide. Longer texts are broken into lines.
_NAME_WIDTH = 12


def is_terminal() -> bool:
    return sys.stdout.isatty()


def write_json_line(value: object) -> None:
    """Write one value as a line of JSON to standard output. All items of a mapping are written."""
    import msgspec

    if isinstance(value, Mapping):
        value = dict(value)
    sys.stdout.buffer.write(msgspec.json.encode(value) + b"\n")


class Column(NamedTuple):
    """A column of a table: the key of its values in the rows, its heading, and the function that
    formats a value. A column of numbers is aligned to the right, unless `is_text` is True."""

    name: str
    heading: str
    show: Callable[[Any], str] = str
    is_text: bool = False


def write_rows(
    rows: Iterable[Row], columns: Sequence[str | Column], *, title: str | None = None
) -> None:
    """Write rows: on a terminal as a table of these columns, otherwise as lines of JSON."""
    if not is_terminal():
        for row in rows:
            write_json_line(row)
        return
    if title is not None:
        click.echo(safe_text(title))
    write_table(rows, columns)


def write_table(rows: Iterable[Row], columns: Sequence[str | Column]) -> None:
    """Write a table. In a narrow terminal, texts are broken into lines, but numbers are not."""
    from rich import box
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    rows = list(rows)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, padding=(0, 1, 0, 0))
    cells: list[list[str]] = []
    least = 2 * (len(columns) - 1)  # the space between columns
    for column in map(_column, columns):
        values = [row.get(column.name) for row in rows]
        is_number = not column.is_text and all(isinstance(v, int | float | None) for v in values)
        justify: Literal["left", "right"] = "right" if is_number else "left"
        cells.append([_format_cell(column, value) for value in values])
        table.add_column(column.heading, justify=justify, no_wrap=is_number, overflow="fold")
        widest = max(map(len, [column.heading, *cells[-1]]))
        least += widest if is_number else min(widest, _NAME_WIDTH)
    for texts in zip(*cells, strict=True):
        table.add_row(*map(Text, texts))
    console = Console()
    if least > console.width:
        # Make the table wider than the terminal: a line that the terminal wraps is better than a
        # truncated number.
        console = Console(width=least)
    console.print(table, crop=False)


def safe_text(text: str, *, keep: str = "") -> str:
    """Return `text` with escapes instead of all characters that could control a terminal.

    The text of messages comes from other clients. Without escapes it could move the cursor, or
    change the colour or the direction of other output. Characters in `keep` (such as a line break)
    are not escaped.
    """
    if text.isprintable():
        return text
    return "".join(
        sign if sign.isprintable() or sign in keep else sign.encode("unicode_escape").decode()
        for sign in text
    )


def _column(column: str | Column) -> Column:
    return Column(column, column.replace("_", " ")) if isinstance(column, str) else column


def _format_cell(column: Column, value: object) -> str:
    if isinstance(value, list):
        return ", ".join(_format_cell(column, each) for each in value)
    return "-" if value is None else safe_text(column.show(value))
