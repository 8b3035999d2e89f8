"""How a broker's process ends, with a broker that does as each test says."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli import serving
from holdfast.cli.exits import ExitCode, Failure
from holdfast.config import Config
from holdfast.http_api.context import BrokerStatus


class FakeBroker:
    """Starts, and then: is told to stop, fails, or hangs."""

    url = "http://127.0.0.1:1"
    status = BrokerStatus("ready")
    made: "FakeBroker"

    def __init__(self, config: Config) -> None:
        FakeBroker.made = self
        self.events: list[str] = []
        self.failed: asyncio.Future[Exception] = asyncio.get_running_loop().create_future()
        self.released = asyncio.Event()

    async def start(self) -> None:
        self.events.append("started")
        os.kill(os.getpid(), signal.SIGTERM)

    async def stop(self) -> None:
        self.events.append("stopped")


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Leave the test process's logging, switch interval and signal handlers as they were."""
    monkeypatch.setattr(serving, "start_logging", lambda form, level: None)
    interval = sys.getswitchinterval()
    handlers = {number: signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGINT)}
    yield
    sys.setswitchinterval(interval)
    for number, handler in handlers.items():
        signal.signal(number, handler)


def run(monkeypatch: pytest.MonkeyPatch, broker: type[FakeBroker]) -> ExitCode:
    monkeypatch.setattr(serving, "Broker", broker)
    return serving.run(Config(data_dir=Path("/d")))


def test_a_signal_stops_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, FakeBroker) is ExitCode.OK
    assert FakeBroker.made.events == ["started", "stopped"]
    assert capsys.readouterr().out == "holdfast: serving on http://127.0.0.1:1\n"


def test_a_broker_that_was_read_only_ends_as_one_that_failed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    class ReadOnly(FakeBroker):
        status = BrokerStatus("ready", read_only="a sync failed")

    assert run(monkeypatch, ReadOnly) is ExitCode.FAILED
    assert ReadOnly.made.events == ["started", "stopped"]


def test_a_start_that_takes_long_is_told_of(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Recovering(FakeBroker):
        status = BrokerStatus(
            "recovering",
            progress={"step": "recovering the log", "done_bytes": 1, "total_bytes": 2},
        )

        async def start(self) -> None:
            async with asyncio.timeout(10):
                while "starting" not in caplog.messages:
                    await asyncio.sleep(0)
            await super().start()

    monkeypatch.setattr(serving, "PROGRESS_S", 0)
    caplog.set_level("INFO")
    assert run(monkeypatch, Recovering) is ExitCode.OK
    first = caplog.records[caplog.messages.index("starting")]
    assert vars(first)["step"] == "recovering the log"
    assert vars(first)["total_bytes"] == 2


def test_a_signal_while_it_recovers_stops_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    class Recovering(FakeBroker):
        async def start(self) -> None:
            await super().start()
            try:
                await asyncio.Event().wait()
            finally:
                self.events.append("given up")

    assert run(monkeypatch, Recovering) is ExitCode.OK
    assert FakeBroker.made.events == ["started", "given up"]
    assert capsys.readouterr().out == ""


def test_a_failed_part_ends_it_with_a_code(monkeypatch: pytest.MonkeyPatch) -> None:
    class Failing(FakeBroker):
        async def start(self) -> None:
            self.failed.set_result(OSError(errno.EIO, "Input/output error"))

    assert run(monkeypatch, Failing) is ExitCode.FAILED
    assert FakeBroker.made.events == ["stopped"]


@pytest.mark.parametrize("blocks_the_loop", [False, True])
def test_a_stop_that_hangs_is_ended_by_force(
    monkeypatch: pytest.MonkeyPatch, blocks_the_loop: bool
) -> None:
    reading, writing = os.pipe()

    class Hanging(FakeBroker):
        async def stop(self) -> None:
            if blocks_the_loop:
                os.read(reading, 1)
            else:
                await asyncio.to_thread(os.read, reading, 1)

    monkeypatch.setattr(serving, "STOP_DEADLINE_S", 0.05)
    # In place of ending the process: let the stop end, which it does only if this was called.
    monkeypatch.setattr(serving, "_end_by_force", lambda: os.write(writing, b"x"))
    run(monkeypatch, Hanging)
    os.close(reading)
    os.close(writing)


@pytest.mark.parametrize(
    ("error", "said"),
    [
        (OSError(errno.EADDRINUSE, "Address already in use"), "port 8711 on 127.0.0.1 is in use"),
        (OSError(errno.EADDRNOTAVAIL, "Cannot assign"), "give an address of this machine"),
        (socket.gaierror(-2, "Name or service not known"), "give an address of this machine"),
        (PermissionError(errno.EACCES, "Permission denied"), "give a --port from 1024 on"),
        (PermissionError(errno.EACCES, "Permission denied", "/d/lock"), "/d/lock: Permission"),
        (OSError(errno.ENOSPC, "No space left on device"), "see that there is room"),
        (OSError(errno.EROFS, "Read-only file system", "/d"), "or give another --data-dir"),
    ],
)
def test_a_refusal_names_the_mend(
    monkeypatch: pytest.MonkeyPatch, error: OSError, said: str
) -> None:
    class Refused(FakeBroker):
        async def start(self) -> None:
            raise error

    with pytest.raises(Failure, match=said) as caught:
        run(monkeypatch, Refused)
    assert caught.value.code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("files", "connections"),
    [
        (64, 32),
        (20_000, 18_976),
        (121_023, 119_999),
        (121_024, 120_000),
        (1_048_576, 120_000),
    ],
)
def test_as_many_connections_are_taken_as_the_files_leave_room_for(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = []
    monkeypatch.setattr("holdfast.cli.serving.resource.getrlimit", lambda _: (32, files))
    monkeypatch.setattr(
        "holdfast.cli.serving.resource.setrlimit", lambda _, limits: raised.append(limits)
    )
    config = serving._within_open_files(Config(data_dir=Path("/d")))
    assert config.http_api.max_connections == connections
    assert raised == [(files, files)]
