"""Every command and all Python of README.md and of the pages that it lists, in one session in
README's order, except SKIPPED and the examples with Java in tests/spark/test_docs.py."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from holdfast.testing import TEST_ARGUMENTS, RunningBroker

ROOT = Path(__file__).resolve().parents[2]
README = "README.md"

#: Commands that match one of these are not run, and the reasons.
SKIPPED = {
    r"^make |^python -m bench": "makes environments, runs all tests, measures",
    r"^\. \.venv": "this is the environment",
    r"^holdfast serve\b": "the broker runs already",
    r"^curl .*https://broker:8711": "needs a machine of that name",
    r"_HOLDFAST_COMPLETE": "writes to the shell's start-up file",
    r"^go run |^npx ": "need Go, or Node, and what they fetch: tests/interop",
}
#: Kinds of blocks that are not commands, and pages with a test of their own.
SKIPPED_KINDS = {"json", "toml", "js", "ts", "go", "java", "mermaid", "text", ""}
SKIPPED_PAGES = {"docs/spark.md"}
#: Commands that the page shows because the broker refuses them.
REFUSED = (r"""filter=color = "red"'""",)

#: Changes to the page's commands, so that they end and find their files.
PUT = (
    (r" --follow\b| --watch\b", ""),
    (r"\btail -f\b", "cat"),
    (r"wait_ms=\d+", "wait_ms=300"),
    (r'"wait_ms": \d+', '"wait_ms": 300'),
    (r"(holdfast restore .*--data-dir) /var/lib/holdfast", r"\1 restored"),
    (r"/var/lib/holdfast", "stopped"),
    (r"/mnt/backup", "mnt"),
    # A stream does not end: the test waits for its first event.
    (r"^(curl -N .*)$", r"exec 3< <(\1); stream=$!; grep -m 1 '^data:' <&3; kill $stream"),
    (r"\bcurl ", "curl -sS --fail-with-body -w '\\\\n' "),
)
#: A request that waits until a later block of the page publishes.
_HANGS = re.compile(r"from=latest&wait_ms=\d+")


@dataclass(frozen=True, slots=True)
class Block:
    """A block of a page, and the line at which it begins."""

    page: str
    line: int
    kind: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.page}, line {self.line}"


def blocks(page: str) -> Iterator[Block]:
    """Yield a page's fenced blocks, and the indented blocks that are commands."""
    lines = (ROOT / page).read_text("utf-8").splitlines()
    at = 0
    while at < len(lines):
        fence = re.fullmatch(r"```(\w*)", lines[at])
        start = at
        at += 1
        if fence is not None:
            while lines[at] != "```":
                at += 1
            yield Block(page, start + 1, fence[1], "\n".join(lines[start + 1 : at]))
            at += 1
        elif lines[start].startswith("    ") and (start == 0 or not lines[start - 1].strip()):
            while at < len(lines) and lines[at].startswith("    "):
                at += 1
            text = "\n".join(line[4:] for line in lines[start:at])
            if re.match(r"(curl|holdfast|make|\.|[A-Z]+=\S+) ", text):
                yield Block(page, start + 1, "sh", text)


def commands(block: Block) -> list[str]:
    """Return a block's commands, each with its continuation lines."""
    found: list[str] = []
    is_open = False
    quotes = 0
    for line in block.text.splitlines():
        if block.kind == "console":
            if line.startswith("$ "):
                found.append(line[2:])
            elif is_open:
                found[-1] += "\n" + line
            else:
                continue  # the command's output
            is_open = found[-1].endswith("\\")
        elif line.strip():
            if is_open or quotes % 2:
                found[-1] += "\n" + line
            else:
                found.append(line)
            is_open = line.endswith("\\")
            quotes = found[-1].count("'")
    return found


def pages() -> list[str]:
    """Return README and the pages that it lists, in its order."""
    listed = re.findall(r"^\| \[\S+?\]\((\S+?\.md)\)", (ROOT / README).read_text(), re.MULTILINE)
    return [README, *listed]


