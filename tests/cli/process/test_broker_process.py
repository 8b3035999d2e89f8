"""The end of a broker's process, with a fake broker that behaves as each test needs."""

import asyncio
import errno
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

from holdfast import __version__
from holdfast.amqp.config import AmqpConfig
from holdfast.cli.exits import ExitCode, Failure
from holdfast.cli.process import broker_process
from holdfast.config import Config
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.routing.context import BrokerStatus

MODULE = broker_process.__name__


class FakeBroker:
    """Starts and sends itself SIGTERM; subclasses fail or hang instead."""

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

    async def reload(self) -> None:
        self.events.append("reloaded")

    def gone_count(self) -> int:
        return 0


@pytest.fixture(autouse=True)
def _quiet(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Restore the test process's logging, switch interval and signal handlers."""
    monkeypatch.setattr(broker_process, "start_logging", lambda form, level: None)
    interval = sys.getswitchinterval()
    signals = (*broker_process.STOP_SIGNALS, signal.SIGHUP, *broker_process.IGNORED_SIGNALS)
    handlers = {number: signal.getsignal(number) for number in signals}
    yield
    sys.setswitchinterval(interval)
    for number, handler in handlers.items():
        signal.signal(number, handler)


Run = Callable[[type[FakeBroker]], ExitCode]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Run:
    """Return a function that runs a process with this broker."""

    def run(broker: type[FakeBroker]) -> ExitCode:
        monkeypatch.setattr(broker_process, "Broker", broker)
        return broker_process.run(Config(data_dir=Path("/d")))

    return run


def test_a_low_limit_of_requests_does_not_let_the_allocator_keep_less(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given: list[int] = []
    monkeypatch.setattr(broker_process, "keep_freed_memory", given.append)
    monkeypatch.setattr(broker_process, "Broker", FakeBroker)
    for http_api in (HttpConfig(), HttpConfig(max_request_bytes=1024)):
        broker_process.run(Config(data_dir=Path("/d"), http_api=http_api))
    assert given[0] == given[1]


def test_a_signal_stops_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(FakeBroker) is ExitCode.OK
    assert FakeBroker.made.events == ["started", "stopped"]
    assert capsys.readouterr().out == "holdfast: serving on http://127.0.0.1:1\n"


# O5: SIGHUP and every other signal ended the broker uncleanly (129 for SIGHUP).
@pytest.mark.parametrize("number", broker_process.STOP_SIGNALS)
def test_each_of_these_signals_stops_it_in_order(
    number: signal.Signals, run: Run, caplog: pytest.LogCaptureFixture
) -> None:
    class Told(FakeBroker):
        async def start(self) -> None:
            os.kill(os.getpid(), number)

    caplog.set_level("INFO")
    assert run(Told) is ExitCode.OK
    assert Told.made.events == ["stopped"]
    assert f"stopping: {number.name}" in caplog.messages
    assert caplog.messages[-1] == "stopped"


class Reloading(FakeBroker):
    """Receives SIGHUP, and serves until it has reloaded."""

    async def start(self) -> None:
        for number in (signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP):
            os.kill(os.getpid(), number)

    async def reload(self) -> None:
        await super().reload()
        os.kill(os.getpid(), signal.SIGTERM)


def test_a_hang_up_reloads(run: Run) -> None:
    assert run(Reloading) is ExitCode.OK
    assert Reloading.made.events == ["reloaded", "stopped"]


def test_a_failed_reload_changes_nothing(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    class Failing(Reloading):
        async def reload(self) -> None:
            await super().reload()
            raise OSError(errno.EIO, "Input/output error")

    assert run(Failing) is ExitCode.OK
    assert Failing.made.events == ["reloaded", "stopped"]
    assert "the reload failed: nothing was changed" in caplog.messages


def test_a_closed_terminal_stops_its_broker(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    class HungUp(FakeBroker):
        async def start(self) -> None:
            os.kill(os.getpid(), signal.SIGHUP)

    monkeypatch.setattr(f"{MODULE}.sys.stdin", SimpleNamespace(isatty=lambda: True))
    assert run(HungUp) is ExitCode.OK
    assert HungUp.made.events == ["stopped"]


# O5: the first line of every start was the notice about open files.
def test_the_first_line_is_the_start(run: Run, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    run(FakeBroker)
    assert caplog.messages[0] == f"holdfast {__version__} starts"
    assert vars(caplog.records[0])["data_dir"] == "/d"
    assert [each for each in caplog.messages if "ulimit" in each] == []


@pytest.mark.parametrize(
    ("files", "wanted", "level"),
    [
        (20_000, 120_000, "DEBUG"),  # the default: the user did not ask for that many
        (20_000, 18_977, "WARNING"),
        (20_000, 18_976, None),
        (1_998, 120_000, "WARNING"),  # 999 connections are few
        (1_999, 120_000, "DEBUG"),
    ],
)
def test_too_few_files_are_logged_if_it_matters(
    files: int,
    wanted: int,
    level: str | None,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(f"{MODULE}.resource.getrlimit", lambda _: (32, files))
    monkeypatch.setattr(f"{MODULE}.resource.setrlimit", lambda _, limits: None)
    caplog.set_level("DEBUG")
    config = Config(data_dir=Path("/d"), http_api=HttpConfig(max_connections=wanted))
    broker_process.limit_connections(config)
    found = [each.levelname for each in caplog.records if "ulimit" in each.getMessage()]
    assert found == ([] if level is None else [level])


def test_an_unused_variable_is_logged(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setenv("HOLDFAST_VERSION", "1")
    run(FakeBroker)
    assert any("HOLDFAST_VERSION is not used" in each for each in caplog.messages)


def test_a_broker_that_was_read_only_ends_as_one_that_failed(run: Run) -> None:
    class ReadOnly(FakeBroker):
        status = BrokerStatus("ready", read_only="a sync failed")

    assert run(ReadOnly) is ExitCode.FAILED
    assert ReadOnly.made.events == ["started", "stopped"]


def test_a_long_start_is_logged(
    run: Run, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    class Recovering(FakeBroker):
        status = BrokerStatus(
            "recovering", progress={"step": "recovering the log", "done_bytes": 1, "total_bytes": 2}
        )

        async def start(self) -> None:
            async with asyncio.timeout(10):
                while "starting" not in caplog.messages:
                    await asyncio.sleep(0)
            await super().start()

    monkeypatch.setattr(broker_process, "PROGRESS_S", 0)
    caplog.set_level("INFO")
    assert run(Recovering) is ExitCode.OK
    first = caplog.records[caplog.messages.index("starting")]
    assert vars(first)["step"] == "recovering the log"
    assert vars(first)["total_bytes"] == 2


def test_the_service_manager_follows_the_broker(
    run: Run, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", "60000000")
    monkeypatch.setattr(broker_process, "PROGRESS_S", 0)
    got: list[str] = []

    class Recovering(FakeBroker):
        status = BrokerStatus("recovering", progress={"step": "recovering the log"})

        async def start(self) -> None:
            while len(got) < 2:
                await asyncio.sleep(0)
                got.append(manager.recv(4096).decode())

        async def stop(self) -> None:
            while not got[-1].startswith("STOPPING"):
                got.append(manager.recv(4096).decode())

    freezer = f"{MODULE}.GarbageFreezer"
    monkeypatch.setattr(f"{freezer}.start", lambda _: os.kill(os.getpid(), signal.SIGTERM))
    monkeypatch.setattr(f"{freezer}.stop", lambda _: None)
    assert run(Recovering) is ExitCode.OK
    assert list(dict.fromkeys(got)) == [
        "WATCHDOG=1",
        "EXTEND_TIMEOUT_USEC=60000000\nSTATUS=recovering the log",
        "READY=1\nSTATUS=serving on http://127.0.0.1:1",
        "STOPPING=1\nSTATUS=stopping: SIGTERM",
    ]
    manager.close()


def test_a_signal_while_it_recovers_stops_it(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    class Recovering(FakeBroker):
        async def start(self) -> None:
            await super().start()
            try:
                await asyncio.Event().wait()
            finally:
                self.events.append("given up")

    assert run(Recovering) is ExitCode.OK
    assert FakeBroker.made.events == ["started", "given up"]
    assert capsys.readouterr().out == ""


def test_a_failed_part_ends_it_with_a_code(run: Run) -> None:
    class Failing(FakeBroker):
        async def start(self) -> None:
            self.failed.set_result(OSError(errno.EIO, "Input/output error"))

    assert run(Failing) is ExitCode.FAILED
    assert FakeBroker.made.events == ["stopped"]


@pytest.mark.parametrize("blocks_the_loop", [False, True])
def test_a_stop_that_hangs_is_ended_by_force(
    run: Run, monkeypatch: pytest.MonkeyPatch, blocks_the_loop: bool
) -> None:
    reading, writing = os.pipe()

    class Hanging(FakeBroker):
        async def stop(self) -> None:
            if blocks_the_loop:
                os.read(reading, 1)
            else:
                await asyncio.to_thread(os.read, reading, 1)

    monkeypatch.setattr(broker_process, "STOP_DEADLINE_S", 0.05)
    # Instead of ending the process, let the stop finish: it can finish only through this call.
    monkeypatch.setattr(broker_process, "end_by_force", lambda: os.write(writing, b"x"))
    run(Hanging)
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
        (OSError(errno.ENOSPC, "No space left on device"), "check that the disk has room"),
        (OSError(errno.EROFS, "Read-only file system", "/d"), "or give another --data-dir"),
    ],
)
def test_a_refusal_names_the_fix(run: Run, error: OSError, said: str) -> None:
    class Refused(FakeBroker):
        async def start(self) -> None:
            raise error

    with pytest.raises(Failure, match=said) as caught:
        run(Refused)
    assert caught.value.code is ExitCode.REFUSED


@pytest.mark.parametrize(
    ("files", "connections"),
    [(64, 32), (20_000, 18_976), (121_023, 119_999), (121_024, 120_000), (1_048_576, 120_000)],
)
def test_open_files_limit_the_connections(
    files: int, connections: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    raised = []
    monkeypatch.setattr(f"{MODULE}.resource.getrlimit", lambda _: (32, files))
    monkeypatch.setattr(f"{MODULE}.resource.setrlimit", lambda _, limits: raised.append(limits))
    config = broker_process.limit_connections(Config(data_dir=Path("/d")))
    assert config.http_api.max_connections == connections
    assert config.amqp.max_connections == 10_000
    assert raised == [(files, files)]


@pytest.mark.parametrize(
    ("wanted", "amqp_wanted", "of_http", "of_amqp"),
    [
        (1000, 1000, 1000, 1000),
        (1500, 501, 1499, 501),
        (1000, 1001, 1000, 1000),
        (9000, 9000, 1334, 666),
        (9000, 10, 1990, 10),
        (10, 9000, 10, 1990),
    ],
)
def test_http_and_amqp_share_the_open_files(
    monkeypatch: pytest.MonkeyPatch, wanted: int, amqp_wanted: int, of_http: int, of_amqp: int
) -> None:
    files = 2000 + broker_process.MAX_STORAGE_FILES
    monkeypatch.setattr(f"{MODULE}.resource.getrlimit", lambda _: (32, files))
    monkeypatch.setattr(f"{MODULE}.resource.setrlimit", lambda _, limits: None)
    config = Config(
        http_api=HttpConfig(max_connections=wanted),
        amqp=AmqpConfig(port=5672, max_connections=amqp_wanted),
    )
    limited = broker_process.limit_connections(config)
    assert (limited.http_api.max_connections, limited.amqp.max_connections) == (of_http, of_amqp)
