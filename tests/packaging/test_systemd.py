"""packaging/systemd: the unit is sound and hardened, and the broker reports as the unit expects."""

import configparser
import shlex
import shutil
import socket
import subprocess
from pathlib import Path

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker

PACKAGING = Path(__file__).parents[2] / "packaging"
UNIT = PACKAGING / "systemd" / "holdfast.service"

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze here (package systemd)"
)


def service() -> dict[str, str]:
    """Return the settings of the unit's section [Service]; of a repeated one the last."""
    parser = configparser.ConfigParser(strict=False, interpolation=None)
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(UNIT.read_text())
    return dict(parser["Service"])


def analyze(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["systemd-analyze", *arguments], capture_output=True, text=True, check=False, timeout=60
    )


@needs_systemd
def test_the_unit_leaves_little_exposed() -> None:
    # In tenths: 3.0.
    done = analyze("security", "--offline=true", "--threshold=30", "--no-pager", str(UNIT))
    assert done.returncode == 0, done.stdout[-400:] + done.stderr


@needs_systemd
def test_the_unit_is_free_of_errors_where_the_broker_is_installed(tmp_path: Path) -> None:
    # The units that every unit needs, and the programs that this one runs.
    units = tmp_path / "usr" / "lib" / "systemd" / "system"
    units.mkdir(parents=True)
    for path in Path("/usr/lib/systemd/system").glob("*.target"):
        shutil.copy(path, units)
    for program in ("/opt/holdfast/bin/holdfast", "/bin/kill"):
        path = tmp_path / program[1:]
        path.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy("/bin/true", path)
    shutil.copy(UNIT, units)
    done = analyze("verify", "--man=no", f"--root={tmp_path}", UNIT.name)
    assert (done.returncode, done.stderr) == (0, "")


def test_the_program_of_the_unit_reads_the_shipped_settings(tmp_path: Path) -> None:
    _, *arguments = shlex.split(service()["ExecStart"])
    assert arguments == ["serve", "--config", "/etc/holdfast/holdfast.toml"]
    broker = RunningBroker(tmp_path / "data", ["--config", str(PACKAGING / "holdfast.toml")])
    with broker, broker.client() as client:
        assert client.ready()


def test_the_broker_reports_as_the_unit_expects(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    unit = service()
    assert unit["Type"] == "notify"
    watchdog_s = int(unit["WatchdogSec"].removesuffix("s"))
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.bind(str(tmp_path / "notify"))
    manager.settimeout(30)
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    monkeypatch.setenv("WATCHDOG_USEC", str(watchdog_s * 1_000_000))
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        assert manager.recv(4096) == b"WATCHDOG=1"
        report = manager.recv(4096).decode()
        while not report.startswith("READY=1"):
            report = manager.recv(4096).decode()
        assert report == f"READY=1\nSTATUS=serving on {broker.url}"
    while not report.startswith("STOPPING=1"):
        report = manager.recv(4096).decode()
    assert report == "STOPPING=1\nSTATUS=stopping: SIGTERM"
    manager.close()