class Session:
    """Runs every example in order, as one reader would."""

    def __init__(self, broker: RunningBroker, folder: Path) -> None:
        self.broker = broker
        self.folder = folder
        self.skipped: set[str] = set()
        self.ran = 0
        self.failures: list[str] = []
        self._names: dict[str, Any] = {}
        self._hanging: list[tuple[Block, subprocess.Popen[str]]] = []

    def run(self, page: str) -> None:
        for block in blocks(page):
            if block.kind in SKIPPED_KINDS:
                continue
            if block.kind == "python":
                self._run_python(block)
                continue
            assert block.kind in {"sh", "console"}, f"{block.place}: what is {block.kind!r}?"
            for command in commands(block):
                self._run_command(block, command)
        for block, process in self._hanging:
            output, _ = process.communicate(timeout=60)
            if '"messages":[{' not in output:
                self.failures.append(f"{block.place}: the held pull answered {output!r}")
        self._hanging.clear()

    def _run_python(self, block: Block) -> None:
        if "holdfast.spark" in block.text or "holdfast_broker" in block.text:
            return  # tested by tests/spark/test_docs.py and tests/holdfast/client/test_docs.py
        code = self._here(block.text)
        out = StringIO()
        try:
            with redirect_stdout(out):
                exec(compile(code, block.place, "exec"), self._names)
        except Exception as error:
            self.failures.append(f"{block.place}: {error!r}")
        printed = out.getvalue().count("\n")
        if printed > 50:
            self.failures.append(f"{block.place} prints {printed} lines")
        self.ran += 1

    def _run_command(self, block: Block, command: str) -> None:
        for pattern in SKIPPED:
            if re.search(pattern, command):
                self.skipped.add(pattern)
                return
        if _HANGS.search(command):
            process = subprocess.Popen(
                ["bash", "-c", self._here(command).replace("curl ", "curl -sS ")],
                cwd=self.folder, stdout=subprocess.PIPE, text=True, env=self._environment(),
            )  # fmt: skip
            self._hanging.append((block, process))
            with self.broker.client() as client:
                while client.status()["phase"] != "ready" or not _is_held(client.metrics()):
                    pass
            return
        changed = self._here(command)
        for found, put in PUT:
            changed = re.sub(found, put, changed)
        script = f"set -a; [ -f .vars ] && . ./.vars\n{changed}\nexport -p > .vars\n"
        try:
            done = subprocess.run(
                ["bash", "-e", "-o", "pipefail", "-c", script],
                cwd=self.folder, env=self._environment(), stdin=subprocess.DEVNULL,
                capture_output=True, text=True, errors="replace", timeout=60, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            self.failures.append(f"{block.place} does not end:\n{command}")
            return
        is_refused = any(re.search(pattern, command) for pattern in REFUSED)
        output = f"{done.stdout[-2000:]}{done.stderr[-2000:]}"
        if (done.returncode != 0) is not is_refused:
            self.failures.append(f"{block.place}:\n{command}\n{output}")
        self.ran += 1

    def _here(self, text: str) -> str:
        for address in ("http://127.0.0.1:8711", "localhost:8711"):
            text = text.replace(address, self.broker.url)
        return text

    def _environment(self) -> dict[str, str]:
        return {
            "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
            "HOME": str(self.folder),
            "H": self.broker.url,
            "HOLDFAST_URL": self.broker.url,
            "NO_PROXY": "*",
        }


def _log_line(number: int) -> str:
    status = (200, 200, 404, 500)[number % 4]
    at = "22/Nov/2026:20:44:47 +0000"
    return f'10.0.{number % 3}.{number % 97} - - [{at}] "GET /{number} HTTP/1.1" {status} 9\n'


def _is_held(metrics: str) -> bool:
    return re.search(r"^holdfast_long_poll_parked [1-9]", metrics, re.MULTILINE) is not None


# E: pages contradicted each other on a topic's queues, a group's kind, and what was deleted before.
@pytest.mark.fault
@pytest.mark.timeout(600)
@pytest.mark.skipif(
    shutil.which("jq") is None or shutil.which("curl") is None, reason="needs curl and jq"
)
def test_all_pages_run_in_one_session(tmp_path: Path) -> None:
    stopped = tmp_path / "stopped"
    with RunningBroker(stopped, TEST_ARGUMENTS) as broker, broker.client() as client:
        client.publish("orders", b"x")
    (tmp_path / "access.log").write_text("".join(map(_log_line, range(10_000))))
    (tmp_path / "photo.jpg").write_bytes(bytes(range(256)))
    (tmp_path / "mnt").mkdir()
    with RunningBroker(tmp_path / "data", TEST_ARGUMENTS) as broker:
        session = Session(broker, tmp_path)
        for page in pages():
            if page not in SKIPPED_PAGES:
                session.run(page)
    assert not session.failures, "\n\n".join(session.failures)
    assert session.skipped == SKIPPED.keys(), "a row of SKIPPED fits nothing"
    assert session.ran > 100
