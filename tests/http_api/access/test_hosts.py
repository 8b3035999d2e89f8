"""S5: the host names that a broker without authentication accepts."""

from collections.abc import Iterable
from pathlib import Path

import pytest

from holdfast.broker import Broker
from holdfast.config import Config, ConfigError, load_config
from holdfast.http_api.access.hosts import AllowedHosts, host_name
from tests.support.clients.raw_http import raw_connection


@pytest.mark.parametrize(
    ("names", "header", "expected"),
    [
        ((), "localhost", True), ((), "localhost:8711", True), ((), "LOCALHOST.", True),
        ((), "127.0.0.1:8711", True), ((), "127.9.9.9", True), ((), "[::1]:8711", True),
        ((), "[::1]", True), ((), "console.localhost:1", True), ((), "[::ffff:127.0.0.1]", True),
        ((), "evil.example", False), ((), "evil.example:8711", False), ((), "x", False),
        ((), "127.0.0.1.evil.example", False), ((), "localhost.evil.example", False),
        ((), "10.0.0.1", False), ((), "0.0.0.0", False), ((), "[::]", False), ((), "", False),
        ((), "[::1", False), ((), "::1", True), ((), "notlocalhost", False),
        ((), "127.0.0.1@evil", False), ((), "[localhost]evil.example", False),
        ((), "[localhost]", False), ((), "evil.example#.localhost", False),
        ((), "evil.example/.localhost", False), ((), "[::1]evil.example", False),
        ((), "evil.example:1.localhost", False), ((), "[::1]:8711x", False),
        ((), "2130706433", False), ((), "127.1", False), ((), "0x7f.1", False),
        (("a.example",), "a.example:1", True), (("A.Example",), "a.example.", True),
        (("a.example",), "b.a.example", False), (("a.example",), "xa.example", False),
        ((".a.example",), "a.example", True), ((".a.example",), "c.b.a.example", True),
        ((".a.example",), "xa.example", False), (("*",), "evil.example", True),
        (("10.0.0.1",), "10.0.0.1:8711", True),
    ],
)  # fmt: skip
def test_a_host_name_must_be_of_this_machine_or_allowed(
    names: Iterable[str], header: str, expected: bool
) -> None:
    assert AllowedHosts(names).admit(header) is expected


@pytest.mark.parametrize("header", ["10.0.0.1:8711", "[fe80::1]:8711", "192.168.1.5"])
def test_a_remote_broker_accepts_any_address(header: str) -> None:
    hosts = AllowedHosts(any_address=True)
    assert hosts.admit(header)
    assert not hosts.admit("evil.example")


@pytest.mark.parametrize(
    ("header", "name"),
    [("a:1", "a"), ("a", "a"), ("[::1]:1", "::1"), ("::1", "::1"), ("A.b.:80", "a.b"), ("a:", "a")],
)
def test_a_host_name_has_no_port_and_no_brackets(header: str, name: str) -> None:
    assert host_name(header) == name


def config(data_dir: Path, **flags: str) -> Config:
    told = {"data_dir": str(data_dir), "http_api.port": "0", "commitlog.segment_bytes": "1MiB"}
    named = {name.replace("__", "."): value for name, value in flags.items()}
    return load_config(file=None, environ={}, flags=told | named)


async def ask(broker: Broker, host: str, path: str = "/v1/topics") -> tuple[int, bytes]:
    port = int(broker.url.rpartition(":")[2])
    async with raw_connection(port) as connection:
        line = f"Host: {host}\r\n" if host else ""
        version = "1.1" if host else "1.0"
        await connection.send(f"GET {path} HTTP/{version}\r\n{line}\r\n".encode())
        status, _, body = await connection.answer()
        return status, body


async def test_without_authentication_a_foreign_name_is_refused(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, access__allowed_hosts="a.example, .b.example")) as broker:
        for path in ("/v1/topics", "/readyz", "/metrics", "/nothing"):
            status, body = await ask(broker, "evil.example:8711", path)
            assert (status, b"misdirected-request" in body) == (421, True), path
            assert b"access.allowed_hosts" in body
        for host in ("localhost:1", "127.0.0.1", "a.example", "c.b.example:8711", ""):
            assert (await ask(broker, host))[0] == 200, host


async def test_with_authentication_every_name_is_accepted(tmp_path: Path) -> None:
    async with Broker(config(tmp_path, access__authentication="true")) as broker:
        assert (await ask(broker, "evil.example"))[0] == 401


@pytest.mark.parametrize("text", ["http://a.example", "a b", "a.example/", "a,,b"])
def test_an_invalid_list_of_host_names_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"access\.allowed_hosts"):
        config(tmp_path, access__allowed_hosts=text)
