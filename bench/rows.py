"""One figure of one workload, measured several times, beside the bar that it is held to.

Pure but for printing. A benchmark prints its rows with `--json` as JSON lines, from which
`python -m bench` makes its table and `python -m bench.report` those of docs/performance.md.
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
#: A share of something else in the same run.
TIMES = "x"
MISSED = "MISSED"
_WIDTH = 150


@dataclass
class Row:
    """A value for each run, in `unit`. `workload` is one of W1 to W11, or empty beside them.

    `durability` is the mode in which the messages were acknowledged. The processor times are
    microseconds a message; without any, nothing was measured. With both bars it is between them.
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
        """The median of the runs."""
        return statistics.median(self.values)

    @property
    def mb_per_s(self) -> float | None:
        """Megabytes of bodies a second; None where there is no rate of messages with bodies."""
        if self.unit != RATE or not self.body_bytes:
            return None
        return self.median * self.body_bytes / 1e6

    @property
    def is_met(self) -> bool | None:
        """Whether the median meets the bar; None without one."""
        if self.at_least is None and self.at_most is None:
            return None
        is_enough = self.at_least is None or self.median >= self.at_least
        return is_enough and (self.at_most is None or self.median <= self.at_most)

    def as_json(self) -> dict[str, Any]:
        """Return it as plain data that `from_json` takes."""
        return asdict(self)


def from_json(told: Mapping[str, Any]) -> Row:
    """Return what `as_json` gave. TypeError for anything else."""
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
    """Yield what a table says of it, a text for each of COLUMNS."""
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
    """Return the bar and whether it is met; nothing without one."""
    if row.is_met is None:
        return ""
    limits = {">=": row.at_least, "<=": row.at_most}
    told = [f"{sign} {number(limit)}" for sign, limit in limits.items() if limit is not None]
    return f"{' '.join(told)} {'met' if row.is_met else MISSED}"


def number(value: float) -> str:
    """Return a number with the digits that mean something."""
    if abs(value) >= 100 or value == int(value):
        return f"{value:,.0f}"
    return f"{value:,.1f}" if abs(value) >= 10 else f"{value:.2f}"


def report(rows: Iterable[Row], *, as_json: bool) -> None:
    """Print a benchmark's rows as they come (JSON lines), or all as a table."""
    if as_json:
        for row in rows:
            print(json.dumps(row.as_json()), flush=True)
    else:
        print_table(list(rows))


def print_table(rows: Sequence[Row]) -> None:
    """Print a table."""
    table = Table(box=None, header_style="bold")
    for name in COLUMNS:
        is_text = name in {"", "what", "durability", "unit", "bar"}
        table.add_column(name, justify="left" if is_text else "right")
    for row in rows:
        table.add_row(*cells(row))
    Console(width=None if sys.stdout.isatty() else _WIDTH).print(table)
