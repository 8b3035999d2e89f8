"""Spark's own programs from the pip package, in the foreground, ended on any outcome.

The package has no start-master.sh and start-worker.sh, but all classes: spark-class runs them and
becomes the JVM itself, so that its pid is the one to end. (start-connect-server.sh leaves its JVM
as the child of a shell; what it runs is started here without it.)
"""

import os
import re
import shutil
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

READY_TIMEOUT_S = 90.0
_END_TIMEOUT_S = 15.0
#: What starts a process that ends with the one that started it, however that one ends.
TOGETHER = ("setpriv", "--pdeathsig", "TERM") if shutil.which("setpriv") else ()
#: Quick to start, not quick to run.
JAVA_OPTIONS = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class SparkDidNotStart(Exception):
    """A program ended, or never said what tells that it is ready. `log` is the end of its log."""

    def __init__(self, program: str, reason: str, log: str) -> None:
        super().__init__(program, reason, log)

    def __str__(self) -> str:
        program, reason, log = self.args
        return f"{program}: {reason}\n{log}"


@contextmanager
def running(
    arguments: Sequence[str], environment: Mapping[str, str], log_path: Path, *, ready: str
) -> Iterator[re.Match[str]]:
    """Run spark-class with the arguments, and yield where its log matches `ready` first."""
    import pyspark

    home = Path(pyspark.__file__).parent
    with log_path.open("wb") as log:
        process = subprocess.Popen(
            [*TOGETHER, str(home / "bin" / "spark-class"), *arguments],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            cwd=log_path.parent,
            env={**environment, "SPARK_HOME": str(home), "SPARK_DAEMON_JAVA_OPTS": JAVA_OPTIONS},
        )
    try:
        yield _await(process, re.compile(ready), log_path, arguments[0])
    finally:
        process.terminate()
        try:
            process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _await(
    process: "subprocess.Popen[bytes]", ready: re.Pattern[str], log_path: Path, program: str
) -> re.Match[str]:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while True:
        ended = process.poll()
        log = log_path.read_text(errors="replace")
        if found := ready.search(log):
            return found
        if ended is not None:
            raise SparkDidNotStart(program, f"it ended with status {ended}", log[-4000:])
        if time.monotonic() > deadline:
            raise SparkDidNotStart(program, f"not ready in {READY_TIMEOUT_S:.0f} s", log[-4000:])
        time.sleep(0.1)  # the condition is in a file: there is no event to await


def clean_environment(python: Path) -> dict[str, str]:
    """Return an environment in which Spark's workers run `python`, with no path of ours."""
    dropped = ("PYTHON", "PYSPARK", "SPARK", "VIRTUAL_ENV")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(dropped)}
    return {**kept, "PYSPARK_PYTHON": str(python), "SPARK_LOCAL_IP": "127.0.0.1"}
