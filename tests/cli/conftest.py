"""Fixtures of the command line's tests."""

import json
import socket
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main
from holdfast.testing import TEST_ARGUMENTS, RunningBroker

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


@pytest.fixture(scope="session")
def shared_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker for all tests that need none of their own: starting one takes a second."""
    with RunningBroker(tmp_path_factory.mktemp("cli") / "data", TEST_ARGUMENTS) as broker:
        yield broker


@pytest.fixture
def holdfast(request: pytest.FixtureRequest, shared_broker: RunningBroker) -> Iterator[Run]:
    """Return a function that runs a command against an empty broker: the test's `holdfast_broker`
    if the test has one, otherwise the shared broker, which is emptied after the test."""
    if "holdfast_broker" in request.fixturenames:
        yield commands_against(request.getfixturevalue("holdfast_broker").url)
        return
    yield commands_against(shared_broker.url)
    with shared_broker.client() as client:
        for group in list(client.groups()):
            client.delete_group(group["group"])
        for topic in list(client.topics()):
            client.delete_topic(topic["topic"])
