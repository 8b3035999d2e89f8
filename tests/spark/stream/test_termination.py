"""A process that Spark ends first cleans up; a process that Spark did not start is unchanged."""

import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from holdfast.spark.stream.termination import DRIVER_OF_A_STREAM

PROGRAM = """
import os, signal, sys
from importlib.machinery import ModuleSpec
from holdfast.spark.stream.termination import run_before_termination

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)

def say(text):
    # Not by print: the signal may arrive within another print, which must not be entered again.
    os.write(1, f"{text}\\n".encode())

def act():
    say("acting")
    if sys.argv[2] == "fails":
        raise RuntimeError("planned")
    if sys.argv[2] == "waits":
        sys.stdin.readline()
    say("acted")

run_before_termination(act, float(sys.argv[3]))
say("ready")
while True:
    signal.pause()
"""


@contextmanager
def running(program: str, ends: str, max_s: float = 60) -> Iterator["subprocess.Popen[str]"]:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, program, ends, str(max_s)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            yield process
        finally:
            process.kill()


@pytest.mark.parametrize(
    ("program", "ends", "says"),
    [
        (DRIVER_OF_A_STREAM, "well", "acting\nacted\n"),
        (DRIVER_OF_A_STREAM, "fails", "acting\n"),
        ("somebody.elses", "well", ""),
    ],
)
def test_the_action_runs_once_and_the_process_ends(program: str, ends: str, says: str) -> None:
    with running(program, ends) as process:
        process.terminate()
        assert process.communicate(timeout=30)[0] == says
        assert process.returncode == -signal.SIGTERM


def test_a_second_signal_does_not_interrupt_the_action() -> None:
    with running(DRIVER_OF_A_STREAM, "waits") as process:
        assert process.stdout is not None
        process.terminate()
        assert process.stdout.readline() == "acting\n"
        process.terminate()
        assert process.communicate("go on\n", timeout=30)[0] == "acted\n"
        assert process.returncode == -signal.SIGTERM


def test_an_action_that_takes_too_long_is_interrupted() -> None:
    with running(DRIVER_OF_A_STREAM, "waits", max_s=0.1) as process:
        process.terminate()
        assert process.wait(30) == -signal.SIGALRM
