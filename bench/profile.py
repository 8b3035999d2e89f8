"""Profile the processor time per message: py-spy samples broker and client during a workload.

    python -m bench.profile W1 [W2 ...] [--json DIRECTORY] [--top 12]

Prints the processor time per message of each process. The time is divided by thread, as Linux
counts it; and by area (one of our files or a library) and function, as the samples show it.
`--json` also writes the profile to the file WORKLOAD.json in a folder; `python -m bench.report`
compares two such profiles. Needs py-spy (`make venv` installs it) and the right to trace own
processes. Sampling slows the processes down, so no table uses the rates of such a run.
"""

import argparse
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import psutil

from bench.folded import Sample, samples, spread, with_ended
from bench.harness import broker
from bench.peers.system import BEGINS, ROOT

_RATE_HZ = 200
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_BATCH = 1000
_ATTACHING_S = 0.7


@dataclass(frozen=True)
class Profile:
    """The processor time of one process, in microseconds per message: in total, in the kernel, and
    by thread, area and function."""

    process: str
    us_per_message: float
    kernel_us_per_message: float
    spread: Mapping[str, Mapping[str, float]]


@dataclass
class Recording:
    """The samples of a process, and the processor time of its threads in seconds.

    The times are set at the end: `spent_s` for each living thread by its id, `ended_s` for all
    ended threads together.
    """

    file: Path
    spent_s: dict[str, float] = field(default_factory=dict)
    ended_s: float = 0.0
    kernel_s: float = 0.0


@dataclass(frozen=True)
class Load:
    """A load of bench/peers/loads/holdfast_load.py. With `backlog`, the messages that it reads are
    published before it."""

    durability: str
    asked: Mapping[str, Any]
    backlog: bool = False


class Observed:
    """A load in its own process. It waits for a line on stdin before its work, and for another line
    before it ends."""

    def __init__(self, asked: Mapping[str, Any]) -> None:
        command = [sys.executable, "-m", "bench.peers.loads.holdfast_load"]
        pipe = subprocess.PIPE
        self._process = subprocess.Popen(
            [*command, json.dumps({"observed": True, **asked})],
            stdin=pipe,
            stdout=pipe,
            stderr=pipe,
            text=True,
            cwd=ROOT,
        )
        self.pid = self._process.pid
        self._line()

    def work(self) -> None:
        """Let the load work; return when its work is done and the process is still running."""
        self._go()
        self._line()

    def told(self) -> dict[str, Any]:
        """Let the load end; return its measurement."""
        self._go()
        told: dict[str, Any] = json.loads(self._line())
        self._process.wait(30)
        return told

    def _go(self) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write("\n")
        self._process.stdin.flush()

    def _line(self) -> str:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if line.strip() == BEGINS:
            return self._line()
        if not line:
            raise RuntimeError(self._process.communicate()[1].strip()[-2000:])
        return line


def _publish(messages: int, body_bytes: int) -> Load:
    return Load(
        "written",
        {"verb": "publish", "messages": messages, "body_bytes": body_bytes, "batch": _BATCH},
    )


def _consume(messages: int, body_bytes: int) -> Load:
    asked = {"verb": "consume", "messages": messages, "body_bytes": body_bytes}
    return Load("written", asked, backlog=True)


def _singles(messages: int, producers: int) -> Load:
    asked = {"verb": "singles", "messages": messages, "body_bytes": 1024, "producers": producers}
    return Load("fsync", asked)


_LOADS = {
    "W1": _publish(4_000_000, 100),
    "W2": _publish(1_000_000, 1024),
    "W3": _consume(5_000_000, 100),
    "W3-1k": _consume(1_000_000, 1024),
    "W4-1": _singles(2_000, 1),
    "W4-16": _singles(9_600, 16),
    "W4-64": _singles(9_600, 64),
    "W5": Load("written", {"verb": "latency", "messages": 3_000, "body_bytes": 100, "rate": 1000}),
}


def main() -> None:
    """Profile the requested workloads."""
    names = [*_LOADS, "W8"]
    parser = argparse.ArgumentParser(description="Where a message's time goes.")
    parser.add_argument("workloads", nargs="+", choices=names, metavar="WORKLOAD")
    parser.add_argument("--json", type=Path, metavar="DIRECTORY")
    parser.add_argument("--top", type=int, default=12)
    options = parser.parse_args()
    for name in options.workloads:
        profiles = spark_scan() if name == "W8" else load(name, _LOADS[name])
        for profile in profiles:
            _print(name, profile, options.top)
        if options.json:
            options.json.mkdir(parents=True, exist_ok=True)
            told = [asdict(profile) for profile in profiles]
            (options.json / f"{name}.json").write_text(json.dumps(told, indent=1) + "\n")


def load(name: str, wanted: Load) -> list[Profile]:
    """Profile the broker and the processes of the load."""
    asked = {"topic": "profiled", "durability": wanted.durability, **wanted.asked}
    with broker() as running, tempfile.TemporaryDirectory() as folder:
        asked["address"] = running.url
        if wanted.backlog:
            publisher = Observed({**asked, "verb": "publish", "batch": _BATCH})
            publisher.work()
            publisher.told()
        client = Observed(asked)
        recordings = []
        with ExitStack() as stack:
            for pid in (running.pid, client.pid):
                file = Path(folder, str(pid))
                recordings.append(stack.enter_context(recorded(pid, file)))
            client.work()
        told = client.told()
        print(f"{name}: {told['messages'] / told['seconds']:,.0f} messages/s while sampled")
        return [
            _profile(process, [recording], told["messages"])
            for process, recording in zip(("broker", "client"), recordings, strict=True)
        ]


