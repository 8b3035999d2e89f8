"""What the tests of the command line share."""

import socket
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from holdfast.cli.main import main

if TYPE_CHECKING:
    from holdfast.testing import RunningBroker

Run = Callable[..., Result]


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Return a port that nobody listens on: it stays bound, so that nobody can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]


def commands_against(url: str) -> Run:
    """Return what runs a command of ours against the broker at `url`."""

    def run(*arguments: str, input: bytes = b"") -> Result:
        result = CliRunner().invoke(main, arguments, input=input, env={"HOLDFAST_URL": url})
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise result.exception
        return result

    return run


@pytest.fixture
def holdfast(holdfast_broker: "RunningBroker") -> Run:
    """Return what runs a command against a broker of this test's own."""
    return commands_against(holdfast_broker.url)
