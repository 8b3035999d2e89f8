"""What a system under test is: how it is started, what is measured of it, how it is loaded."""

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from threading import Timer
from typing import Any, Protocol

import psutil

ROOT = Path(__file__).resolve().parents[2]
#: Where bench/peers/install puts what it fetches.
PEERS = ROOT / ".peers"

START_TIMEOUT_S = 60.0
#: A load takes some seconds; one that hangs (seen of RocketMQ's client) is ended and told.
LOAD_TIMEOUT_S = 90.0
#: What a load prints when what it measures begins: connected, and warm if it has to be.
BEGINS = "begins"


class Unavailable(Exception):
    """A system cannot be had here; its text is the reason."""


@dataclass(frozen=True)
class Measured:
    """What one load told: `server_cpu_s` is the processor time of all the system's processes."""

    messages: int
    body_bytes: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float
    #: Ascending; empty unless latencies were measured.
    latencies_ms: tuple[float, ...] = ()


@dataclass
class Server:
    """A system that runs. `address` is what its loads are given."""

    address: str
    settings: str
    processes: Sequence[psutil.Process]
    load_command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def load(self, verb: str, **parameters: object) -> Measured:
        """Run one load in a process of its own and return what it measured.

        RuntimeError with the load's own words if it fails.
        """
        arguments = json.dumps({"verb": verb, "address": self.address, **parameters})
        before, told = self.cpu_s(), ""
        with (
            tempfile.TemporaryFile("w+") as errors,
            subprocess.Popen(
                [*self.load_command, arguments],
                stdout=subprocess.PIPE,
                stderr=errors,
                text=True,
                cwd=ROOT,
                env={**os.environ, **self.environment},
            ) as process,
        ):
            deadline = Timer(LOAD_TIMEOUT_S, process.kill)
            deadline.start()
            assert process.stdout is not None
            for line in process.stdout:
                if line.strip() == BEGINS:
                    before = self.cpu_s()
                else:
                    told = line
            status = process.wait()
            deadline.cancel()
            if status:
                errors.seek(0)
                raise RuntimeError(f"{verb} failed: {errors.read().strip()[-2000:]}")
        return self._measured(json.loads(told), self.cpu_s() - before)

    @staticmethod
    def _measured(told: dict[str, Any], server_cpu_s: float) -> Measured:
        return Measured(
            told["messages"],
            told["body_bytes"],
            told["seconds"],
            told["client_cpu_s"],
            server_cpu_s,
            tuple(sorted(told.get("latencies_ms", ()))),
        )

    def cpu_s(self) -> float:
        """Return the processor time so far of the system's processes and their children."""
        total = 0.0
        for process in self.tree():
            times = process.cpu_times()
            total += times.user + times.system
        return total

    def tree(self) -> list[psutil.Process]:
        """Return the system's processes and their children, those that run."""
        return [
            member
            for process in self.processes
            if process.is_running()
            for member in (process, *process.children(recursive=True))
        ]


class System(Protocol):
    """A broker that can be started."""

    @property
    def name(self) -> str:
        """What the tables call it."""

    def check(self) -> None:
        """Raise Unavailable when it cannot be had here."""

    def version(self) -> str:
        """Return its version as it tells it."""

    def run(self, durability: str, directory: Path) -> AbstractContextManager[Server]:
        """Run it on an empty directory until the end of the block.

        Unavailable if it cannot give that durability.
        """


@contextmanager
def started(
    command: Sequence[str | Path],
    directory: Path,
    *,
    port: int,
    environment: dict[str, str] | None = None,
) -> Iterator[psutil.Process]:
    """Run a server until the end of the block; it is ready once it accepts on `port`.

    Its output goes to a file in `directory`, whose end is in the error if it does not start.
    """
    log = directory / f"{Path(command[0]).name}-{port}.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [str(part) for part in command],
            stdout=output,
            stderr=subprocess.STDOUT,
            cwd=directory,
            env={**os.environ, **(environment or {})},
            start_new_session=True,
        )
    try:
        deadline = time.monotonic() + START_TIMEOUT_S
        while not accepts(port):
            if process.poll() is not None or time.monotonic() > deadline:
                tail = log.read_text(errors="replace")[-2000:]
                raise RuntimeError(f"{command[0]} did not start: {tail}")
            time.sleep(0.05)
        yield psutil.Process(process.pid)
    finally:
        _end(process)


def _end(process: "subprocess.Popen[bytes]") -> None:
    for how in (signal.SIGTERM, signal.SIGKILL):
        if process.poll() is None:
            os.killpg(process.pid, how)
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                continue
    process.wait(5)


def accepts(port: int) -> bool:
    """Whether something on loopback accepts connections on the port."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    """Whether a port of loopback can be taken."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def free_port() -> int:
    """Return a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def peers_python() -> Path:
    """Return the Python that has the peers' client libraries. Unavailable without it."""
    python = PEERS / "venv" / "bin" / "python"
    if not python.exists():
        raise Unavailable("its client library is not installed: run bench/peers/install")
    return python


def python_load(module: str, *, python: Path | str = sys.executable) -> list[str]:
    """Return the command that runs a load of bench/peers/loads, in the checkout."""
    return [str(python), "-m", f"bench.peers.loads.{module}"]


@contextmanager
def running(system: System, durability: str) -> Iterator[Server]:
    """Run a system on a temporary directory."""
    with (
        tempfile.TemporaryDirectory(prefix=f"bench-{system.name}-") as directory,
        system.run(durability, Path(directory)) as server,
    ):
        yield server
