"""System calls of a running process that strace makes fail or slow; attaching takes about 0.1 s."""

import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

_DEADLINE_S = 10.0


def need_strace() -> None:
    """Skip the test where strace is missing or may not attach."""
    if shutil.which("strace") is None:
        pytest.skip("strace is missing (package strace)")
    if os.geteuid() != 0:
        pytest.skip("not root: strace may not attach")


@contextmanager
def injected(pid: int, fault: str, log: Path, *paths: Path) -> Iterator[None]:
    """Let calls of a process fail by a `fault` of strace's -e inject, on `paths` alone if given.
    strace counts calls per thread, and records the injected faults in `log`."""
    need_strace()
    call = fault.partition(":")[0]
    tracer = subprocess.Popen(
        [
            *("strace", "-f", "-qq", "-o", log, "-p", str(pid)),
            *("-e", f"trace={call}", "-e", f"inject={fault}"),
            *(argument for path in paths for argument in ("-P", str(path))),
        ],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        _wait_attached(tracer, pid)
        yield
    finally:
        tracer.terminate()
        tracer.communicate()


def _wait_attached(tracer: "subprocess.Popen[str]", pid: int) -> None:
    deadline = time.monotonic() + _DEADLINE_S
    while not all(_is_traced(task) for task in Path(f"/proc/{pid}/task").iterdir()):
        if tracer.poll() is not None:
            pytest.skip(f"strace cannot attach: {tracer.communicate()[1].strip()}")
        assert time.monotonic() < deadline, "strace does not attach"
        time.sleep(0.01)


def _is_traced(task: Path) -> bool:
    try:
        status = (task / "status").read_text()
    except OSError:
        return True  # the process has ended
    return "TracerPid:\t0\n" not in status
