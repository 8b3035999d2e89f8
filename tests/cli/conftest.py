"""Fixtures of the command line's tests."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main

if TYPE_CHECKING:
    from holdfast.testing import RunningBroker

Run = Callable[..., Result]


def lines(output: str) -> list[Any]:
    """Return the values of lines of JSON."""
    return [json.loads(line) for line in output.splitlines()]


def flip(path: Path, text: bytes) -> None:
    """Flip a bit of the first occurrence of `text` in a file."""
    content = path.read_bytes()
    at = content.index(text)
    with path.open("r+b") as file:
        file.seek(at)
        file.write(bytes([content[at] ^ 1]))


def assert_refused(result: Result, code: int, text: str = "") -> None:
    """Check that a command failed with this code, and printed one line with `text`."""
    assert (result.exit_code, result.stdout) == (code, ""), result.output
    assert result.stderr.startswith("holdfast: ")
    assert result.stderr.count("\n") == 1
    assert text in result.stderr


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Return a port where no process listens: a bound socket keeps the port from others."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def commands_against(url: str) -> Run:
    """Return a function that runs a command against the broker at `url`."""

    def run(*arguments: str, input: bytes = b"") -> Result:
        result = CliRunner().invoke(main, arguments, input=input, env={"HOLDFAST_URL": url})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def holdfast(holdfast_broker: "RunningBroker") -> Run:
    """Return a function that runs a command against a broker used only by this test."""
    return commands_against(holdfast_broker.url)
