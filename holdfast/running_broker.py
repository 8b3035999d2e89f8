"""Run a broker in its own process, on a free port: for tests, benchmarks and demonstrations."""

import os
import selectors
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

from holdfast.free_port import free_port

if TYPE_CHECKING:
    from holdfast.client import AsyncClient, Client

_READY = "holdfast: serving on "
_LOG_TAIL_BYTES = 4000


@dataclass(eq=False, repr=False)
class BrokerDidNotStart(Exception):
    """The broker's process ended, or it printed and logged nothing within the timeout. `log` is
    the end of the broker's log."""

    reason: str
    log: str

    def __str__(self) -> str:
        return f"the broker did not start: {self.reason}\n{self.log}"


class RunningBroker:
    """A broker on `data_dir`, which is created if it does not exist. Use it in `with`.

    `arguments` are added to `holdfast serve`. `program` replaces the command `holdfast` at the next
    start, for tests that run the broker under another program. The first start chooses a free port.
    Later starts use the same port, so that clients find the broker again. The broker logs to the
    file `log_path` next to the data directory. To recover a large log may take long, so a start
    fails only if the broker prints and logs nothing for `start_timeout_s`.
    """

    def __init__(
        self,
        data_dir: Path | str,
        arguments: Sequence[str] = (),
        *,
        start_timeout_s: float = 90.0,
        stop_timeout_s: float = 60.0,
        program: Sequence[str] = (sys.executable, "-m", "holdfast"),
    ) -> None:
        self.data_dir = Path(data_dir)
        self.log_path = self.data_dir.parent / f"{self.data_dir.name}.log"
        self._arguments = tuple(arguments)
        self.program = tuple(program)
        self._start_timeout_s = start_timeout_s
        self._stop_timeout_s = stop_timeout_s
        self._process: subprocess.Popen[bytes] | None = None
        self._url: str | None = None

    @property
    def url(self) -> str:
        """The broker's URL, also while the broker is stopped. Raise AttributeError before the first
        start."""
        if self._url is None:
            raise AttributeError("the broker has not been started yet")
        return self._url

    @property
    def pid(self) -> int:
        """The id of the broker's process. Raise AttributeError while the broker is stopped."""
        if self._process is None:
            raise AttributeError("the broker is not running")
        return self._process.pid

    @property
    def is_running(self) -> bool:
        """Whether the process was started and has not ended."""
        return self._process is not None and self._process.poll() is None

    def start(self) -> None:
        """Start the broker and return when it is ready. Do nothing if it was started already.
        Raise BrokerDidNotStart."""
        if self._process is not None:
            return
        process = self.launch()
        try:
            self._url = self._await_ready(process)
        except BaseException:
            self.kill()
            raise

    def launch(self) -> "subprocess.Popen[bytes]":
        """Start the broker's process and return at once, before the broker is ready, so that the
        caller can watch the process end early. End the process with `stop` or `kill`."""
        assert self._process is None, "it runs"
        port = free_port() if self._url is None else int(self._url.rpartition(":")[2])
        self.data_dir.mkdir(parents=True, exist_ok=True)
        with self.log_path.open("ab") as log:
            self._process = subprocess.Popen(
                [
                    *self.program,
                    "serve",
                    *("--data-dir", str(self.data_dir)),
                    *("--port", str(port)),
                    *self._arguments,
                ],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                env={**os.environ, "PYTHONUNBUFFERED": "1"},
            )
        return self._process

    def stop(self) -> int:
        """Stop the broker as an operator does (SIGTERM) and return its exit status.

        Kill the broker if it does not end within `stop_timeout_s`. Return 0 if it was not running.
        """
        return self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End the broker at once (SIGKILL), like a crash."""
        self._end(signal.SIGKILL)

    def wait(self, timeout_s: float) -> int:
        """Wait until the broker ends by itself, and return its exit status. If it does not end
        within `timeout_s`, raise subprocess.TimeoutExpired; the broker is then still running."""
        assert self._process is not None, "it does not run"
        status = self._process.wait(timeout_s)
        self.kill()
        return status

    def restart(self) -> None:
        """Stop the broker if it runs, then start it on the same port."""
        self.stop()
        self.start()

    def client(
        self,
        *,
        token: str | None = None,
        timeout_ms: int = 30_000,
        ca_file: Path | None = None,
        cert_file: Path | None = None,
        key_file: Path | None = None,
    ) -> "Client":
        from holdfast.client import Client

        return Client(
            self.url,
            token=token,
            timeout_ms=timeout_ms,
            ca_file=ca_file,
            cert_file=cert_file,
            key_file=key_file,
        )

    def async_client(self, *, token: str | None = None, timeout_ms: int = 30_000) -> "AsyncClient":
        from holdfast.client import AsyncClient

        return AsyncClient(self.url, token=token, timeout_ms=timeout_ms)

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()

    def _await_ready(self, process: subprocess.Popen[bytes]) -> str:
        """Wait for the broker's first line on standard output, and return the URL in this line."""
        assert process.stdout is not None
        deadline = time.monotonic() + self._start_timeout_s
        line, logged = b"", self.log_path.stat().st_size
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            while not line.endswith(b"\n"):
                # Look once more: if SIGSTOP stopped this process until after the deadline, the wait
                # returns nothing, although there may be a line by now.
                if not (selector.select(deadline - time.monotonic()) or selector.select(0)):
                    before, logged = logged, self.log_path.stat().st_size
                    if logged == before:
                        self._did_not_start(f"it was silent for {self._start_timeout_s} s")
                    deadline = time.monotonic() + self._start_timeout_s
                    continue
                byte = os.read(process.stdout.fileno(), 1)
                if not byte:
                    self._did_not_start(f"it ended with status {process.wait()}")
                line += byte
        text = line.decode(errors="replace").strip()
        if not text.startswith(_READY):
            self._did_not_start(f"its first line is {text!r}")
        return text.removeprefix(_READY)

    def _did_not_start(self, reason: str) -> None:
        log = self.log_path.read_bytes()[-_LOG_TAIL_BYTES:].decode(errors="replace")
        raise BrokerDidNotStart(reason, log)

    def _end(self, how: signal.Signals) -> int:
        process, self._process = self._process, None
        if process is None:
            return 0
        process.send_signal(how)
        try:
            status = process.wait(self._stop_timeout_s)
        except subprocess.TimeoutExpired:
            process.kill()
            status = process.wait()
        if process.stdout is not None:
            process.stdout.close()
        return status
