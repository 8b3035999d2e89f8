"""Draw bench/results/peers.json: python plots.py FILE DIRECTORY (with the peers' Python)."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")
from matplotlib import pyplot

_OURS, _PEER = "#c2410c", "#94a3b8"


def main() -> None:
    """Write one picture for each workload."""
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    rows = json.loads(source.read_text())["rows"]
    for workload in dict.fromkeys(row["workload"] for row in rows):
        of_it = [row for row in rows if row["workload"] == workload]
        cases = list(dict.fromkeys(row["case"] for row in of_it))
        figure, axes = pyplot.subplots(1, len(cases), figsize=(4.6 * len(cases), 3), squeeze=False)
        for axis, case in zip(axes[0], cases, strict=True):
            _draw(axis, case, [row for row in of_it if row["case"] == case])
        figure.tight_layout()
        figure.savefig(target / f"peers-{workload}.svg", metadata={"Date": None})


def _draw(axis: pyplot.Axes, case: str, rows: list[dict[str, Any]]) -> None:
    rows = rows[::-1]
    medians = [row["median"] for row in rows]
    spread = [
        [row["median"] - min(row["values"]) for row in rows],
        [max(row["values"]) - row["median"] for row in rows],
    ]
    colors = [_OURS if row["system"] == "holdfast" else _PEER for row in rows]
    axis.barh([row["system"] for row in rows], medians, xerr=spread, color=colors)
    axis.set_title(f"{case}: {rows[0]['unit']}, {rows[0]['durability']}", fontsize=10)
    axis.spines[["top", "right"]].set_visible(False)
    axis.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    axis.tick_params(labelsize=8)
    axis.xaxis.set_major_locator(pyplot.MaxNLocator(4))


if __name__ == "__main__":
    main()
