"""Reports to a service manager, received by a socket of the test's own."""

import asyncio
import os
import secrets
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.cli.process.service_manager import ServiceManager


class Manager:
    """The receiving end of the reports."""

    def __init__(self, address: str) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(address)
        self.socket.settimeout(30)
        self.environ = {"NOTIFY_SOCKET": address.replace("\0", "@")}

    def received(self) -> list[str]:
        """Return the next report, as lines."""
        return self.socket.recv(4096).decode().split("\n")

    def waiting(self) -> list[list[str]]:
        """Return the reports that wait to be read."""
        self.socket.setblocking(False)
        found = []
        try:
            while True:
                found.append(self.received())
        except BlockingIOError:
            return found
        finally:
            self.socket.settimeout(30)

    async def next(self) -> list[str]:
        """Return the first report that waits; let the event loop run until there is one."""
        async with asyncio.timeout(30):
            while not (found := self.waiting()):
                await asyncio.sleep(0.001)
        return found[0]

    def fill(self) -> None:
        """Send to the socket until it is full."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as sender:
            sender.setblocking(False)
            with pytest.raises(BlockingIOError):
                while True:
                    sender.sendto(b"x", self.socket.getsockname())


@pytest.fixture(params=["path", "abstract"])
def manager(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Manager]:
    abstract = f"\0holdfast-test-{secrets.token_hex(8)}"
    found = Manager(str(tmp_path / "notify") if request.param == "path" else abstract)
    yield found
    found.socket.close()


async def test_each_report_is_one_datagram(manager: Manager) -> None:
    service = ServiceManager(manager.environ)
    service.extend_start("recovering the log")
    service.ready("serving on http://127.0.0.1:1")
    service.stopping("SIGTERM")
    service.close()
    service.close()
    assert manager.received() == ["EXTEND_TIMEOUT_USEC=60000000", "STATUS=recovering the log"]
    assert manager.received() == ["READY=1", "STATUS=serving on http://127.0.0.1:1"]
    assert manager.received() == ["STOPPING=1", "STATUS=stopping: SIGTERM"]
    service.stopping("again")
    assert manager.waiting() == []


async def test_ready_is_repeated_while_the_socket_is_full(manager: Manager) -> None:
    service = ServiceManager(manager.environ)
    manager.fill()
    service.ready("serving")
    assert ["READY=1", "STATUS=serving"] not in manager.waiting()
    assert await manager.next() == ["READY=1", "STATUS=serving"]
    service.close()


async def test_a_broker_that_stops_is_not_reported_as_ready_any_more(manager: Manager) -> None:
    services = [ServiceManager(manager.environ) for _ in range(3)]
    manager.fill()
    for number, service in enumerate(services):
        service.ready(f"serving {number}")
    manager.waiting()
    services[0].stopping("SIGTERM")
    services[1].close()
    assert manager.received() == ["STOPPING=1", "STATUS=stopping: SIGTERM"]
    # The timer of the third service ends last.
    assert await manager.next() == ["READY=1", "STATUS=serving 2"]
    services[0].close()
    services[2].close()


async def test_the_watchdog_is_fed_while_the_event_loop_runs(manager: Manager) -> None:
    service = ServiceManager({**manager.environ, "WATCHDOG_USEC": "2000"})
    service.start_watchdog()
    service.start_watchdog()
    assert manager.waiting() == [["WATCHDOG=1"]]
    for _ in range(3):
        assert await manager.next() == ["WATCHDOG=1"]
    # This call blocks the event loop for two hundred times as long.
    manager.socket.settimeout(0.4)
    with pytest.raises(TimeoutError):
        manager.socket.recv(64)
    assert await manager.next() == ["WATCHDOG=1"]
    service.close()


@pytest.mark.parametrize(
    "watchdog",
    [{}, {"WATCHDOG_USEC": "0"}, {"WATCHDOG_USEC": "x"}, {"WATCHDOG_PID": "1"}],
)
async def test_a_manager_that_does_not_ask_gets_no_reports(
    watchdog: dict[str, str], tmp_path: Path
) -> None:
    manager = Manager(str(tmp_path / "notify"))
    asked = {"WATCHDOG_USEC": "1000", "WATCHDOG_PID": str(os.getpid())} if watchdog else {}
    service = ServiceManager({**manager.environ, **asked, **watchdog})
    service.start_watchdog()
    assert manager.waiting() == []
    service.close()
    manager.socket.close()


async def test_the_watchdog_of_this_process_is_fed(tmp_path: Path) -> None:
    manager = Manager(str(tmp_path / "notify"))
    asked = {"WATCHDOG_USEC": "60000000", "WATCHDOG_PID": "7"}
    service = ServiceManager({**manager.environ, **asked}, pid=7)
    service.start_watchdog()
    assert manager.received() == ["WATCHDOG=1"]
    service.close()
    manager.socket.close()


@pytest.mark.parametrize("address", ["", "relative", "@", "/", "vsock:2:1"])
async def test_without_a_usable_address_nothing_is_sent(
    address: str, caplog: pytest.LogCaptureFixture
) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": address, "WATCHDOG_USEC": "1000"})
    service.start_watchdog()
    service.ready("serving")
    service.close()
    assert len(caplog.messages) == bool(address)


async def test_a_manager_that_is_gone_is_logged(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    service = ServiceManager({"NOTIFY_SOCKET": str(tmp_path / "absent")})
    service.ready("serving")
    service.close()
    (line,) = caplog.messages
    assert line.startswith("cannot report to the service manager: ")
