"""What a start imports. Each import costs every program that starts, so nothing is imported before
it is used."""

import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker

#: Modules of the standard library whose import takes about a millisecond or more.
HEAVY = {
    "ast", "asyncio", "base64", "concurrent", "csv", "ctypes", "dataclasses", "datetime",
    "decimal", "difflib", "dis", "email", "getpass", "gettext", "hashlib", "hmac", "html", "http",
    "importlib.metadata", "importlib.resources", "inspect", "ipaddress", "json", "locale",
    "logging", "multiprocessing", "pathlib", "pickle", "platform", "queue", "random", "re",
    "secrets", "shutil", "signal", "socket", "ssl", "statistics", "string", "subprocess",
    "tempfile", "threading", "tokenize", "tomllib", "traceback", "typing", "unittest",
    "urllib.parse", "urllib.request", "uuid", "xml", "zipfile", "zoneinfo",
}  # fmt: skip

#: What click itself imports.
CLICK = {
    "click", "ast", "datetime", "dis", "gettext", "inspect", "locale", "platform", "re", "shutil",
    "threading", "tokenize", "typing", "uuid",
}  # fmt: skip

#: What the synchronous client itself imports. A program that publishes or pulls imports more.
CLIENT = {
    "ast", "dataclasses", "datetime", "dis", "inspect", "ipaddress", "logging", "pathlib", "re",
    "socket", "string", "threading", "tokenize", "traceback", "typing", "urllib.parse",
}  # fmt: skip

#: What a command imports that publishes to a broker.
PUBLISH = CLICK | CLIENT | {
    "asyncio", "base64", "concurrent", "cython_runtime", "decimal", "google_crc32c", "hashlib",
    "hmac", "importlib.metadata", "json", "msgspec", "queue", "random", "secrets", "signal", "ssl",
    "subprocess", "typing_extensions", "uvloop",
}  # fmt: skip


def modules_after(script: str) -> set[str]:
    """Return the modules that a new Python process has loaded after a script."""
    done = subprocess.run(
        [sys.executable, "-c", f"{script}\nimport sys; print(*sys.modules)"],
        capture_output=True,
        text=True,
        check=True,
    )
    return set(done.stdout.splitlines()[-1].split())


def imported(script: str) -> set[str]:
    """Return what a script imports: the third-party packages, and the modules of HEAVY."""
    names = modules_after(script) - modules_after("")
    packages = {name.partition(".")[0] for name in names}
    packages = {each for each in packages if not each.startswith("_")}
    return packages - sys.stdlib_module_names - {"holdfast"} | names & HEAVY


def run_command(*arguments: str) -> str:
    return (
        "from holdfast.cli.main import main\n"
        f"try: main({list(arguments)!r}, prog_name='holdfast')\n"
        "except SystemExit: pass"
    )


@pytest.mark.parametrize(
    ("script", "allowed"),
    [
        ("import holdfast", {"re", "typing"}),
        ("import holdfast; holdfast.Client", CLIENT),
        ("import holdfast; holdfast.Client()", CLIENT),
        ("import holdfast; holdfast.Client(); holdfast.errors", CLIENT),
        ("import holdfast; holdfast.AsyncClient", CLIENT),
        (run_command("--help"), CLICK),
        (run_command("--version"), CLICK),
    ],
    ids=[
        *("import holdfast", "holdfast.Client", "holdfast.Client()", "holdfast.errors"),
        *("holdfast.AsyncClient", "holdfast --help", "holdfast --version"),
    ],
)
def test_a_start_imports_only(script: str, allowed: set[str]) -> None:
    assert imported(script) - allowed == set()


def test_a_broker_starts_without_what_it_may_never_need() -> None:
    names = modules_after("import holdfast.cli.process.broker_process")
    unneeded = {"aiohttp.client", "aiohttp.web", "holdfast.client", "lark", "websockets"}
    assert not names & (unneeded | {"difflib", "pyarrow", "rich", "tomllib", "zoneinfo"})


def test_a_publish_imports_only(tmp_path: Path) -> None:
    with RunningBroker(tmp_path / "data") as broker:
        publish = run_command("publish", "t", "--body", "x", "--url", broker.url)
        assert imported(publish) - PUBLISH == set()
        with broker.client() as client:
            assert [message.body for message in client.pull("t", follow=False)] == [b"x"]
        read = f"import holdfast; client = holdfast.Client({broker.url!r})"
        read += "; client.publish('t', 'y'); assert len(list(client.pull('t', follow=False))) == 2"
        assert not {"asyncio", "ssl", "uvloop"} & modules_after(read), "a thread needs no loop"
        broker.stop()
        assert imported(publish) - PUBLISH == set(), "the failure, too, imports no more"
