"""The features of all commands: fast help, one line per error, completion."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main, report_failure
from tests.cli.conftest import assert_refused

HEAVY = {"aiohttp", "asyncio", "lmdb", "msgspec", "numpy", "pyspark", "rich", "uvloop"}


def invoke(*arguments: str, **environment: str) -> Result:
    return CliRunner().invoke(main, arguments, env=environment, prog_name="holdfast")


def commands(command: click.Command, path: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = [path] if path else []
    if isinstance(command, click.Group):
        for name, inner in command.commands.items():
            found += commands(inner, (*path, name))
    return found


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys\n"
        "from holdfast.cli.main import main, report_failure\n"
        "try: main(['serve', '--help'])\n"
        f"finally: print({HEAVY!r} & set(sys.modules), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0
    assert done.stderr.strip() == "set()"


def test_numpy_starts_no_threads_in_a_command() -> None:
    script = (
        "import os, sys\n"
        "from holdfast.cli.main import main\n"
        "try: main(['--version'])\n"
        "except SystemExit: pass\n"
        "import numpy\n"
        "print(len(os.listdir('/proc/self/task')), file=sys.stderr)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=False
    )
    assert done.stderr == "1\n"


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_helps(path: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main([*path, "--help"])
    assert ended.value.code == 0
    said = capsys.readouterr().out
    assert said.startswith("Usage: ")
    options = re.findall(r"^  (--?[a-z][^ ]*)(?:.*)$", said, re.MULTILINE)
    assert "--help" in said
    assert options


# O1: a group without a command printed its help in one line of 1,300 characters.
@pytest.mark.parametrize("path", [[], ["topic"], ["group"], ["config"], ["message"], ["token"]])
def test_a_group_without_a_command_prints_its_help(path: list[str]) -> None:
    done, helped = invoke(*path), invoke(*path, "--help")
    assert (done.exit_code, done.stdout, done.stderr) == (2, "", helped.stdout)
    assert done.stderr.count("\n") > 5


@pytest.mark.parametrize("path", commands(main), ids=" ".join)
def test_every_command_is_on_the_page(path: tuple[str, ...]) -> None:
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text("utf-8")
    (row,) = re.findall(rf"^\| `holdfast {path[0]}\b.*$", page, re.MULTILINE)
    assert all(re.search(rf"[` ]{word}\b", row) for word in path)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["pul"], "No such command 'pul'. (Did you mean one of: 'publish', 'pull'?)"),
        (["pull"], "Missing argument 'TOPIC'. See 'holdfast pull --help'."),
        (
            ["pull", "t", "--folow"],
            "No such option '--folow'. (Did you mean one of: '--follow', '--from'?)",
        ),
        (["pull", "t", "--from", "soon"], "'soon' is neither earliest, latest, an offset"),
        (["pull", "t", "--from", "7"], "give --queue"),
        (["pull", "t", "--follow", "--until", "now"], "give one of them"),
        (["pull", "t", "--format", "%x"], "%x is unknown; known are %n"),
        (["pull", "t", "--url", "localhost:1"], "must begin with http://"),
        (["publish", "t", "/none"], "'/none'"),
        (["publish", "t", "--key-regex", "("], "'(': missing )"),
        (["publish", "t", "--batch-bytes", "1XB"], "'1XB' is not a size"),
        (["topic", "delete", "t"], "confirm it with --yes"),
        (["topic", "change", "t"], "Nothing to change"),
        (["group", "reset", "g", "t", "--to", "5"], "an offset fits one queue only"),
        (["serve", "--port", "70000"], "flag --http-api-port: http_api.port is '70000'; allowed"),
        (["serve", "--config", "/none"], "/none: No such file or directory"),
        (["config", "show", "--config", "/none"], "/none: No such file or directory"),
    ],
)
def test_wrong_usage_is_one_line_and_code_2(arguments: list[str], said: str) -> None:
    assert_refused(invoke(*arguments), 2, said)


@pytest.mark.parametrize(
    "command",
    ["topic list", "pull t", "publish t", "message get 0", "status", "top",
     "consume t --group g --follow"],
)  # fmt: skip
def test_no_broker_is_one_line_and_code_3(command: str, unused_port: int) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    assert_refused(
        invoke(*command.split(), "--url", url), 3, f"holdfast: no broker answers at {url}"
    )


# O6: --url was accepted only after the command.
def test_options_about_the_broker_may_stand_before_the_command(unused_port: int) -> None:
    here = f"http://127.0.0.1:{unused_port}"
    for arguments in (["--url", here, "topic", "list"], ["topic", "list", "--url", here]):
        done = invoke(*arguments, HOLDFAST_URL="http://x")
        assert f"no broker answers at {here} " in done.stderr
    both = invoke("--url", "http://nowhere:1", "topic", "list", "--url", here)
    assert f"no broker answers at {here} " in both.stderr


def test_a_command_that_talks_to_no_broker_takes_none(tmp_path: Path) -> None:
    done = invoke("--url", "http://h:1", "check", str(tmp_path))
    assert_refused(done, 2, "'holdfast check' talks to no broker: omit --url.")


def test_a_token_file_may_stand_before_the_command(tmp_path: Path, unused_port: int) -> None:
    file = tmp_path / "token"
    file.write_text("two words")
    done = invoke("--token-file", str(file), "topic", "list", "--url", f"http://h:{unused_port}")
    assert_refused(done, 2, "must contain one token")


# O2: --key named the TLS key, but looked like the option for a message's key.
@pytest.mark.parametrize(
    ("former", "name"), [("--ca-file", "--tls-ca-file"), ("--cert", "--tls-cert")]
)
def test_former_names_of_tls_options_are_accepted_but_not_shown(former: str, name: str) -> None:
    url = ("--url", "https://127.0.0.1:1")
    said = [invoke("topic", "list", *url, flag, "/none").stderr for flag in (former, name)]
    assert said[0] == said[1]
    assert "/none" in said[0]
    helped = invoke("topic", "list", "--help").stdout
    assert f" {name} " in helped
    assert f" {former} " not in helped


def test_a_wrong_variable_is_named() -> None:
    done = invoke("config", "show", HOLDFAST_HTTP_API_PROT="1")
    assert_refused(done, 2, "did you mean HOLDFAST_HTTP_API_PORT?")


def test_the_reader_of_the_output_may_go_away() -> None:
    command = f"{sys.executable} -m holdfast config reference | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 141}
    assert done.stderr == ""


def test_completion_knows_the_commands() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "holdfast"],
        env={"COMP_WORDS": "holdfast to", "COMP_CWORD": "1", "_HOLDFAST_COMPLETE": "bash_complete"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.stdout.split() == ["plain,top", "plain,topic", "plain,token"]


def test_control_characters_in_a_failure_are_escaped(capsys: pytest.CaptureFixture[str]) -> None:
    hostile = "no topic \x1b[2J\x1b]0;title\x07 =cmd()\r\n\u202eback"
    code = report_failure(hostile, 4)
    said = capsys.readouterr().err
    assert code == 4
    assert said.count("\n") == 1
    assert said.strip().isprintable()
