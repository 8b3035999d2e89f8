"""Run the benchmarks one after another, each in its own process, and print their results.

    python -m bench [NAME ...]       NAME: a workload (W1 to W11) or a benchmark; default: all

Holdfast's results for W1 to W11 are printed as one table and written to bench/results/ours.json. A
result is printed with its bar: the limit that it must meet. The bars of W1 to W5 are relative to
other brokers (peers), so `python -m bench.peers` prints them.
"""

import argparse
import json
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from bench.harness import machine, plain_loop_s
from bench.peers.system import ROOT
from bench.rows import Row, from_json, print_table
from bench.summary import figure_rows, growth_rows, peers_rows, restart_rows, spark_rows

RESULTS = ROOT / "bench" / "results" / "ours.json"

_Told = Sequence[dict[str, Any]]


def _own_rows(told: _Told) -> Iterator[Row]:
    return map(from_json, told)


@dataclass(frozen=True)
class Part:
    """A benchmark: its workloads, and the function that converts its output to rows.

    A benchmark without `rows` prints its own tables.
    """

    name: str
    workloads: tuple[str, ...]
    rows: Callable[[_Told], Iterator[Row]] | None
    arguments: tuple[str, ...] = ()
    needs: str = ""


PARTS = (
    Part("peers", ("W1", "W2", "W3", "W4", "W5"), peers_rows, ("--systems", "holdfast")),
    Part("latency", ("W5",), _own_rows),
    Part("parked", ("W6",), _own_rows),
    Part("growth", ("W7",), growth_rows),
    Part("spark_scan", ("W8", "W11"), spark_rows, needs="java"),
    Part("restart", ("W9",), restart_rows),
    Part("cpu_floor", ("W10",), _own_rows),
    Part("small_batches", ("W11",), _own_rows),
    Part("wake", ("W5",), _own_rows, needs="redis-server"),
    Part("publish_cost", (), _own_rows),
    Part("segment_room", (), _own_rows),
    Part("publish", (), figure_rows),
    Part("consume", (), figure_rows),
    Part("http_requests", (), figure_rows),
    Part("amqp_publish", (), _own_rows),
    Part("amqp_two_senders", (), _own_rows),
    Part("amqp_sender_receiver", (), _own_rows),
    Part("amqp_apps", (), _own_rows),
    Part("amqp_pauses", (), _own_rows),
    Part("amqp_two_targets", (), _own_rows),
    Part("amqp_idle", (), _own_rows),
    Part("amqp_websocket", (), _own_rows),
    Part("amqp_wake", (), _own_rows, needs="redis-server"),
    Part("amqp_singles", (), _own_rows, needs="redis-server"),
    Part("hold_http", (), _own_rows),
    Part("hold_table", (), None),
    Part("groups_commit", (), _own_rows),
    Part("group_receive", (), _own_rows),
    Part("group_wake", (), _own_rows),
    Part("stuck_handlers", (), _own_rows),
    Part("channels", (), _own_rows),
    Part("fronts", (), _own_rows),
    Part("startup", (), _own_rows),
)


def main() -> int:
    """Run the requested benchmarks; return 1 if any of them failed."""
    parser = argparse.ArgumentParser(prog="python -m bench", description="Run the benchmarks.")
    known = {name for part in PARTS for name in (part.name, *part.workloads)}
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"any of: {sorted(known)}")
    names = set(parser.parse_args().names or known)
    if unknown := names - known:
        parser.error(f"no such benchmark: {', '.join(sorted(unknown))}")
    rows: list[Row] = []
    left_out: dict[str, str] = {}
    failed = []
    for part in PARTS:
        if not names & {part.name, *part.workloads}:
            continue
        print(f"\n=== bench.{part.name}", flush=True)
        if part.needs and shutil.which(part.needs) is None:
            left_out[part.name] = f"needs {part.needs}"
            continue
        try:
            of_it = list(_run(part))
        except subprocess.CalledProcessError as error:
            failed.append(part.name)
            left_out[part.name] = f"failed with status {error.returncode}"
            continue
        if of_it:
            print_table(of_it)
        rows += of_it
    rows.sort(key=lambda row: int(row.workload[1:] or len(PARTS)))
    if rows:
        print("\n=== all, in the order of the workloads", flush=True)
        print_table(rows)
        _write(rows, left_out)
    for name, reason in left_out.items():
        print(f"left out: {name}: {reason}")
    return 1 if failed else 0


def _run(part: Part) -> Iterator[Row]:
    command = [sys.executable, "-m", f"bench.{part.name}", *part.arguments]
    if part.rows is None:
        subprocess.run(command, check=True)
        return
    done = subprocess.run([*command, "--json"], stdout=subprocess.PIPE, text=True, check=True)
    told = [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]
    yield from part.rows(told)


def _write(rows: Sequence[Row], left_out: dict[str, str]) -> None:
    """Save the rows. A row replaces the row of an earlier run with the same workload and case."""
    new = {(row.workload, row.case): row.as_json() for row in rows}
    old = json.loads(RESULTS.read_text())["rows"] if RESULTS.exists() else []
    kept = {(row["workload"], row["case"]): row for row in old}
    told = {
        "machine": machine(),
        "plain_loop_s": plain_loop_s(),
        "left_out": left_out,
        "rows": list({**kept, **new}.values()),
    }
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    print(f"this machine: {told['machine']}; 10 million additions in a plain Python loop take ")
    print(f"{told['plain_loop_s']:.2f} s; written to {RESULTS}")


if __name__ == "__main__":
    sys.exit(main())
