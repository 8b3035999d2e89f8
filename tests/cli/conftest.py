"""What the tests of the command line share."""

import socket
from collections.abc import Iterator

import pytest


@pytest.fixture
def unused_port() -> Iterator[int]:
    """Return a port that nobody listens on: it stays bound, so that nobody can."""
    with socket.socket() as bound:
        bound.bind(("127.0.0.1", 0))
        yield bound.getsockname()[1]
