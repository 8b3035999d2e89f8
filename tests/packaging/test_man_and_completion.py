"""The man page and the completion scripts in packaging/ are those of the command line."""

import shutil
import subprocess
import sys
from pathlib import Path

import click
import pytest
from click.shell_completion import get_completion_class

from holdfast.cli.main import main
from tests.packaging.man_page import man_page

PACKAGING = Path(__file__).parents[2] / "packaging"
PAGE = PACKAGING / "man" / "holdfast.1"
COMPLETION = PACKAGING / "completion"
SCRIPTS = {"bash": "holdfast", "zsh": "_holdfast", "fish": "holdfast.fish"}


def test_the_man_page_is_up_to_date() -> None:
    assert PAGE.read_text() == man_page(), "run: make docs"


@pytest.mark.skipif(shutil.which("groff") is None, reason="no groff here (package groff-base)")
def test_the_man_page_is_correct_and_names_every_command() -> None:
    done = subprocess.run(
        ["groff", "-man", "-Tascii", "-ww", "-P-cbou", str(PAGE)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    for name in main.list_commands(click.Context(main)):
        assert f"\n   holdfast {name}" in done.stdout, name


@pytest.mark.parametrize("shell", SCRIPTS)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_the_completion_script_is_up_to_date(shell: str) -> None:
    completion = get_completion_class(shell)
    assert completion is not None
    source = completion(main, {}, "holdfast", "_HOLDFAST_COMPLETE").source()
    script = (COMPLETION / shell / SCRIPTS[shell]).read_text()
    assert script.strip() == source.strip(), "run: make docs"


@pytest.mark.parametrize(
    ("words", "completions"),
    [
        (["holdfast", "topic", "cr"], ["create"]),
        (["holdfast", "publish", "orders", "--man"], ["--mandatory"]),
        (["holdfast", "topic", "create", "orders", "--durability", "w"], ["written"]),
    ],
)
@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash here")
def test_bash_completes(words: list[str], completions: list[str], tmp_path: Path) -> None:
    program = tmp_path / "holdfast"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m holdfast "$@"\n')
    program.chmod(0o755)
    listed = " ".join(words)
    done = subprocess.run(
        [
            *("bash", "--norc", "-c"),
            f"source {COMPLETION / 'bash' / 'holdfast'}; "
            f"COMP_WORDS=({listed}); COMP_CWORD={len(words) - 1}; "
            f'_holdfast_completion {program}; printf "%s\\n" "${{COMPREPLY[@]}}"',
        ],
        capture_output=True,
        text=True,
        check=False,
        timeout=60,
    )
    assert (done.stdout.split(), done.stderr) == (completions, "")
