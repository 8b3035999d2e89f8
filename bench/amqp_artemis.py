"""Publish and consume with go-amqp: Holdfast compared with Apache Artemis.

    python -m bench.amqp_artemis [--json] [--messages 60000] [--rounds 5]

All brokers run at the same time, and are measured in turns: one client, one connection, one link,
100 bytes. `written`: Holdfast answers after the write, Artemis stores nothing. `fsync`: both answer
after a sync (Artemis: its NIO journal). Publishers get credit 1,000 from both brokers, receivers
grant 1,000. Needs Go, Java and Maven; what it builds stays in `.peers/`.
"""

import argparse
import os
import shutil
import subprocess
import tempfile
from collections import defaultdict
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

from bench.rows import RATE, TIMES, Row, report
from holdfast.running_broker import RunningBroker
from tests.interop.amqp.conftest import free_port

_HERE = Path(__file__).parent / "peers" / "artemis"
_CACHE = Path(__file__).parents[1] / ".peers" / "artemis"
_BODY_BYTES = 100
_CREDIT = 1000
_WARM_UP = 20_000
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
MICROSECONDS = "us of CPU/message"


class Broker:
    """A broker that runs, with its URL and its process."""

    def __init__(self, name: str, durability: str, port: int, pid: int) -> None:
        self.name = name
        self.durability = durability
        self.url = f"amqp://127.0.0.1:{port}"
        self._pid = pid

    def cpu_s(self) -> float:
        """Return the processor time of the broker's process since its start."""
        fields = Path(f"/proc/{self._pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Holdfast and Artemis with go-amqp.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each broker in turns; yield the rates, the processor times, and their ratios."""
    load = _build()
    rates: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = [
            start(stack, folder, durability)
            for durability in ("written", "fsync")
            for start in (_holdfast, _artemis)
        ]
        for number in range(rounds + 1):  # the first one only warms up
            count = messages if number else _WARM_UP
            for broker in brokers:
                for mode in ("publish", "consume"):
                    before = broker.cpu_s()
                    seconds = _run(load, broker, f"round{number}", mode, count)
                    if number:
                        key = (broker.name, mode, broker.durability)
                        rates[key].append(count / seconds)
                        times[key].append((broker.cpu_s() - before) / count * 1e6)
    for name, mode, durability in rates:
        key = (name, mode, durability)
        yield Row("", f"{mode}, {name}", durability, RATE, rates[key], _BODY_BYTES)
        yield Row("", f"{mode}, {name}", durability, MICROSECONDS, times[key], _BODY_BYTES)
    for durability in ("written", "fsync"):
        for mode in ("publish", "consume"):
            ours, theirs = (("holdfast", mode, durability), ("artemis", mode, durability))
            for unit, found in (("rate", rates), ("CPU", times)):
                shares = [a / b for a, b in zip(found[ours], found[theirs], strict=True)]
                yield Row("", f"{mode}, {unit}, holdfast / artemis", durability, TIMES, shares)


def _run(load: Path, broker: Broker, address: str, mode: str, messages: int) -> float:
    durable = "durable" if broker.durability == "fsync" else "not"
    arguments = [broker.url, address, mode, str(messages), str(_BODY_BYTES), str(_CREDIT), durable]
    done = subprocess.run([load, *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, f"{broker.name}: {done.stderr}"
    return float(done.stdout)


def _holdfast(stack: ExitStack, folder: Path, durability: str) -> Broker:
    port = free_port()
    arguments = (
        *("--amqp-port", str(port), "--topics-default-durability", durability),
        *("--amqp-publish-credit", str(_CREDIT), "--commitlog-segment-bytes", "256MiB"),
    )
    broker = stack.enter_context(RunningBroker(folder / f"holdfast-{durability}", arguments))
    return Broker("holdfast", durability, port, broker.pid)


def _artemis(stack: ExitStack, folder: Path, durability: str) -> Broker:
    port = free_port()
    data = folder / f"artemis-{durability}"
    mode = "journal" if durability == "fsync" else "memory"
    process = subprocess.Popen(
        [
            *("java", "-Xmx1g", "-cp", f"{_CACHE / 'classes'}:{_CACHE / 'lib'}/*", "Peer"),
            *(str(port), str(data), str(_CREDIT), mode),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert "up\n" in iter(process.stdout.readline, ""), "Artemis did not start"
    return Broker("artemis", durability, port, process.pid)


def _build() -> Path:
    """Fetch and compile the peer and the client, once."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    if not (_CACHE / "lib").exists():
        shutil.copy(_HERE / "pom.xml", _CACHE)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        command = ["mvn", "--quiet", "--batch-mode", goal, f"-DoutputDirectory={_CACHE / 'lib'}"]
        subprocess.run(command, cwd=_CACHE, check=True)
    compile_ = ["javac", "-cp", f"{_CACHE / 'lib'}/*", "-d", _CACHE / "classes"]
    subprocess.run([*map(str, compile_), str(_HERE / "Peer.java")], check=True)
    load = _CACHE / "load"
    subprocess.run(["go", "build", "-o", load, "."], cwd=_HERE / "go", check=True)
    return load


if __name__ == "__main__":
    main()
