"""A system under test: start it, run loads on it, and measure its processor time."""

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
#: The folder into which bench/peers/install downloads.
PEERS = ROOT / ".peers"

START_TIMEOUT_S = 60.0
#: A load takes a few seconds. If a load hangs (as RocketMQ's client did), it is killed after this
#: time, and its failure is reported.
LOAD_TIMEOUT_S = 90.0
#: A load prints this line when it is connected and warmed up, just before the measured work begins.
BEGINS = "begins"


class Unavailable(Exception):
    """A system is not available here; the message is the reason."""


@dataclass(frozen=True)
class Measured:
    """The measurement of one load. `server_cpu_s` is the processor time of all processes of the
    system."""

    messages: int
    body_bytes: int
    seconds: float
    client_cpu_s: float
    server_cpu_s: float
    #: In ascending order; empty unless latencies were measured.
    latencies_ms: tuple[float, ...] = ()


@dataclass
class Server:
    """A running system. `address` is passed to its loads."""

    address: str
    settings: str
    processes: Sequence[psutil.Process]
    load_command: Sequence[str]
    environment: dict[str, str] = field(default_factory=dict)

    def load(self, verb: str, **parameters: object) -> Measured:
        """Run one load in its own process and return its measurement.

        Raise RuntimeError with the load's error output if it fails.
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
        """Return the running processes of the system and their children."""
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
        """The name in the tables."""

    def check(self) -> None:
        """Raise Unavailable if the system is not available here."""

    def version(self) -> str:
        """Return the version that the system reports."""

    def run(self, durability: str, directory: Path) -> AbstractContextManager[Server]:
        """Run the system on an empty directory until the end of the block.

        Raise Unavailable if it does not support that durability.
        """


@contextmanager
def started(
    command: Sequence[str | Path],
    directory: Path,
    *,
    port: int,
    environment: dict[str, str] | None = None,
) -> Iterator[psutil.Process]:
    """Run a server until the end of the block; it is ready once it accepts connections on `port`.

    Its output is written to a file in `directory`. If it does not start, the error message contains
    the end of this output.
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
    """Return whether a process accepts connections on this port of loopback."""
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def is_free(port: int) -> bool:
    """Return whether this port of loopback is free."""
    with socket.socket() as probe:
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def peers_python() -> Path:
    """Return the Python interpreter that has the peers' client libraries. Raise Unavailable if it
    is not installed."""
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
