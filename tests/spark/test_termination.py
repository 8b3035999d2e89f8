"""A process that Spark ends does what is left to do; one that Spark did not start is left alone."""

import signal
import subprocess
import sys

import pytest

from holdfast.spark.termination import DRIVER_OF_A_STREAM

PROGRAM = """
import signal, sys
from importlib.machinery import ModuleSpec
from holdfast.spark.termination import before_termination

sys.modules["__main__"].__spec__ = ModuleSpec(sys.argv[1], None)

def act():
    print("acted", flush=True)
    if sys.argv[2] == "fails":
        raise RuntimeError("planned")

before_termination(act)
print("ready", flush=True)
while True:
    signal.pause()
"""


@pytest.mark.parametrize(
    ("program", "ends", "says"),
    [
        (DRIVER_OF_A_STREAM, "well", "acted\n"),
        (DRIVER_OF_A_STREAM, "fails", "acted\n"),
        ("somebody.elses", "well", ""),
    ],
)
def test_what_is_left_to_do_is_done_once_and_the_process_ends(
    program: str, ends: str, says: str
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", PROGRAM, program, ends],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.terminate()
        assert process.stdout.read() == says
        assert process.wait(30) == -signal.SIGTERM
