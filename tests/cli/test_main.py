"""The features of all commands: fast help, one line per error, completion."""

import re
import subprocess
import sys
from pathlib import Path

import click
import pytest

from holdfast.cli.main import main, report_failure

HEAVY = {"aiohttp", "asyncio", "lmdb", "msgspec", "numpy", "pyspark", "rich", "uvloop"}


def run(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "holdfast", *arguments],
        env={"PATH": "/usr/bin:/bin", **environment},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )


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
    done, helped = run(*path), run(*path, "--help")
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr == helped.stdout
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
    done = run(*arguments)
    assert done.returncode == 2
    assert done.stdout == ""
    assert done.stderr.startswith("holdfast: ")
    assert done.stderr.count("\n") == 1
    assert said in done.stderr


@pytest.mark.parametrize(
    "arguments", [["topic", "list"], ["pull", "t"], ["publish", "t"], ["message", "get", "0" * 32]]
)
def test_no_broker_is_one_line_and_code_3(arguments: list[str], unused_port: int) -> None:
    done = run(*arguments, "--url", f"http://127.0.0.1:{unused_port}")
    assert done.returncode == 3
    assert done.stdout == ""
    assert done.stderr.startswith(f"holdfast: no broker answers at http://127.0.0.1:{unused_port}")
    assert done.stderr.count("\n") == 1


# O6: --url was accepted only after the command.
def test_options_about_the_broker_may_stand_before_the_command(unused_port: int) -> None:
    here = f"http://127.0.0.1:{unused_port}"
    for arguments in (["--url", here, "topic", "list"], ["topic", "list", "--url", here]):
        assert f"no broker answers at {here} " in run(*arguments, HOLDFAST_URL="http://x").stderr
    both = run("--url", "http://nowhere:1", "topic", "list", "--url", here)
    assert f"no broker answers at {here} " in both.stderr


def test_a_command_that_talks_to_no_broker_takes_none(tmp_path: Path) -> None:
    done = run("--url", "http://h:1", "check", str(tmp_path))
    assert done.returncode == 2
    assert "'holdfast check' talks to no broker: omit --url." in done.stderr


def test_a_token_file_may_stand_before_the_command(tmp_path: Path, unused_port: int) -> None:
    file = tmp_path / "token"
    file.write_text("two words")
    done = run("--token-file", str(file), "topic", "list", "--url", f"http://h:{unused_port}")
    assert done.returncode == 2
    assert "must contain one token" in done.stderr


# O2: --key named the TLS key, but looked like the option for a message's key.
@pytest.mark.parametrize(
    ("former", "name"), [("--ca-file", "--tls-ca-file"), ("--cert", "--tls-cert")]
)
def test_former_names_of_tls_options_are_taken_and_not_shown(former: str, name: str) -> None:
    url = ("--url", "https://127.0.0.1:1")
    said = [run("topic", "list", *url, flag, "/none").stderr for flag in (former, name)]
    assert said[0] == said[1]
    assert "/none" in said[0]
    helped = run("topic", "list", "--help").stdout
    assert f" {name} " in helped
    assert f" {former} " not in helped


def test_a_wrong_variable_is_named() -> None:
    done = run("config", "show", HOLDFAST_HTTP_API_PROT="1")
    assert done.returncode == 2
    assert "did you mean HOLDFAST_HTTP_API_PORT?" in done.stderr


def test_the_reader_of_the_output_may_go_away() -> None:
    command = f"{sys.executable} -m holdfast config reference | true; exit ${{PIPESTATUS[0]}}"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode in {0, 141}
    assert done.stderr == ""


def test_completion_knows_the_commands() -> None:
    done = run(COMP_WORDS="holdfast to", COMP_CWORD="1", _HOLDFAST_COMPLETE="bash_complete")
    assert done.stdout.split() == ["plain,top", "plain,topic", "plain,token"]


def test_nothing_in_a_failure_is_for_the_terminal_to_obey(
    capsys: pytest.CaptureFixture[str],
) -> None:
    hostile = "no topic \x1b[2J\x1b]0;title\x07 =cmd()\r\n\u202eback"
    code = report_failure(hostile, 4)
    said = capsys.readouterr().err
    assert code == 4
    assert said.count("\n") == 1
    assert said.strip().isprintable()