def spark_scan(messages: int = 5_000_000) -> list[Profile]:
    """Profile the broker and Spark's Python workers through two noop scans."""
    # Imported only here: pyspark takes a second to import, and may not be installed.
    from bench.bulk import BulkConnection
    from holdfast.spark import bind, local_session

    with broker() as running, tempfile.TemporaryDirectory() as folder:
        connection = BulkConnection(running.url)
        connection.create("profiled", queues=4)
        connection.publish("profiled", messages=messages, body_bytes=100, queues=4)
        spark = local_session(2, settings={"spark.driver.memory": "4g"})
        bound = bind(running.url, "profiled", columns="queue,offset,store_timestamp,body")
        frame = bound.load(spark)
        frame.write.format("noop").mode("overwrite").save()  # starts and warms up the workers
        with ExitStack() as stack:
            recordings = [
                stack.enter_context(recorded(pid, Path(folder, str(pid))))
                for pid in (running.pid, *_spark_workers())
            ]
            started = time.perf_counter()
            for _ in range(2):
                frame.write.format("noop").mode("overwrite").save()
            seconds = time.perf_counter() - started
        spark.stop()
        print(f"W8: {2 * messages / seconds:,.0f} rows/s while sampled")
        return [
            _profile("broker", recordings[:1], 2 * messages),
            _profile("Spark's Python workers", recordings[1:], 2 * messages),
        ]


def _spark_workers() -> list[int]:
    return [
        each.pid
        for each in psutil.Process().children(recursive=True)
        if "pyspark.daemon" in " ".join(each.cmdline()) and not each.children()
    ]


@contextmanager
def recorded(pid: int, file: Path) -> Iterator[Recording]:
    """Sample a process and its later children until the end of the block or of the process."""
    recording = Recording(file)
    command = [
        *(_py_spy(), "record", "--pid", str(pid), "--output", str(file), "--format", "raw"),
        *("--rate", str(_RATE_HZ), "--threads", "--full-filenames", "--function"),
        # If each sample stopped the process, its waiting threads would look busy.
        *("--nonblocking", "--subprocesses"),
    ]
    sampler = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    time.sleep(_ATTACHING_S)  # py-spy does not report when it is attached
    before = _times(pid)
    try:
        yield recording
    finally:
        after = _times(pid)
        sampler.send_signal(signal.SIGINT)
        _, told = sampler.communicate(timeout=30)
    if not file.exists():
        raise RuntimeError(f"py-spy: {told.decode().strip()[-2000:]}")
    recording.spent_s = {
        thread: late - before.threads_s.get(thread, 0.0) for thread, late in after.threads_s.items()
    }
    recording.ended_s = after.all_s - before.all_s - sum(recording.spent_s.values())
    recording.kernel_s = after.kernel_s - before.kernel_s


@dataclass(frozen=True)
class _Times:
    """The processor time so far of a process and its children: in total, in the kernel, and for
    each living thread by its id."""

    all_s: float
    kernel_s: float
    threads_s: Mapping[str, float]


def _times(pid: int) -> _Times:
    pids = [pid, *(child.pid for child in psutil.Process(pid).children(recursive=True))]
    whole = [_read_stat(Path(f"/proc/{each}/stat")) for each in pids]
    files = [file for each in pids for file in Path(f"/proc/{each}/task").glob("*/stat")]
    return _Times(
        sum(sum(times) for times in whole),
        sum(kernel for _, kernel in whole),
        {file.parent.name: sum(_read_stat(file)) for file in files},
    )


def _read_stat(file: Path) -> tuple[float, float]:
    """Return the seconds in user mode and in the kernel."""
    fields = file.read_text().rpartition(")")[2].split()
    return int(fields[11]) / _TICKS_PER_S, int(fields[12]) / _TICKS_PER_S


def _py_spy() -> str:
    beside = Path(sys.executable).with_name("py-spy")
    program = str(beside) if beside.exists() else shutil.which("py-spy")
    if not program:
        raise SystemExit("py-spy is not installed: make venv")
    return program


def _profile(process: str, recordings: list[Recording], messages: int) -> Profile:
    us = 1e6 / messages
    seen: list[Sample] = []
    spent_us: dict[str, float] = {}
    for recording in recordings:
        here = list(samples(recording.file.read_text().splitlines()))
        seen += here
        spent_s = with_ended(recording.spent_s, recording.ended_s, here)
        spent_us |= {thread: seconds * us for thread, seconds in spent_s.items()}
    kernel = sum(each.kernel_s for each in recordings) * us
    return Profile(process, sum(spent_us.values()), kernel, spread(seen, spent_us))


def _print(name: str, profile: Profile, top: int) -> None:
    print(
        f"\n{name}, {profile.process}: {profile.us_per_message:.2f} us a message, "
        f"{profile.kernel_us_per_message:.2f} of it in the kernel"
    )
    for by, amounts in profile.spread.items():
        print(f"  by {by}")
        for what, amount in list(amounts.items())[:top]:
            print(f"    {amount / profile.us_per_message:6.1%} {amount:9.2f} us  {what}")


if __name__ == "__main__":
    main()
