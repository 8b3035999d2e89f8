"""How much processor time starts cost: a client, the help, one publish, and a broker.

    python -m bench.startup [--json] [--runs 10] [--beside DIRECTORY]

Each value is the processor time (user and system) of one new process, in milliseconds. Bare Python
is measured for comparison. The cases take turns, so that a busy machine affects all of them alike.
With `--beside`, each case is also measured with the package of another checkout, in the same turns,
and the ratio of the medians is printed.
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.harness import broker, process_cpu_s
from bench.rows import TIMES, Row, print_table

_ROOT = Path(__file__).resolve().parents[1]
_UNIT = "ms of cpu"
_READY = b"holdfast: serving on "

_IMPORT = "import holdfast; holdfast.Client"
_CLIENT = "import holdfast; holdfast.Client()"


@dataclass(frozen=True)
class Case:
    """One kind of start. `measure` starts a process with the package of a checkout and returns the
    process's processor time in milliseconds. `bar_ms` is for a machine whose bare Python takes
    11 ms."""

    name: str
    measure: Callable[[Path], float]
    bar_ms: float | None = None


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="How much processor time starts cost.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--runs", type=int, default=10)
    parser.add_argument("--beside", type=Path, help="another checkout, measured in the same turns")
    options = parser.parse_args()
    with broker() as running:
        rows = list(_measure(_cases(running.url), options.runs, options.beside))
    if options.json:
        for row in rows:
            print(json.dumps(row.as_json()))
    else:
        print_table(rows)


def _cases(url: str) -> list[Case]:
    holdfast = ("-m", "holdfast")
    publish = (*holdfast, "publish", "startup", "--body", "x", "--url", url)
    return [
        Case("bare Python", _ends("-c", "pass")),
        Case("import holdfast; holdfast.Client", _ends("-c", _IMPORT), 150),
        Case("make a holdfast.Client", _ends("-c", _CLIENT)),
        Case("holdfast --help", _ends(*holdfast, "--help"), 70),
        Case("holdfast publish, one message", _ends(*publish), 170),
        Case("start of a broker", _broker_ms, 500),
    ]


def _measure(cases: Sequence[Case], runs: int, beside: Path | None) -> Iterator[Row]:
    trees = [_ROOT] if beside is None else [_ROOT, beside.resolve()]
    values: dict[tuple[str, Path], list[float]] = {}
    for turn in range(runs + 1):
        for case in cases:
            for tree in trees:
                took_ms = case.measure(tree)
                if turn:  # the first turn fills caches, such as compiled modules
                    values.setdefault((case.name, tree), []).append(took_ms)
    for case in cases:
        own = Row("", case.name, "-", _UNIT, values[case.name, _ROOT], at_most=case.bar_ms)
        yield own
        for tree in trees[1:]:
            other = Row("", f"{case.name}, {tree.name}", "-", _UNIT, values[case.name, tree])
            yield other
            ratio = own.median / other.median
            yield Row("", f"{case.name}, beside {tree.name}", "-", TIMES, [ratio])


def _ends(*arguments: str) -> Callable[[Path], float]:
    """Return a measurement of a Python process that ends by itself."""

    def measure(tree: Path) -> float:
        process = _start(tree, arguments, stdout=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        assert process.returncode == 0, arguments
        return 1000 * (usage.ru_utime + usage.ru_stime)

    return measure


def _broker_ms(tree: Path) -> float:
    """Return the processor time of a broker until it serves."""
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder:
        where = ("--data-dir", f"{folder}/data", "--port", "0", "--log-level", "error")
        process = _start(tree, ("-m", "holdfast", "serve", *where), stdout=subprocess.PIPE)
        with _ended(process):
            assert process.stdout is not None
            assert process.stdout.readline().startswith(_READY)
            return 1000 * process_cpu_s(process.pid)


def _start(tree: Path, arguments: Sequence[str], stdout: int) -> "subprocess.Popen[bytes]":
    environ = {**os.environ, "PYTHONPATH": str(tree)}
    # An installed package has its compiled modules. Without them most of a start is compilation.
    environ.pop("PYTHONDONTWRITEBYTECODE", None)
    return subprocess.Popen(
        [sys.executable, *arguments],
        cwd=tree,
        env=environ,
        stdin=subprocess.DEVNULL,
        stdout=stdout,
    )


@contextmanager
def _ended(process: "subprocess.Popen[bytes]") -> Iterator[None]:
    try:
        yield
    finally:
        process.kill()
        process.communicate()


if __name__ == "__main__":
    main()
