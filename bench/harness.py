"""Common parts of the benchmarks: run a broker on a temporary directory, measure wall time and
processor time, and print a table."""

import argparse
import json
import os
import platform
import resource
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from holdfast.running_broker import RunningBroker

_LOOP_ADDITIONS = 10_000_000

#: The segments are so large that a run of a few seconds does not wait for a new segment.
ARGUMENTS = ("--commitlog-segment-bytes", "256MiB")


@dataclass(frozen=True)
class Figure:
    """One measurement. `durability` is the mode in which the messages were acknowledged."""

    name: str
    durability: str
    messages: int
    body_bytes: int
    seconds: float
    broker_cpu_s: float
    client_cpu_s: float
    messages_per_s: int = field(init=False)
    mb_per_s: float = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "messages_per_s", round(self.messages / self.seconds))
        mb_per_s = round(self.messages * self.body_bytes / self.seconds / 1e6, 1)
        object.__setattr__(self, "mb_per_s", mb_per_s)


@contextmanager
def broker(arguments: Sequence[str] = ARGUMENTS) -> Iterator[RunningBroker]:
    """Run a broker process on a temporary directory and a free port."""
    with (
        tempfile.TemporaryDirectory(prefix="holdfast-bench-") as directory,
        RunningBroker(Path(directory) / "data", arguments) as running,
    ):
        yield running


def measure(
    name: str,
    running: RunningBroker,
    work: Callable[[], object],
    *,
    durability: str,
    messages: int,
    body_bytes: int,
) -> Figure:
    """Run `work` once; return its wall time, and the processor time of broker and client."""
    broker_before, client_before = process_cpu_s(running.pid), _own_cpu_s()
    started = time.perf_counter()
    work()
    seconds = time.perf_counter() - started
    return Figure(
        name,
        durability,
        messages,
        body_bytes,
        seconds,
        process_cpu_s(running.pid) - broker_before,
        _own_cpu_s() - client_before,
    )


def plain_loop_s() -> float:
    """Return how long this machine takes for 10 million additions in Python."""
    started = time.perf_counter()
    total = 0
    for number in range(_LOOP_ADDITIONS):
        total += number
    return time.perf_counter() - started


def machine() -> str:
    """Return a one-line description of this machine."""
    memory_gb = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 1e9
    return (
        f"{os.cpu_count()} cores, {memory_gb:.0f} GB, {platform.system()} {platform.release()}, "
        f"{platform.python_implementation()} {platform.python_version()}"
    )


def arguments(description: str, **defaults: int) -> argparse.Namespace:
    """Parse the command line: --json, and a whole number for each default."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    for name, default in defaults.items():
        parser.add_argument(f"--{name.replace('_', '-')}", type=int, default=default)
    return parser.parse_args()


def report(figures: Sequence[Figure], *, as_json: bool) -> None:
    """Print the figures and the time of the plain loop."""
    loop_s = plain_loop_s()
    rows: list[dict[str, Any]] = [asdict(figure) for figure in figures]
    if as_json:
        for row in rows:
            rounded = {
                name: round(value, 3) if isinstance(value, float) else value
                for name, value in {**row, "plain_loop_s": loop_s}.items()
            }
            print(json.dumps(rounded))
        return
    table = Table(box=None, header_style="bold")
    for column, justify in (
        ("what", "left"),
        ("durability", "left"),
        ("messages", "right"),
        ("bytes each", "right"),
        ("seconds", "right"),
        ("messages/s", "right"),
        ("MB/s", "right"),
        ("broker cpu s", "right"),
        ("client cpu s", "right"),
    ):
        table.add_column(column, justify=justify)  # type: ignore[arg-type]
    for figure in figures:
        table.add_row(
            figure.name,
            figure.durability,
            f"{figure.messages:,}",
            f"{figure.body_bytes:,}",
            f"{figure.seconds:.2f}",
            f"{figure.messages_per_s:,}",
            f"{figure.mb_per_s:,.1f}",
            f"{figure.broker_cpu_s:.2f}",
            f"{figure.client_cpu_s:.2f}",
        )
    console = Console(width=None if os.isatty(1) else 120)
    console.print(table)
    console.print(f"this machine: 10 million additions in a plain Python loop take {loop_s:.2f} s")


def _own_cpu_s() -> float:
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def process_cpu_s(pid: int) -> float:
    """Return the processor time of a process so far, of all its threads, in seconds, with the
    kernel's full resolution."""
    # The id of the clock as clock_getcpuclockid(3) makes it, which Python does not have.
    return time.clock_gettime((~pid << 3) | 2)


def process_resident_bytes(pid: int) -> int:
    """Return the resident memory of a process."""
    fields = Path(f"/proc/{pid}/statm").read_text().split()
    return int(fields[1]) * resource.getpagesize()
