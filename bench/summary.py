"""Convert the output of benchmarks that do not print rows (bench/rows.py) into rows with bars.

Pure: each function takes the `--json` output of one benchmark.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from bench.rows import RATE, TIMES, Row

_KEPT = 0.8
_BYTES_A_QUEUE = 2000
_READY_S = 2.0
_REBUILT_GB_PER_S = 1.0
_REBUILT_BATCHES_PER_S = 150_000
_OF_ARROW_FILE = 0.5

Told = Mapping[str, Any]


def peers_rows(told: Sequence[Told]) -> Iterator[Row]:
    """Yield Holdfast's rows of bench.peers, without bars. Their bars are ratios to other brokers,
    which only bench.peers prints."""
    for row in told[0]["rows"]:
        if row["system"] == "holdfast":
            yield Row(
                row["label"],
                f"{row['workload']}: {row['case']}",
                row["durability"],
                row["unit"],
                row["values"],
                row["body_bytes"],
                row["server_us"],
                row["client_us"],
            )


def figure_rows(told: Sequence[Told]) -> Iterator[Row]:
    """Yield the figures of benchmarks (bench.harness) that are not part of W1 to W11."""
    for figure in told:
        messages = figure["messages"]
        yield Row(
            "",
            f"{figure['name']}, {figure['body_bytes']:,} B",
            figure["durability"],
            RATE,
            [figure["messages_per_s"]],
            figure["body_bytes"],
            [figure["broker_cpu_s"] / messages * 1e6],
            [figure["client_cpu_s"] / messages * 1e6],
        )


def growth_rows(told: Sequence[Told]) -> Iterator[Row]:
    """Yield the rates of each line relative to the first line of its kind, and the memory of a
    queue."""
    for kind in dict.fromkeys(line["growing"] for line in told):
        first, *others = [line for line in told if line["growing"] == kind]
        for line in others:
            for what in ("published", "read"):
                if kind == "groups" and what == "published":
                    continue
                case = f"{what}, {line['what']} {kind} beside {first['what']}"
                ratio = line[what] / first[what]
                yield Row("W7", case, line["durability"], TIMES, [ratio], at_least=_KEPT)
            if kind == "queues":
                more = int(line["what"].replace(",", "")) - int(first["what"].replace(",", ""))
                each = (line["memory_mb"] - first["memory_mb"]) * 1e6 / more
                bar = _BYTES_A_QUEUE if more >= 1000 else None
                case = f"memory of each queue, {line['what']} queues"
                yield Row("W7", case, line["durability"], "B", [each], at_most=bar)


def restart_rows(told: Sequence[Told]) -> Iterator[Row]:
    """Yield the time until the broker is ready, and the speed of an index rebuild."""
    for restart in told:
        case = f"{restart['what']}, {restart['gb']:.1f} GB, {restart['batches']:,} batches"
        seconds = restart["seconds"]
        if not restart["what"].startswith("index built anew"):
            yield Row("W9", case, "written", "s", [seconds], at_most=_READY_S)
        elif restart["gb"] * 1e9 >= 64_000 * restart["batches"]:
            rate = restart["gb"] / seconds
            yield Row("W9", case, "written", "GB/s", [rate], at_least=_REBUILT_GB_PER_S)
        else:
            rate, bar = restart["batches"] / seconds, _REBUILT_BATCHES_PER_S
            yield Row("W9", case, "written", "batches/s", [rate], at_least=bar)


def spark_rows(told: Sequence[Told]) -> Iterator[Row]:
    """Yield the rates of the scans, and the ratio of the topic's rate to the mapped Arrow file's.

    For small batches, the ratio to batches of 1,000 has the bar instead (W11).
    """
    by_body: dict[int, float] = {}
    for workload in told:
        figures, rows, batch = workload["figures"], workload["messages"], workload["batch"]
        label = "W8" if batch >= 1000 else "W11"
        what = f"Spark, {workload['body_bytes']:,} B, batches of {batch:,}"
        for name, figure in figures.items():
            rates = [rows / seconds for seconds in figure["seconds"]]
            yield Row(label, f"{what}: {name}", "written", RATE, rates, workload["body_bytes"])
        pairs = zip(figures["url"]["seconds"], figures["arrow file"]["seconds"], strict=True)
        ratios = [file / url for url, file in pairs]
        bar = _OF_ARROW_FILE if label == "W8" else None
        yield Row(label, f"{what}: beside the file", "written", TIMES, ratios, at_least=bar)
        rate = figures["url"]["rows_per_s"]
        if label == "W8":
            by_body[workload["body_bytes"]] = rate
        elif base := by_body.get(workload["body_bytes"]):
            case = f"{what}: beside batches of 1,000"
            yield Row(label, case, "written", TIMES, [rate / base], at_least=_OF_ARROW_FILE)
