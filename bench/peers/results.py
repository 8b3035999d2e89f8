"""The results of the rounds, as a table and as JSON: medians, spread, and ratios with their bars
(the limits that they must meet)."""

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.peers.system import ROOT
from bench.peers.workload import Bar, Result, Workload
from bench.rows import MISSED

OURS = "holdfast"
#: Written by `python -m bench.peers`, read by `python -m bench.report`.
RESULTS = ROOT / "bench" / "results" / "peers.json"


@dataclass
class Row:
    """One system in one case of one workload, with a value for each round."""

    workload: Workload
    case: str
    system: str
    values: list[float] = field(default_factory=list)
    server_us: list[float] = field(default_factory=list)
    client_us: list[float] = field(default_factory=list)
    body_bytes: int = 0

    @property
    def median(self) -> float:
        """Return the median of the rounds."""
        return statistics.median(self.values)


class Results:
    """All figures so far."""

    def __init__(self) -> None:
        self._rows: dict[tuple[str, str, str], Row] = {}
        #: "system, durability" -> the settings of the system.
        self.settings: dict[str, str] = {}
        #: "system, durability" -> the reason why the system was left out.
        self.left_out: dict[str, str] = {}
        #: "system, durability" -> load -> the number of its messages.
        self.sizes: dict[str, dict[str, int]] = {}

    def add(self, workload: Workload, system: str, results: Iterable[Result]) -> None:
        """Add the results of one round of one system."""
        for result in results:
            key = (workload.name, result.case, system)
            row = self._rows.setdefault(key, Row(workload, result.case, system))
            row.values.append(result.value)
            measured = result.measured
            row.body_bytes = measured.body_bytes
            row.server_us.append(measured.server_cpu_s / measured.messages * 1e6)
            row.client_us.append(measured.client_cpu_s / measured.messages * 1e6)

    def add_earlier(self, told: Mapping[str, Any], workloads: Iterable[Workload]) -> None:
        """Add the results of an earlier run (`as_json`), before the first round of this run.

        Rows of workloads that no longer exist are dropped.
        """
        known = {each.name: each for each in workloads}
        self.settings.update(told["settings"])
        self.left_out.update(told["left_out"])
        self.sizes.update(told["sizes"])
        for row in told["rows"]:
            workload = known.get(row["workload"])
            if workload is not None and row["case"] in workload.labels:
                self._rows[workload.name, row["case"], row["system"]] = Row(
                    workload,
                    row["case"],
                    row["system"],
                    list(row["values"]),
                    list(row["server_us"]),
                    list(row["client_us"]),
                    row["body_bytes"],
                )

    def rows(self) -> list[Row]:
        """Return the rows, sorted by case; otherwise in the order in which they were added."""
        cases = dict.fromkeys(key[:2] for key in self._rows)
        return [row for case in cases for key, row in self._rows.items() if key[:2] == case]

    def ours_beside(self, row: Row) -> float | None:
        """Return Holdfast's median divided by a peer's, or None for Holdfast's own row."""
        ours = self._rows.get((row.workload.name, row.case, OURS))
        if ours is None or row.system == OURS:
            return None
        return ours.median / row.median

    def as_json(self) -> dict[str, Any]:
        """Return everything as plain data."""
        return {
            "settings": self.settings,
            "left_out": self.left_out,
            "sizes": self.sizes,
            "rows": [
                {
                    "label": row.workload.labels[row.case],
                    "workload": row.workload.name,
                    "what": row.workload.what,
                    "case": row.case,
                    "durability": row.workload.durability,
                    "unit": row.workload.unit,
                    "system": row.system,
                    "median": row.median,
                    "values": row.values,
                    "body_bytes": row.body_bytes,
                    "server_us": row.server_us,
                    "client_us": row.client_us,
                    "ours_beside": self.ours_beside(row),
                    "bar": bar.times if (bar := _bar(row)) else None,
                }
                for row in self.rows()
            ],
        }

    def print(self, console: Console) -> None:
        """Print a table for each workload, then the settings and the systems that were left out."""
        rows = self.as_json()["rows"]
        for workload in dict.fromkeys(row["workload"] for row in rows):
            _print_workload([row for row in rows if row["workload"] == workload], console)
        for name, settings in self.settings.items():
            console.print(f"{name}: {settings}", highlight=False, markup=False)
        for name, reason in self.left_out.items():
            console.print(f"left out: {name}: {reason}", highlight=False, markup=False)


def _print_workload(rows: Sequence[Mapping[str, Any]], console: Console) -> None:
    first = rows[0]
    table = Table(
        title=f"{first['workload']}: {first['what']} (durability: {first['durability']})",
        title_justify="left",
        box=None,
    )
    for name in ("", "", "system"):
        table.add_column(name)
    for name in (first["unit"], "least to most", "MB/s", "server us/message"):
        table.add_column(name, justify="right")
    for name in ("client us/message", "ours / theirs", "bar"):
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*told_cells(row))
    console.print(table)
    console.print()


def told_cells(row: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the table cells for one of the rows of `Results.as_json`."""
    values, is_rate = row["values"], row["unit"].endswith("/s")
    shown = [
        f"{value:,.0f}" if is_rate else f"{value:,.2f}"
        for value in (row["median"], min(values), max(values))
    ]
    ratio = row["ours_beside"]
    return (
        row["label"],
        row["case"],
        row["system"],
        shown[0],
        f"{shown[1]} to {shown[2]}",
        f"{row['median'] * row['body_bytes'] / 1e6:,.1f}" if is_rate else "",
        *(f"{statistics.median(row[spent]):,.1f}" for spent in ("server_us", "client_us")),
        "" if ratio is None else f"{ratio:,.2f} x",
        _bar_text(row["bar"], ratio, is_rate=is_rate),
    )


def _bar_text(bar: float | None, ratio: float | None, *, is_rate: bool) -> str:
    if bar is None or ratio is None:
        return ""
    is_met = ratio >= bar if is_rate else ratio <= bar
    return f"{'>=' if is_rate else '<='} {bar:g} x {'met' if is_met else MISSED}"


def _bar(row: Row) -> Bar | None:
    bars = row.workload.bars.get(row.case, ())
    return next((bar for bar in bars if bar.peer == row.system), None)
