"""Runs the examples of documentation pages, commands and Python, against one broker."""

import os
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import redirect_stdout
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from typing import Any

from holdfast.testing import RunningBroker

ROOT = Path(__file__).resolve().parents[3]

#: Commands that match one of these are not run, and the reasons.
SKIPPED = {
    r"^make |^python -m bench": "makes environments, runs all tests, measures",
    r"^\. \.venv": "this is the environment",
    r"^holdfast serve\b": "the broker runs already",
    r"^curl .*https://broker:8711": "needs a machine of that name",
    r"_HOLDFAST_COMPLETE": "writes to the shell's start-up file",
    r"^(systemctl|journalctl|podman|docker|helm) ": "needs a service manager or a container engine",
    r"^packaging/": "builds packages; tests/interop/test_deb.py and make release do that",
    r"dist/holdfast|try/bin/": "installs what `make wheels` builds: tests/test_packaging.py",
    r"^pip install 'holdfast\[": "this environment has the extras",
    r" s3://": "needs an object store; tests/interop/test_object_store.py has one",
    r"^go run |^npx ": "need Go, or Node, and what they fetch: tests/interop",
}
#: Kinds of blocks that are not run. `py` is a program for another broker.
SKIPPED_KINDS = {"json", "toml", "ini", "js", "ts", "go", "java", "mermaid", "text", "py", ""}
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


def shown_outputs(page: str) -> dict[Block, str]:
    """Return the output of each example that is followed by a `text` block: the text of it."""
    found: dict[Block, str] = {}
    before: Block | None = None
    for block in blocks(page):
        if block.kind == "text" and before is not None:
            found[before] = block.text + "\n"
        before = block if block.kind in {"python", "sh", "console"} else None
    return found


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


class Session:
    """Runs every example of pages in order, as one reader would.

    `failures` has a text for each example that failed, and `printed` what each block printed.
    `names` are variables that the Python examples find.
    """

    def __init__(
        self, broker: RunningBroker, folder: Path, names: dict[str, Any] | None = None
    ) -> None:
        self.broker = broker
        self.folder = folder
        self.skipped: set[str] = set()
        self.ran = 0
        self.failures: list[str] = []
        self.printed: dict[Block, str] = {}
        self._names = dict(names or {})
        self._hanging: list[tuple[Block, subprocess.Popen[str]]] = []

    def run(self, page: str) -> None:
        for block in blocks(page):
            if block.kind in SKIPPED_KINDS:
                continue
            self.printed[block] = ""
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
        is_spark = "holdfast.spark" in block.text and "spark" not in self._names
        is_tested_elsewhere = "holdfast_broker" in block.text or "amqp://127.0.0.1" in block.text
        if is_spark or is_tested_elsewhere:
            return  # tested by test_docs.py in tests/spark, tests/holdfast/client or tests/amqp
        code = self._here(block.text)
        out = StringIO()
        try:
            with redirect_stdout(out):
                exec(compile(code, block.place, "exec"), self._names)
        except Exception as error:
            self.failures.append(f"{block.place}: {error!r}")
        self.printed[block] = out.getvalue()
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
        self.printed[block] += done.stdout
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


def _is_held(metrics: str) -> bool:
    return re.search(r"^holdfast_long_poll_parked [1-9]", metrics, re.MULTILINE) is not None
