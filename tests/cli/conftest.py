"""Fixtures of the command line's tests."""

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
