"""One figure of one workload, measured several times, with its bar: the limit that it must meet.

Pure except for printing. With `--json`, a benchmark prints its rows as JSON lines. `python -m
bench` prints a table of these rows, and `python -m bench.report` writes them into
docs/performance/.
"""

import json
import statistics
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

RATE = "messages/s"
#: A ratio to another figure in the same run.
TIMES = "x"
MISSED = "MISSED"
_WIDTH = 150


@dataclass
class Row:
    """One figure; `values` has one value per run, in `unit`. `workload` is W1 to W11, or empty.

    `durability` is the mode in which the messages were acknowledged. `broker_us` and `client_us`
    are processor times per run in microseconds per message, and empty if they were not measured.
    The bars are `at_least` and `at_most`; None means that there is no such bar.
    """

    workload: str
    case: str
    durability: str
    unit: str
    values: list[float]
    body_bytes: int = 0
    broker_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    at_least: float | None = None
    at_most: float | None = None

    @property
    def median(self) -> float:
        """Return the median of the runs."""
        return statistics.median(self.values)

    @property
    def mb_per_s(self) -> float | None:
        """Return megabytes of bodies per second, or None if the row is not a rate of messages."""
        if self.unit != RATE or not self.body_bytes:
            return None
        return self.median * self.body_bytes / 1e6

    @property
    def is_met(self) -> bool | None:
        """Return whether the median meets the bars, or None if the row has no bar."""
        if self.at_least is None and self.at_most is None:
            return None
        is_enough = self.at_least is None or self.median >= self.at_least
        return is_enough and (self.at_most is None or self.median <= self.at_most)

    def as_json(self) -> dict[str, Any]:
        """Return the row as plain data for `from_json`."""
        return asdict(self)


def from_json(told: Mapping[str, Any]) -> Row:
    """Return the row that `as_json` converted. Raise TypeError for any other data."""
    return Row(**told)


COLUMNS = (
    "",
    "what",
    "durability",
    "median",
    "least",
    "most",
    "unit",
    "MB/s",
    "broker us/message",
    "client us/message",
    "bar",
)


def cells(row: Row) -> Iterator[str]:
    """Yield the table cells of a row, one text for each of COLUMNS."""
    yield row.workload
    yield row.case
    yield row.durability
    for value in (row.median, min(row.values), max(row.values)):
        yield number(value)
    yield row.unit
    yield "" if row.mb_per_s is None else number(row.mb_per_s)
    for spent in (row.broker_us, row.client_us):
        yield number(statistics.median(spent)) if spent else ""
    yield bar_text(row)


def bar_text(row: Row) -> str:
    """Return the bars and whether they are met as text, or "" if the row has no bar."""
    if row.is_met is None:
        return ""
    limits = {">=": row.at_least, "<=": row.at_most}
    told = [f"{sign} {number(limit)}" for sign, limit in limits.items() if limit is not None]
    return f"{' '.join(told)} {'met' if row.is_met else MISSED}"


def number(value: float) -> str:
    """Return a number as text, with at most two decimals."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def report(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print rows as JSON lines as they arrive, or all together as a table."""
    if as_json:
        for row in rows:
            print(json.dumps(row.as_json()), flush=True)
    else:
        print_table(list(rows))


def print_table(rows: Sequence[Row]) -> None:
    """Print the rows as a table."""
    table = Table(box=None, header_style="bold")
    for name in COLUMNS:
        is_text = name in {"", "what", "durability", "unit", "bar"}
        table.add_column(name, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
