"""Compare Holdfast with its peers; `python -m bench.peers --help`."""

import argparse
import json
import subprocess
import sys
from collections.abc import Sequence

from rich.console import Console

from bench.harness import machine, plain_loop_s
from bench.peers.results import RESULTS, Results
from bench.peers.system import System, Unavailable, running
from bench.peers.systems import SYSTEMS
from bench.peers.workload import Run, Workload
from bench.peers.workloads import WORKLOADS


def main() -> int:
    """Run the requested workloads; return 1 if Holdfast could not be measured."""
    options = _options()
    asked = set(options.workloads)
    workloads = [each for each in WORKLOADS if asked & {each.name, *each.labels.values()}]
    systems = [each for each in SYSTEMS if each.name in options.systems]
    console = Console(width=None if sys.stdout.isatty() else 160)
    results = Results()
    if options.add and RESULTS.exists():
        results.add_earlier(json.loads(RESULTS.read_text()), WORKLOADS)
    systems = _present(systems, results)
    counts = results.sizes
    failed = False
    for number in range(options.rounds):
        for durability in dict.fromkeys(each.durability for each in workloads):
            chosen = [each for each in workloads if each.durability == durability]
            for system in systems:
                print(f"round {number + 1}: {system.name}, {durability}", flush=True)
                try:
                    sizes = counts.setdefault(f"{system.name}, {durability}", {})
                    _run(system, durability, chosen, sizes, results)
                    # A system that failed in an earlier round is left out only if it always fails.
                    results.left_out.pop(f"{system.name}, {durability}", None)
                except Unavailable as reason:
                    results.left_out[f"{system.name}, {durability}"] = str(reason)
                except (RuntimeError, subprocess.SubprocessError) as error:
                    print(f"  failed: {error}", file=sys.stderr)
                    results.left_out[f"{system.name}, {durability}"] = f"failed: {error}"
                    failed = failed or system is SYSTEMS[0]
    told = {"machine": machine(), "plain_loop_s": plain_loop_s(), **results.as_json()}
    if options.json:
        print(json.dumps(told))
        return 1 if failed else 0
    results.print(console)
    console.print(f"{told['machine']}; 10 million additions in a plain Python loop take ", end="")
    console.print(f"{told['plain_loop_s']:.2f} s")
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(told, indent=1) + "\n")
    return 1 if failed else 0


def _present(systems: Sequence[System], results: Results) -> list[System]:
    present = []
    for system in systems:
        try:
            system.check()
            present.append(system)
        except Unavailable as reason:
            results.left_out[system.name] = str(reason)
    return present


def _run(
    system: System,
    durability: str,
    workloads: Sequence[Workload],
    counts: dict[str, int],
    results: Results,
) -> None:
    with running(system, durability) as server:
        results.settings[f"{system.name} {system.version()}, {durability}"] = server.settings
        run = Run(server, durability, counts)
        for workload in workloads:
            if reason := workload.leaves_out.get(system.name):
                results.left_out[f"{system.name}, {workload.name}"] = reason
                continue
            results.add(workload, system.name, workload.run(run))


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m bench.peers", description="Compare Holdfast with its peers."
    )
    names = [each.name for each in WORKLOADS]
    labels = sorted({label for each in WORKLOADS for label in each.labels.values()})
    parser.add_argument(
        "workloads", nargs="*", default=names, metavar="WORKLOAD", help=f"any of: {names + labels}"
    )
    systems = [each.name for each in SYSTEMS]
    parser.add_argument("--systems", nargs="+", default=systems, choices=systems)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--add", action="store_true", help="go on after the rounds of earlier runs")
    parser.add_argument("--json", action="store_true", help="print JSON, write no file")
    options = parser.parse_args()
    if unknown := set(options.workloads) - {*names, *labels}:
        parser.error(f"no such workload: {', '.join(sorted(unknown))}")
    return options


if __name__ == "__main__":
    sys.exit(main())
