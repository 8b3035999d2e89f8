"""`holdfast demo` as users run it: on a terminal it serves on, with commands that work verbatim."""

import fcntl
import os
import pty
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from urllib.error import URLError
from urllib.request import urlopen

import pytest

SERVES_ON = "The broker serves until you press Ctrl-C."


class Demo:
    """The command on a pseudo-terminal of 80 columns, without pyspark and psutil."""

    def __init__(self, folder: Path, *options: str) -> None:
        (folder / "lines.txt").write_text("".join(f"key{n % 5} line {n}\n" for n in range(50)))
        self.temporary = folder / "temporary"
        self.temporary.mkdir()
        self.screen = ""
        self._terminal, inner = pty.openpty()
        fcntl.ioctl(inner, termios.TIOCSWINSZ, b"\x18\x00\x50\x00\x00\x00\x00\x00")
        self.process = subprocess.Popen(
            command(folder, *options),
            stdin=inner,
            stdout=inner,
            stderr=inner,
            env=environment(folder),
            start_new_session=True,
            preexec_fn=lambda: fcntl.ioctl(0, termios.TIOCSCTTY, 0),
        )
        os.close(inner)

    def read_until(self, text: str | None, timeout_s: float = 90) -> None:
        """Read until the text is on the screen; None reads until the command has ended."""
        deadline = time.monotonic() + timeout_s
        with selectors.DefaultSelector() as selector:
            selector.register(self._terminal, selectors.EVENT_READ)
            while text is None or text not in self.screen:
                assert selector.select(max(deadline - time.monotonic(), 0)), self.screen
                try:
                    read = os.read(self._terminal, 65536)
                except OSError:  # EIO: the other end is closed
                    read = b""
                if not read:
                    assert text is None, self.screen
                    return
                self.screen += re.sub(r"\x1b\[[0-9;?]*[a-zA-Z]", "", read.decode())

    def press_control_c(self) -> None:
        os.write(self._terminal, b"\x03")

    def close_terminal(self) -> None:
        os.close(self._terminal)
        self._terminal = -1

    def end(self) -> None:
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait(30)
        if self._terminal >= 0:
            os.close(self._terminal)


def command(folder: Path, *options: str) -> list[str]:
    return [sys.executable, "-m", "holdfast", "demo", "--file", f"{folder}/lines.txt", *options]


def environment(folder: Path) -> dict[str, str]:
    for name in ("pyspark", "psutil"):
        (folder / f"{name}.py").write_text(f"raise ModuleNotFoundError('absent', name='{name}')\n")
    path = os.pathsep.join((str(folder), *filter(None, [os.environ.get("PYTHONPATH")])))
    return {**os.environ, "PYTHONPATH": path, "TMPDIR": f"{folder}/temporary", "TERM": "xterm"}


def curl_lines(screen: str) -> list[str]:
    return re.findall(r"^ +(curl .*?)\r?$", screen, re.MULTILINE)


def assert_nothing_is_left(demo: Demo) -> None:
    (url,) = re.findall(r"serves on (http://\S+?)\.\s", demo.screen)
    with pytest.raises(URLError):
        urlopen(f"{url}/readyz", timeout=10)
    assert [*demo.temporary.iterdir()] == []


@pytest.fixture
def demo(tmp_path: Path) -> Iterator[Demo]:
    running = Demo(tmp_path)
    yield running
    running.end()


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_on_a_terminal_the_broker_serves_on_until_control_c(demo: Demo) -> None:
    demo.read_until(SERVES_ON)
    (console,) = re.findall(r"The console: (http://127.0.0.1:\d+/console/)", demo.screen)
    with urlopen(console, timeout=30) as page:
        assert page.status == 200 and "html" in page.headers["Content-Type"]
    oldest, wait, publish = map(shlex.split, curl_lines(demo.screen))
    done = subprocess.run(oldest, capture_output=True, text=True, timeout=60, check=True)
    assert "line 0" in done.stdout
    with subprocess.Popen(wait, stdout=subprocess.PIPE, text=True) as waiting:
        while waiting.poll() is None:  # once, unless the waiting request was not there yet
            subprocess.run(publish, capture_output=True, timeout=60, check=True)
            with suppress(subprocess.TimeoutExpired):
                waiting.wait(1)
        assert waiting.stdout is not None
        assert "hello" in waiting.stdout.read()
    assert demo.process.poll() is None
    demo.press_control_c()
    demo.read_until(None)
    assert demo.process.wait(30) == 0
    assert "Skipped: pyspark is not installed" in demo.screen
    assert "The broker was stopped and its folder removed." in demo.screen
    assert "Traceback" not in demo.screen
    assert_nothing_is_left(demo)


def test_a_terminal_that_is_closed_ends_the_broker_too(demo: Demo) -> None:
    demo.read_until(SERVES_ON)
    demo.close_terminal()
    demo.process.wait(30)
    assert_nothing_is_left(demo)


def test_a_broker_that_ends_while_it_serves_on_is_a_failure(demo: Demo) -> None:
    demo.read_until(SERVES_ON)
    children = Path(f"/proc/{demo.process.pid}/task/{demo.process.pid}/children").read_text()
    (broker,) = map(int, children.split())
    os.kill(broker, signal.SIGKILL)
    demo.read_until(None)
    assert demo.process.wait(30) == 1
    assert "the broker ended by itself" in demo.screen
    assert_nothing_is_left(demo)


def test_no_wait_ends_the_demo_on_a_terminal(tmp_path: Path) -> None:
    demo = Demo(tmp_path, "--no-wait")
    try:
        demo.read_until(None)
        assert demo.process.wait(30) == 0
        assert SERVES_ON not in demo.screen
        assert_nothing_is_left(demo)
    finally:
        demo.end()


def test_without_a_terminal_the_demo_does_not_wait(tmp_path: Path) -> None:
    (tmp_path / "lines.txt").write_text("one\ntwo\n")
    (tmp_path / "temporary").mkdir()
    done = subprocess.run(
        command(tmp_path),
        env=environment(tmp_path),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert len(curl_lines(done.stdout)) == 3
    assert re.search(r"The console: http://127.0.0.1:\d+/console/", done.stdout)
    assert SERVES_ON not in done.stdout
