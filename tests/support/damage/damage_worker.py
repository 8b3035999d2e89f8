"""Start brokers on damaged data directories in a separate process, so that a crash is detected
too."""

import json
import pickle
import selectors
import subprocess
import sys
import time
import traceback
from pathlib import Path
from types import TracebackType
from typing import Self

from tests.support.damage.damaged_directory import DamageViolation, Truth, run_examination


class DamageWorker:
    """A process that examines one directory after another. It is restarted if it dies."""

    def __init__(self, truth: Path, *, timeout_s: float = 60.0) -> None:
        self._truth = truth
        self._timeout_s = timeout_s
        self._process: subprocess.Popen[bytes] | None = None

    def examine(self, data_dir: Path) -> str:
        """Return the outcome. Raise DamageViolation for a wrong start, a dead process or a
        timeout."""
        process = self._running()
        assert process.stdin is not None
        process.stdin.write(f"{data_dir}\n".encode())
        process.stdin.flush()
        answer = self._answer(process)
        if "violation" in answer:
            raise DamageViolation(answer["violation"])
        return answer["outcome"]

    def _running(self) -> subprocess.Popen[bytes]:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "tests.support.damage.damage_worker", str(self._truth)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
            )
        return self._process

    def _answer(self, process: subprocess.Popen[bytes]) -> dict[str, str]:
        assert process.stdout is not None
        with selectors.DefaultSelector() as selector:
            selector.register(process.stdout, selectors.EVENT_READ)
            began = time.monotonic()
            if not selector.select(self._timeout_s):
                self.close()
                raise DamageViolation(f"no end after {time.monotonic() - began:.0f} s")
        line = process.stdout.readline()
        if not line:
            self._process = None
            raise DamageViolation(f"the process ended with {process.wait()}")
        found: dict[str, str] = json.loads(line)
        return found

    def close(self) -> None:
        """End the process; may be called twice."""
        if self._process is not None:
            self._process.kill()
            self._process.communicate()
            self._process = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()


def main() -> None:
    """Examine the directories that standard input lists, one per line."""
    truth: Truth = pickle.loads(Path(sys.argv[1]).read_bytes())
    for line in sys.stdin:
        try:
            answer = {"outcome": run_examination(Path(line.rstrip("\n")), truth)}
        except DamageViolation as error:
            answer = {"violation": str(error)}
        except Exception:
            answer = {"violation": traceback.format_exc()}
        print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
