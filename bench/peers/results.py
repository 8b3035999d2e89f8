"""What the rounds gave: medians and spread, the ratios and their bars; a table and JSON."""

import statistics
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers.workload import Bar, Result, Workload

OURS = "holdfast"


@dataclass
class Row:
    """One system under one case of one workload; a value for each round."""

    workload: Workload
    case: str
    system: str
    values: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.values)


class Results:
    """Every figure so far."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Row] = {}
        #: "system, durability" -> settings; and what was left out, with the reason.
        self.settings: dict[str, str] = {}
        self.left_out: dict[str, str] = {}

    def add(self, workload: Workload, system: str, results: Iterable[Result]) -> None:
        """Take what one round of one system gave."""
        for result in results:
            key = (workload.name, result.case, system)
            row = self._rows.setdefault(key, Row(workload, result.case, system))
            row.values.append(result.value)
            row.server_us.append(result.measured.server_cpu_s / result.measured.messages * 1e6)

    def rows(self) -> list[Row]:
        """Return the rows, case by case, in the order in which they came."""
        cases = dict.fromkeys(key[:2] for key in self._rows)
        return [row for case in cases for key, row in self._rows.items() if key[:2] == case]

    def ours_beside(self, row: Row) -> float | None:
        """Return our median over a peer's, None for our own row."""
        ours = self._rows.get((row.workload.name, row.case, OURS))
        if ours is None or row.system == OURS:
            return None
        return ours.median / row.median

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "settings": self.settings,
            "left_out": self.left_out,
            "rows": [
                {
                    "workload": row.workload.name,
                    "case": row.case,
                    "durability": row.workload.durability,
                    "unit": row.workload.unit,
                    "system": row.system,
                    "median": row.median,
                    "values": row.values,
                    "server_us_per_message": statistics.median(row.server_us),
                    "ours_beside": self.ours_beside(row),
                    "bar": bar.times if (bar := _bar(row)) else None,
                }
                for row in self.rows()
            ],
        }

    def print(self, console: Console) -> None:
        """Print a table for each workload, then the settings and what was left out."""
        for workload in dict.fromkeys(row.workload.name for row in self.rows()):
            self._print_workload(
                [row for row in self.rows() if row.workload.name == workload], console
            )
        for name, settings in self.settings.items():
            console.print(f"{name}: {settings}", highlight=False, markup=False)
        for name, reason in self.left_out.items():
            console.print(f"left out: {name}: {reason}", highlight=False, markup=False)

    def _print_workload(self, rows: Sequence[Row], console: Console) -> None:
        workload = rows[0].workload
        table = Table(
            title=f"{workload.name}: {workload.what} (durability: {workload.durability})",
            title_justify="left",
            box=None,
        )
        for name in ("", "system"):
            table.add_column(name)
        for name in (workload.unit, "least", "most", "server us/message", "ours beside", "bar"):
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*self._cells(row))
        console.print(table)
        console.print()

    def _cells(self, row: Row) -> Iterator[str]:
        yield row.case
        yield row.system
        for value in (row.median, min(row.values), max(row.values)):
            yield f"{value:,.0f}" if row.workload.is_rate else f"{value:,.2f}"
        yield f"{statistics.median(row.server_us):,.1f}"
        ratio, bar = self.ours_beside(row), _bar(row)
        yield "" if ratio is None else f"{ratio:,.2f} x"
        if ratio is None or bar is None:
            yield ""
        else:
            is_met = ratio >= bar.times if row.workload.is_rate else ratio <= bar.times
            sign = ">=" if row.workload.is_rate else "<="
            yield f"{sign} {bar.times:g} x {'met' if is_met else 'MISSED'}"


def _bar(row: Row) -> Bar | None:
    bars = row.workload.bars.get(row.case, ())
    return next((bar for bar in bars if bar.peer == row.system), None)
