"""Publish and consume with go-amqp: Holdfast compared with Apache Artemis and RabbitMQ.

    python -m bench.amqp_artemis [--json] [--messages 60000] [--rounds 5] [--seconds 420]

All brokers run at the same time, and are measured in turns: one client, one connection, one link,
100 bytes. `written`: Holdfast answers after the write, Artemis stores nothing. `fsync`: both answer
after a sync (Artemis: its NIO journal). Publishers get credit 1,000 from both brokers, receivers
grant 1,000. RabbitMQ 3.10 with its plugin amqp1_0 is measured as `written` only, with messages that
are not durable; it is left out if it is not installed, or if a round with it does not end within
a minute, which happens. Needs Go, Java and Maven; what it builds
stays in `.peers/`. After `--seconds`, no further round begins.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.harness import process_cpu_s
from bench.peers.system import Unavailable
from bench.peers.systems.rabbitmq import RabbitAmqp
from bench.rows import RATE, TIMES, Row, report
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker

_HERE = Path(__file__).parent / "peers" / "artemis"
_CACHE = Path(__file__).parents[1] / ".peers" / "artemis"
_BODY_BYTES = 100
_CREDIT = 1000
_WARM_UP = 20_000
_ROUND_S = 60
MICROSECONDS = "us of CPU/message"
#: peer, mode, durability, unit -> the bar and its limits: at least, and at most.
_BARS: dict[tuple[str, str, str, str], tuple[str, float | None, float | None]] = {
    ("artemis", "publish", "written", "rate"): ("B1", 0.8, None),
    ("artemis", "publish", "written", "CPU"): ("B1", None, 0.8),
    ("artemis", "publish", "fsync", "rate"): ("B2", 1.0, None),
    ("artemis", "consume", "written", "rate"): ("B3", 0.6, None),
    ("rabbitmq", "publish", "written", "rate"): ("B4", 3.0, None),
    ("rabbitmq", "consume", "written", "rate"): ("B4", 3.0, None),
}


class Broker:
    """A broker that runs. `cpu_s` returns the processor time of its processes since their start;
    its addresses are `prefix` and the name of a queue."""

    def __init__(
        self, name: str, durability: str, port: int, cpu_s: Callable[[], float], prefix: str = ""
    ) -> None:
        self.name = name
        self.durability = durability
        self.url = f"amqp://127.0.0.1:{port}"
        self.cpu_s = cpu_s
        self.prefix = prefix


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Holdfast and Artemis with go-amqp.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=420.0)
    options = parser.parse_args()
    report(rows(options.messages, options.rounds, options.seconds), as_json=options.json)


def rows(messages: int, rounds: int, seconds: float) -> Iterator[Row]:
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
        try:
            brokers.append(_rabbitmq(stack, folder))
        except Unavailable as reason:
            print(f"left out: {reason}", file=sys.stderr)
        end_s = time.monotonic() + seconds
        for number in range(rounds + 1):  # the first one only warms up
            if number > 1 and time.monotonic() > end_s:
                print(f"only {number - 1} rounds in {seconds:.0f} s", file=sys.stderr)
                break
            count = messages if number else min(messages, _WARM_UP)
            for broker in [*brokers]:
                try:
                    round_ = {
                        mode: _measured(load, broker, f"{broker.prefix}round{number}", mode, count)
                        for mode in ("publish", "consume")
                    }
                except subprocess.TimeoutExpired:
                    print(f"left out from round {number} on: {broker.name}", file=sys.stderr)
                    brokers.remove(broker)
                    continue
                for mode, (rate, cpu_us) in round_.items():
                    if number:
                        rates[broker.name, mode, broker.durability].append(rate)
                        times[broker.name, mode, broker.durability].append(cpu_us)
    for name, mode, durability in rates:
        key = (name, mode, durability)
        yield Row("", f"{mode}, {name}", durability, RATE, rates[key], _BODY_BYTES)
        yield Row("", f"{mode}, {name}", durability, MICROSECONDS, times[key], _BODY_BYTES)
    for peer, mode, durability in rates:
        if peer == "holdfast":
            continue
        for unit, found in (("rate", rates), ("CPU", times)):
            ours, theirs = found["holdfast", mode, durability], found[peer, mode, durability]
            shares = [a / b for a, b in zip(ours, theirs, strict=False)]
            bar, least, most = _BARS.get((peer, mode, durability, unit), ("", None, None))
            case = f"{mode}, {unit}, holdfast / {peer}"
            yield Row(bar, case, durability, TIMES, shares, at_least=least, at_most=most)


def _measured(
    load: Path, broker: Broker, address: str, mode: str, messages: int
) -> tuple[float, float]:
    """Return the rate, and the broker's processor time of a message in microseconds."""
    before = broker.cpu_s()
    used_s = _run(load, broker, address, mode, messages)
    return messages / used_s, (broker.cpu_s() - before) / messages * 1e6


def _run(load: Path, broker: Broker, address: str, mode: str, messages: int) -> float:
    durable = "durable" if broker.durability == "fsync" else "not"
    arguments = [broker.url, address, mode, str(messages), str(_BODY_BYTES), str(_CREDIT), durable]
    done = subprocess.run(
        [load, *arguments], capture_output=True, text=True, check=False, timeout=_ROUND_S
    )
    assert done.returncode == 0, f"{broker.name}: {done.stderr}"
    return float(done.stdout)


def _holdfast(stack: ExitStack, folder: Path, durability: str) -> Broker:
    port = free_port()
    arguments = (
        *("--amqp-port", str(port), "--topics-default-durability", durability),
        *("--amqp-publish-credit", str(_CREDIT), "--commitlog-segment-bytes", "256MiB"),
    )
    broker = stack.enter_context(RunningBroker(folder / f"holdfast-{durability}", arguments))
    return Broker("holdfast", durability, port, partial(process_cpu_s, broker.pid))


def _rabbitmq(stack: ExitStack, folder: Path) -> Broker:
    peer = RabbitAmqp()
    peer.check()
    data = folder / "rabbitmq"
    data.mkdir()
    server = stack.enter_context(peer.run("written", data))
    port = int(server.address.partition(":")[2].partition("/")[0])
    return Broker("rabbitmq", "written", port, server.cpu_s, "/queue/")


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
    return Broker("artemis", durability, port, partial(process_cpu_s, process.pid))


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
