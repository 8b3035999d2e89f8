"""Publish and consume with go-amqp: Holdfast compared with Apache Artemis and RabbitMQ.

    python -m bench.amqp_artemis [--json] [--peers artemis rabbitmq rabbitmq-quorum]
                                 [--messages 60000] [--rounds 5] [--seconds 420]

All brokers run at the same time, and are measured in turns, every second round in the opposite
order. Each measurement has a new client, connection, link and queue; 100 bytes. `written`: Holdfast
answers after the write, Artemis stores nothing. `fsync`: both answer after a sync (Artemis: its NIO
journal). Publishers get credit 1,000 from both brokers, receivers grant 1,000.

RabbitMQ 3.10 is measured with its plugin amqp1_0. `rabbitmq` is the queue that the plugin makes, as
`written`: a classic queue that is not durable, with messages that are not durable, so it stores
nothing. `rabbitmq-quorum` is a quorum queue that was declared before, as `fsync`: it answers after
its log's sync. The plugin grants publishers credit 65,536, which cannot be changed. RabbitMQ is
left out if it is not installed.

If a broker stops in the middle of a round, the round is repeated with a new node, and the stop is
reported; the benchmark fails after MOST_STOPS stops. Needs Go, and Java and Maven for Artemis; what
it builds stays in `.peers/`. After `--seconds`, no further round begins.
"""

import argparse
import shutil
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Collection, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path

from bench.harness import process_cpu_s
from bench.peers.system import Unavailable, peers_python
from bench.peers.systems.rabbitmq import RabbitAmqp
from bench.rows import RATE, TIMES, Row, report
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker

#: A port, and a function that returns processor time.
_Node = tuple[int, Callable[[], float]]

_HERE = Path(__file__).parent / "peers" / "artemis"
_CACHE = Path(__file__).parents[1] / ".peers" / "artemis"
_BODY_BYTES = 100
_CREDIT = 1000
_WARM_UP = 20_000
#: A load reports a stop itself, with status 3; this is for a client that hangs.
_ROUND_S = 120
_STOPPED = 3
MOST_STOPS = 5
PEERS = ("artemis", "rabbitmq", "rabbitmq-quorum")
_MODES = {
    "artemis": ("written", "fsync"),
    "rabbitmq": ("written",),
    "rabbitmq-quorum": ("fsync",),
}
_PREFIXES = {"rabbitmq": "/queue/", "rabbitmq-quorum": "/amq/queue/"}
#: Runs in the Python of the peers' clients.
_DECLARE = """
import pika, sys
connection = pika.BlockingConnection(pika.ConnectionParameters("127.0.0.1", int(sys.argv[1])))
kind = {"x-queue-type": "quorum"}
connection.channel().queue_declare(sys.argv[2], durable=True, arguments=kind)
connection.close()
"""
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


class Stopped(Exception):
    """The broker stopped in the middle of a measurement."""


class Broker:
    """A broker that runs. `start` runs a node and returns its port and a function that returns the
    processor time of its processes since their start. An address is `prefix` and a queue's name.
    `declare` makes the queue of this name on the node at this port, if the client cannot."""

    def __init__(
        self,
        name: str,
        durability: str,
        start: Callable[[ExitStack], _Node],
        prefix: str,
        declare: Callable[[int, str], None] | None,
    ) -> None:
        self.name = name
        self.durability = durability
        self._prefix = prefix
        self._declare = declare
        self.stop_count = 0
        self._start = start
        self._stack = ExitStack()
        self._port, self.cpu_s = start(self._stack)

    @property
    def url(self) -> str:
        """The URL of the node that runs now."""
        return f"amqp://127.0.0.1:{self._port}"

    def new_queue(self, name: str) -> str:
        """Return the address of a queue. The client makes the queue if this method does not."""
        if self._declare is not None:
            self._declare(self._port, name)
        return self._prefix + name

    def restart(self) -> None:
        """End the node, and run a new one without data."""
        self.close()
        self._port, self.cpu_s = self._start(self._stack)

    def close(self) -> None:
        """End the node."""
        self._stack.close()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Holdfast and Artemis with go-amqp.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--peers", nargs="+", default=PEERS, choices=PEERS)
    parser.add_argument("--messages", type=int, default=60_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=420.0)
    options = parser.parse_args()
    found = rows(options.peers, options.messages, options.rounds, options.seconds)
    report(found, as_json=options.json)


