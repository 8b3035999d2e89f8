"""One broker with AMQP, and each client once, for all tests of a run."""

import os
from collections.abc import Callable, Iterator

import pytest

from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.interop.amqp.builds import CLIENTS
from tests.interop.amqp.clients import Client
from tests.interop.toolchains import need

#: Set it to the URL of another broker in order to check the clients' programs against it.
_OTHER_BROKER = "INTEROP_AMQP_URL"


@pytest.fixture(scope="session")
def amqp_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[RunningBroker, str]]:
    """Return a broker, and its URL of AMQP."""
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port))
    with RunningBroker(tmp_path_factory.mktemp("interop-amqp") / "data", arguments) as broker:
        yield broker, f"amqp://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def amqp_url(request: pytest.FixtureRequest) -> str:
    """Return the URL of AMQP of the shared broker."""
    url = os.environ.get(_OTHER_BROKER)
    if url is None:
        _, url = request.getfixturevalue("amqp_broker")
    assert url is not None
    return url


@pytest.fixture(scope="session")
def client(amqp_url: str) -> Iterator[Callable[[str], Client]]:
    """Return a function that returns a client by its name. It starts the client when it is first
    asked for it, and skips the test if a toolchain is missing."""
    yield from _clients(amqp_url)


@pytest.fixture(scope="session")
def web_socket_client(
    amqp_broker: tuple[RunningBroker, str],
) -> Iterator[Callable[[str], Client]]:
    """Return a function like `client`, for clients that connect to the HTTP port by WebSocket."""
    broker, _ = amqp_broker
    yield from _clients(f"{broker.url.replace('http:', 'ws:')}/amqp")


def _clients(url: str) -> Iterator[Callable[[str], Client]]:
    running: dict[str, Client] = {}

    def get(name: str) -> Client:
        if name not in running:
            toolchains, build = CLIENTS[name]
            need(*toolchains)
            running[name] = Client(name, build(), url)
        return running[name]

    yield get
    for each in running.values():
        each.stop()


@pytest.fixture
def address(request: pytest.FixtureRequest) -> str:
    """Return an address that no other test uses: the test's name, and letters that differ for
    each run against another broker."""
    kept = "".join(each if each.isalnum() else "-" for each in request.node.name)
    return f"{kept}-{os.getpid()}".lower()
