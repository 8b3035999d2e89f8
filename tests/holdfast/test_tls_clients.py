"""All clients of the project against one broker with mutual TLS: library, command line, Spark."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from holdfast import AsyncClient, Client
from holdfast.cli.exits import ExitCode
from holdfast.cli.main import main
from holdfast.client.errors import CertificateNotTrusted, ConnectionFailed
from holdfast.client.transport.target import TlsFilesUnusable
from holdfast.spark import errors as spark_errors
from holdfast.spark.broker.transport import Transport
from holdfast.spark.options.location import Address
from holdfast.spark.options.read import parse_options
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.certificates import Certificates


@dataclass(frozen=True)
class Served:
    """A broker, and the certificates to connect to it."""

    broker: RunningBroker
    ca: Certificates
    strangers: Certificates
    pair: tuple[Path, Path]

    @property
    def files(self) -> dict[str, Any]:
        return {"ca_file": self.ca.ca_file, "cert_file": self.pair[0], "key_file": self.pair[1]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("tls")
    ca, strangers = Certificates(folder), Certificates(folder, "strangers")
    certificate, key = ca.issue("server", "127.0.0.1")
    arguments = (
        *("--http-api-tls-certificate", str(certificate)),
        *("--http-api-tls-key", str(key)),
        *("--http-api-tls-client-ca", str(ca.ca_file)),
        *TEST_ARGUMENTS,
    )
    with RunningBroker(folder / "data", arguments) as broker:
        yield Served(broker, ca, strangers, ca.issue("client", "orders-service"))


def test_the_ready_line_says_https(served: Served) -> None:
    assert served.broker.url.startswith("https://127.0.0.1:")


def test_the_client_publishes_and_pulls(served: Served) -> None:
    with served.broker.client(**served.files) as client:
        with client.producer("sync", queue=0) as producer:
            producer.send(b"x" * 300_000)
        client.publish("sync", b"hello", queue=0)
        bodies = [message.body for message in client.pull("sync", 0, 0, follow=False)]
    assert bodies == [b"x" * 300_000, b"hello"]


async def test_the_asyncio_client_publishes_and_pulls(served: Served) -> None:
    async with AsyncClient(served.broker.url, **served.files) as client:
        await client.publish("async", b"hello", queue=0)
        found = [message.body async for message in client.pull("async", 0, 0, follow=False)]
    assert found == [b"hello"]


def test_a_broker_whose_certificate_is_not_trusted_is_not_asked_again(served: Served) -> None:
    with (
        Client(served.broker.url, ca_file=served.strangers.ca_file, timeout_ms=600_000) as client,
        pytest.raises(CertificateNotTrusted, match="--tls-ca-file"),
    ):
        client.topics()


def test_without_its_certificate_a_client_is_refused(served: Served) -> None:
    with (
        Client(served.broker.url, ca_file=served.ca.ca_file, timeout_ms=0) as client,
        pytest.raises(ConnectionFailed),
    ):
        client.topics()
    with served.broker.client(**served.files) as client:
        client.topics()


@pytest.mark.parametrize(
    ("files", "names"),
    [
        ({"ca_file": "/nowhere/ca.pem"}, "/nowhere/ca.pem"),
        ({"cert_file": "/nowhere/c.pem"}, "/nowhere/c.pem"),
        ({"key_file": "/nowhere/k.pem"}, "without its certificate"),
    ],
)
def test_files_that_cannot_be_used_are_named(files: dict[str, Any], names: str) -> None:
    with pytest.raises(TlsFilesUnusable, match=names):
        Client("https://127.0.0.1:1", **files)


def test_files_for_tls_need_an_address_that_speaks_it(served: Served) -> None:
    with pytest.raises(ValueError, match="https://"):
        Client("http://127.0.0.1:1", **served.files)


# -- the command line ----------------------------------------------------------------------


def run(served: Served, *arguments: str, **files: Path) -> Result:
    environ = {"HOLDFAST_URL": served.broker.url}
    options = [part for name, file in files.items() for part in (f"--{name}", str(file))]
    return CliRunner().invoke(main, [*arguments, *options], env=environ)


def test_commands_take_the_files_as_options_or_variables(served: Served) -> None:
    environ = {
        "HOLDFAST_URL": served.broker.url,
        "HOLDFAST_CA_FILE": str(served.ca.ca_file),
        "HOLDFAST_CERT": str(served.pair[0]),
        "HOLDFAST_KEY": str(served.pair[1]),
    }
    said = CliRunner().invoke(main, ["topic", "create", "cli"], env=environ)
    assert said.exit_code == 0, said.output
    options = [
        *("--ca-file", str(served.ca.ca_file)),
        *("--cert", str(served.pair[0])),
        *("--key", str(served.pair[1])),
    ]
    said = CliRunner().invoke(
        main, ["topic", "list", *options], env={"HOLDFAST_URL": served.broker.url}
    )
    assert said.exit_code == 0, said.output
    assert '"cli"' in said.output


def test_a_command_says_that_the_certificate_is_not_trusted(served: Served) -> None:
    said = run(served, "topic", "list")
    assert said.exit_code == ExitCode.UNREACHABLE
    assert "is not trusted" in said.output
    assert "--tls-ca-file" in said.output


def test_a_command_names_a_file_that_cannot_be_used(served: Served, tmp_path: Path) -> None:
    said = run(served, "topic", "list", cert=tmp_path / "none.pem")
    assert said.exit_code == ExitCode.USAGE
    assert "none.pem" in said.output


# -- Spark ---------------------------------------------------------------------------------


def test_sparks_transport_speaks_mutual_tls(served: Served) -> None:
    options = parse_options(
        {
            "url": served.broker.url,
            "topic": "t",
            "caFile": str(served.ca.ca_file),
            "certFile": str(served.pair[0]),
            "keyFile": str(served.pair[1]),
        }
    )
    transport = Transport(options.address)
    assert len(transport.get("/v1/topics").json()["topics"]) > 0
    transport.close()


def test_sparks_transport_does_not_ask_again_whom_it_does_not_trust(served: Served) -> None:
    def sleep(_: float) -> None:
        pytest.fail("it tried again")

    address = Address(served.broker.url, ca_file=str(served.strangers.ca_file))
    transport = Transport(address, sleep=sleep)
    with pytest.raises(spark_errors.CertificateNotTrusted, match="caFile"):
        transport.get("/v1/topics")


@pytest.mark.parametrize(
    ("given", "names"),
    [
        ({"url": "http://b", "caFile": "ca.pem"}, "caFile"),
        ({"url": "http://b", "certFile": "c.pem"}, "certFile"),
        ({"url": "https://b", "keyFile": "k.pem"}, "keyFile"),
    ],
)
def test_spark_options_for_tls_are_checked(given: dict[str, str], names: str) -> None:
    with pytest.raises(spark_errors.InvalidOption, match=names):
        parse_options({"topic": "t", **given})


@pytest.mark.parametrize(
    ("files", "names"),
    [
        (lambda _: {"ca_file": "/nowhere/ca.pem"}, "caFile"),
        (lambda s: {"cert_file": str(s.pair[0]), "key_file": str(s.ca.ca_file)}, "certFile"),
    ],
)
def test_files_that_an_executor_lacks_are_named(
    served: Served, files: Callable[[Served], dict[str, str]], names: str
) -> None:
    with pytest.raises(spark_errors.InvalidOption, match=names):
        Transport(Address(served.broker.url, **files(served))).get("/v1/topics")


# -- the broker's own files ----------------------------------------------------------------


def test_serve_names_files_that_cannot_be_used(tmp_path: Path) -> None:
    said = CliRunner().invoke(
        main,
        [
            *("serve", "--data-dir", str(tmp_path / "d"), "--port", "0"),
            *("--http-api-tls-certificate", str(tmp_path / "none.pem")),
        ],
    )
    assert said.exit_code == ExitCode.REFUSED, said.output
    assert "none.pem" in said.output
    assert "Traceback" not in said.output