def rows(peers: Collection[str], messages: int, rounds: int, seconds: float) -> Iterator[Row]:
    """Measure each broker in turns; yield the rates, the processor times, and their ratios."""
    load = _build(peers)
    rates: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    times: dict[tuple[str, str, str], list[float]] = defaultdict(list)
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        brokers = [*_brokers(stack, folder, peers)]
        end_s = time.monotonic() + seconds
        for number in range(rounds + 1):  # the first one only warms up
            if number > 1 and time.monotonic() > end_s:
                print(f"only {number - 1} rounds in {seconds:.0f} s", file=sys.stderr)
                break
            count = messages if number else min(messages, _WARM_UP)
            for broker in brokers if number % 2 else reversed(brokers):
                for mode, (rate, cpu_us) in _round(load, broker, number, count).items():
                    if number:
                        rates[broker.name, mode, broker.durability].append(rate)
                        times[broker.name, mode, broker.durability].append(cpu_us)
        stops = {(each.name, each.durability): each.stop_count for each in brokers}
    for name, mode, durability in rates:
        key = (name, mode, durability)
        yield Row("", f"{mode}, {name}", durability, RATE, rates[key], _BODY_BYTES)
        yield Row("", f"{mode}, {name}", durability, MICROSECONDS, times[key], _BODY_BYTES)
    for peer, mode, durability in rates:
        if peer == "holdfast":
            continue
        for unit, found in (("rate", rates), ("CPU", times)):
            ours, theirs = found["holdfast", mode, durability], found[peer, mode, durability]
            shares = [a / b for a, b in zip(ours, theirs, strict=True)]
            bar, least, most = _BARS.get((peer, mode, durability, unit), ("", None, None))
            case = f"{mode}, {unit}, holdfast / {peer}"
            yield Row(bar, case, durability, TIMES, shares, at_least=least, at_most=most)
    for (name, durability), count in stops.items():
        if count:
            yield Row("", f"rounds repeated because {name} stopped", durability, "rounds", [count])


def _brokers(stack: ExitStack, folder: Path, peers: Collection[str]) -> Iterator[Broker]:
    """Start the brokers. `stack` ends them."""
    start: Callable[[Path, ExitStack], _Node]
    starts: list[tuple[str, str, Callable[[Path, ExitStack], _Node]]] = []
    for durability in ("written", "fsync"):
        beside = [each for each in peers if durability in _MODES[each]]
        if beside:
            starts.append(("holdfast", durability, partial(_holdfast, durability)))
        for peer in beside:
            start = partial(_artemis, durability) if peer == "artemis" else _rabbitmq
            starts.append((peer, durability, start))
    for name, durability, start in starts:
        run = partial(_in_new_folder, folder, start)
        declare = _declare_quorum if name == "rabbitmq-quorum" else None
        try:
            broker = Broker(name, durability, run, _PREFIXES.get(name, ""), declare)
        except Unavailable as reason:
            print(f"left out: {reason}", file=sys.stderr)
            continue
        stack.callback(broker.close)
        yield broker


def _in_new_folder(
    folder: Path, start: Callable[[Path, ExitStack], _Node], stack: ExitStack
) -> _Node:
    return start(Path(tempfile.mkdtemp(dir=folder)), stack)


