"""A data directory in which the owner replaced a file, and commands that root runs on it."""

import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import time
import traceback
from dataclasses import dataclass
from pathlib import Path

import pytest

#: A user who is not root, and owns no files on this machine.
OWNER = 65534
DEADLINE_S = 30.0
_SECRET = b"for root alone"
_TWO_DAYS_S = 2 * 24 * 3600


@dataclass(frozen=True, slots=True)
class Ran:
    """The result of a command. `code` is None if the command did not end and was killed."""

    code: int | None
    output: str


@dataclass(frozen=True, slots=True)
class Scene:
    """A directory of the owner, and the files outside of it."""

    root: Path

    @property
    def data(self) -> Path:
        return self.root / "owners" / "data"

    @property
    def outside(self) -> Path:
        """A sound data directory of the owner, outside the data directory under test."""
        return self.root / "owners" / "outside"

    @property
    def secret(self) -> Path:
        """A file that only root may read."""
        return self.root / "secret"

    @property
    def target(self) -> Path:
        """A folder of the owner, to which backups are written."""
        return self.root / "owners" / "backup"

    def build(self, sound: Path) -> None:
        """Create the scene again, with copies of a sound data directory."""
        shutil.rmtree(self.root, ignore_errors=True)
        self.root.mkdir(0o755)
        (self.root / "owners").mkdir()
        shutil.copytree(sound, self.outside)
        self.secret.write_bytes(_SECRET)
        self.secret.chmod(0o600)
        self.build_inside(sound)

    def build_inside(self, sound: Path) -> None:
        """Create only the data directory again. Use it when nothing outside was changed."""
        for path in (self.data, self.target):
            shutil.rmtree(path, ignore_errors=True)
        shutil.copytree(sound, self.data)
        give_to_owner(self.root / "owners")
        # Each read of a file with an old access time changes the access time.
        old = time.time() - _TWO_DAYS_S
        for path in (self.secret, *self.outside.rglob("*")):
            os.utime(path, (old, old), follow_symlinks=False)

    def plant(
        self, name: str, kind: str, *, folder: Path | None = None, other: Path | None = None
    ) -> bool:
        """Replace a file or folder in `folder` or the data directory; return whether it could."""
        path, other = (folder or self.data) / name, other or self.outside / name
        is_folder = path.is_dir()
        if (is_folder and "hard" in kind) or (kind == "hard link" and not other.exists()):
            return False
        if is_folder:
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        path.parent.mkdir(parents=True, exist_ok=True)
        match kind:
            case "link":
                path.symlink_to(other)
            case "root's, by a link":
                path.symlink_to(self.secret)
            case "hard link":
                path.hardlink_to(other)
            case "root's, by a hard link":
                path.hardlink_to(self.secret)
            case "FIFO":
                os.mkfifo(path)
        if kind != "root's, by a hard link" and kind != "hard link":
            os.chown(path, OWNER, OWNER, follow_symlinks=False)
        return True

    def seen_outside(self) -> dict[str, tuple[object, ...]]:
        """Return state that changes when anything outside is read, changed or created."""
        found: dict[str, tuple[object, ...]] = {}
        for path in (self.secret, self.outside, *self.outside.rglob("*")):
            status = path.lstat()
            access = None if path.is_dir() else status.st_atime_ns
            found[str(path)] = (
                *(status.st_uid, status.st_gid, status.st_mode, status.st_size),
                *(status.st_mtime_ns, access),
            )
        return found

    def holds_secret(self) -> bool:
        """Whether root's secret was copied to any file of the owner."""
        # A planted hard link is root's file itself, not a copy.
        return any(
            path.is_file()
            and not path.is_symlink()
            and path.stat().st_ino != self.secret.stat().st_ino
            and _SECRET in path.read_bytes()
            for path in (self.root / "owners").rglob("*")
        )


KINDS = ("link", "root's, by a link", "hard link", "root's, by a hard link", "FIFO")


def give_to_owner(folder: Path) -> None:
    """Make the owner own a folder and everything in it."""
    for path in (folder, *folder.rglob("*")):
        os.chown(path, OWNER, OWNER, follow_symlinks=False)


class Root:
    """Runs our commands as root, each in a fork of one process that has imported them. Other users
    must be able to read their Python, because a command gives up root's rights."""

    def __init__(self, output: Path) -> None:
        """Write the output of each command to the file `output`."""
        self._output = output
        python = _shared_python()
        self._process = subprocess.Popen(
            [python, "-m", "tests.support.damage.planted_names"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": _search_path()},
            text=True,
        )

    def run(self, arguments: list[str]) -> Ran:
        """Run a command. A broker is stopped as soon as it serves."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps([str(self._output), *arguments]) + "\n")
        self._process.stdin.flush()
        code = json.loads(self._process.stdout.readline())
        return Ran(code, self._output.read_text(errors="replace"))

    def close(self) -> None:
        self._process.communicate()


def _search_path() -> str:
    packages = [each for each in sys.path if each.endswith("site-packages")]
    return os.pathsep.join([str(Path(__file__).parents[3]), *packages])


def _shared_python() -> str:
    """Return a Python of this version that the owner may run. Skip the test if there is none."""
    of_system = f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}"
    for python in (sys.executable, of_system):
        try:
            subprocess.run(
                [python, "-c", "import http, holdfast.cli.main, holdfast.broker"],
                user=OWNER,
                group=OWNER,
                extra_groups=[],
                cwd="/",
                env={"PYTHONPATH": _search_path()},
                capture_output=True,
                check=True,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return python
    pytest.skip("there is no Python here that other users may run with our packages")


def _serve_commands() -> None:
    """Run the commands from standard input, one per line, and print the exit code of each."""
    import holdfast.broker
    import holdfast.cli.main
    import holdfast.cli.process.broker_process
    import holdfast.repair

    assert holdfast.broker
    for line in sys.stdin:
        output, *arguments = json.loads(line)
        path = Path(output)
        path.unlink(missing_ok=True)
        pid = os.fork()
        if pid == 0:
            _become_command(arguments, path)
        print(json.dumps(_wait(pid, path)), flush=True)


def _become_command(arguments: list[str], output: Path) -> None:
    code = 70
    try:
        descriptor = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        os.dup2(descriptor, 1)
        os.dup2(descriptor, 2)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        from holdfast.cli.main import main

        main(arguments)
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 70
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(Exception):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def _wait(pid: int, output: Path) -> int | None:
    deadline = time.monotonic() + DEADLINE_S
    is_told = False
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > deadline:
            os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)
            return None
        if not is_told and output.exists() and b"serving on" in output.read_bytes():
            os.kill(pid, signal.SIGTERM)
            is_told = True
        time.sleep(0.005)


if __name__ == "__main__":
    _serve_commands()