def _round(
    load: Path, broker: Broker, number: int, messages: int
) -> dict[str, tuple[float, float]]:
    """Publish and consume. Return the rate of each, and the broker's processor time of a message in
    microseconds. If the broker stops, repeat both with a new node."""
    modes = ("publish", "consume")
    is_cold = False
    while True:
        try:
            if is_cold:
                address = broker.new_queue("warm-up")
                for mode in modes:
                    _run(load, broker, address, mode, min(messages, _WARM_UP))
            address = broker.new_queue(f"round{number}")
            return {mode: _measured(load, broker, address, mode, messages) for mode in modes}
        except Stopped as stop:
            broker.stop_count += 1
            print(f"{broker.name}, round {number}: {stop}", file=sys.stderr)
            if broker.stop_count >= MOST_STOPS:
                raise
            broker.restart()
            is_cold = True


def _measured(
    load: Path, broker: Broker, address: str, mode: str, messages: int
) -> tuple[float, float]:
    """Return the rate, and the broker's processor time of a message in microseconds. Raise Stopped
    if the broker stops."""
    before = broker.cpu_s()
    used_s = _run(load, broker, address, mode, messages)
    return messages / used_s, (broker.cpu_s() - before) / messages * 1e6


def _run(load: Path, broker: Broker, address: str, mode: str, messages: int) -> float:
    durable = "durable" if broker.durability == "fsync" else "not"
    arguments = [broker.url, address, mode, str(messages), str(_BODY_BYTES), str(_CREDIT), durable]
    try:
        done = subprocess.run(
            [load, *arguments], capture_output=True, text=True, check=False, timeout=_ROUND_S
        )
    except subprocess.TimeoutExpired:
        raise Stopped(f"{mode} did not end within {_ROUND_S} s") from None
    if done.returncode == _STOPPED:
        raise Stopped(f"{mode} {done.stderr}")
    assert done.returncode == 0, f"{broker.name}: {done.stderr}"
    return float(done.stdout)


def _holdfast(durability: str, folder: Path, stack: ExitStack) -> _Node:
    port = free_port()
    arguments = (
        *("--amqp-port", str(port), "--topics-default-durability", durability),
        *("--amqp-publish-credit", str(_CREDIT), "--commitlog-segment-bytes", "256MiB"),
    )
    broker = stack.enter_context(RunningBroker(folder, arguments))
    return port, partial(process_cpu_s, broker.pid)


def _rabbitmq(folder: Path, stack: ExitStack) -> _Node:
    peer = RabbitAmqp()
    peer.check()
    server = stack.enter_context(peer.run("written", folder))
    return int(server.address.partition(":")[2].partition("/")[0]), server.cpu_s


def _declare_quorum(port: int, name: str) -> None:
    subprocess.run([peers_python(), "-c", _DECLARE, str(port), name], check=True)


def _artemis(durability: str, folder: Path, stack: ExitStack) -> _Node:
    port = free_port()
    mode = "journal" if durability == "fsync" else "memory"
    process = subprocess.Popen(
        [
            *("java", "-Xmx1g", "-cp", f"{_CACHE / 'classes'}:{_CACHE / 'lib'}/*", "Peer"),
            *(str(port), str(folder), str(_CREDIT), mode),
        ],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    stack.callback(process.wait)
    stack.callback(process.kill)
    assert process.stdout is not None
    assert "up\n" in iter(process.stdout.readline, ""), "Artemis did not start"
    return port, partial(process_cpu_s, process.pid)


def _build(peers: Collection[str]) -> Path:
    """Fetch and compile the client, and Artemis if it is among the peers."""
    _CACHE.mkdir(parents=True, exist_ok=True)
    load = _CACHE / "load"
    subprocess.run(["go", "build", "-o", load, "."], cwd=_HERE / "go", check=True)
    if "artemis" not in peers:
        return load
    if not (_CACHE / "lib").exists():
        shutil.copy(_HERE / "pom.xml", _CACHE)
        goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
        command = ["mvn", "--quiet", "--batch-mode", goal, f"-DoutputDirectory={_CACHE / 'lib'}"]
        subprocess.run(command, cwd=_CACHE, check=True)
    compile_ = ["javac", "-cp", f"{_CACHE / 'lib'}/*", "-d", _CACHE / "classes"]
    subprocess.run([*map(str, compile_), str(_HERE / "Peer.java")], check=True)
    return load


if __name__ == "__main__":
    main()
