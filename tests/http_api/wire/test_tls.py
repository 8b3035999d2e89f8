"""TLS and mutual TLS: refused clients do not affect others, and certificate files are reloaded."""

import asyncio
import shutil
import socket
import ssl
from collections.abc import Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.config import HttpConfig
from holdfast.http_api.wire.tls import TlsFiles, TlsUnusable, certificate_expires_s
from tests.support.clients.certificates import LONG_AGO, Certificates
from tests.support.clients.raw_http import raw_connection, until
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.api_server import Api, running_api

HEALTH = b"GET /healthz HTTP/1.1\r\nHost: x\r\n\r\n"
PULL = b"GET /v1/topics/orders/queues/0/messages?offset=0&wait_ms=60000 HTTP/1.1\r\nHost: x\r\n\r\n"


@pytest.fixture
def ca(tmp_path: Path) -> Certificates:
    return Certificates(tmp_path)


def served_with(pair: tuple[Path, Path], **more: Any) -> dict[str, Any]:
    return {"tls_certificate": str(pair[0]), "tls_key": str(pair[1]), **more}


async def health(api: Api, context: ssl.SSLContext) -> int:
    async with asyncio.timeout(10), raw_connection(api.server.port, context) as one:
        await one.send(HEALTH)
        return (await one.answer())[0]


async def clients_left(api: Api) -> None:
    await until(
        lambda: not (api.server.connection_count or not api.context.http.connections.is_empty)
    )


async def test_requests_are_answered_over_tls(ca: Certificates) -> None:
    async with running_api(**served_with(ca.issue("server"))) as api:
        assert api.server.scheme == "https"
        async with raw_connection(api.server.port, ca.trusting()) as one:
            for _ in range(3):
                await one.send(HEALTH + HEALTH)
                assert [(await one.answer())[0] for _ in range(2)] == [200, 200]
            tls = one.writer.get_extra_info("ssl_object")
            assert tls.version() == "TLSv1.3"
            assert api.connections[0].peer.client == "127.0.0.1"


# O8: no metric said when the certificate expires.
async def test_the_metrics_say_when_the_certificate_expires(ca: Certificates) -> None:
    not_after = datetime.now(UTC).replace(microsecond=0) + timedelta(days=9)
    pair = ca.issue("server", not_after=not_after)
    name = b"holdfast_tls_certificate_expiry_timestamp_seconds "
    async with running_api(**served_with(pair)) as api:
        ask = b"GET /metrics HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n"
        async with asyncio.timeout(10), raw_connection(api.server.port, ca.trusting()) as one:
            await one.send(ask)
            _, _, body = await one.answer()
    (line,) = [line for line in body.splitlines() if line.startswith(name)]
    assert float(line.split()[1]) == not_after.timestamp()


async def test_bytes_after_a_refused_head_are_read_for_a_while(
    ca: Certificates, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.http_api.wire.connection.LINGERING_S", 60)
    async with running_api(**served_with(ca.issue("server"))) as api:
        async with asyncio.timeout(20), raw_connection(api.server.port, ca.trusting()) as one:
            await one.send(b"GET /" + b"x" * 70_000)
            assert (await one.answer())[0] == 431
            for _ in range(20):
                await one.send(b"x" * 10_000)
            assert api.server.connection_count == 1
        await clients_left(api)


@pytest.mark.parametrize("size", [1, 70_000, 300_000, 3_900_000])
async def test_bodies_of_any_size_are_transferred_unchanged_over_tls(
    ca: Certificates, size: int
) -> None:
    body = bytes(range(251)) * (size // 251) + b"x" * (size % 251)
    async with running_api(**served_with(ca.issue("server"))) as api:
        await api.store.topics.create("orders")
        async with raw_connection(api.server.port, ca.trusting()) as one:
            head = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
            await one.send(head + b"Content-Length: %d\r\n\r\n" % size + body)
            assert (await one.answer())[0] == 200
            await one.send(PULL[:-2] + b"Accept: application/vnd.holdfast.batch\r\n\r\n")
            _, _, reply = await one.answer()
            assert len(reply) >= size
            assert (body in reply) is True
            assert api.context.http.connections.unsent.total_bytes == 0


async def test_a_held_pull_is_woken_over_tls(ca: Certificates) -> None:
    async with running_api(**served_with(ca.issue("server"))) as api:
        await api.store.topics.create("orders")
        async with (
            raw_connection(api.server.port, ca.trusting()) as held,
            raw_connection(api.server.port, ca.trusting()) as gone,
            raw_connection(api.server.port, ca.trusting()) as other,
        ):
            await held.send(PULL)
            await gone.send(PULL)
            await api.held(2)
            gone.writer.transport.abort()
            await api.held(1)
            await other.send(
                b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
                b"Content-Length: 1\r\n\r\nx"
            )
            assert (await held.answer())[0] == 200


# -- refused clients -----------------------------------------------------------------------


def _too_old(ca: Certificates) -> ssl.SSLContext:
    context = ca.trusting()
    context.set_ciphers("ALL:@SECLEVEL=0")
    context.minimum_version = ssl.TLSVersion.TLSv1
    context.maximum_version = ssl.TLSVersion.TLSv1_1
    return context


@pytest.mark.filterwarnings("ignore:ssl.TLSVersion:DeprecationWarning")
@pytest.mark.parametrize(
    ("identity", "not_after", "client"),
    [
        ("localhost", None, lambda ca: ssl.create_default_context()),
        ("elsewhere.example", None, lambda ca: ca.trusting()),
        ("localhost", LONG_AGO, lambda ca: ca.trusting()),
        ("localhost", None, _too_old),
    ],
    ids=["an unknown authority", "another host", "expired", "TLS 1.1"],
)
async def test_a_failed_handshake_does_not_affect_other_clients(
    ca: Certificates,
    identity: str,
    not_after: Any,
    client: Callable[[Certificates], ssl.SSLContext],
    caplog: pytest.LogCaptureFixture,
) -> None:
    pair = ca.issue("server", identity, not_after=not_after)
    async with running_api(**served_with(pair)) as api:
        context = client(ca)
        for _ in range(5):
            with pytest.raises((ssl.SSLError, ConnectionError)):
                await health(api, context)
        await clients_left(api)
        assert api.context.http.connections.closed_early["tls-handshake"] == 5
        anything = ssl.create_default_context()
        anything.check_hostname, anything.verify_mode = False, ssl.CERT_NONE
        assert await health(api, anything) == 200
    assert [each for each in caplog.records if each.levelname in ("WARNING", "ERROR")] == []


@pytest.mark.parametrize("sent", [HEALTH, b"\x16\x03\x01" + b"\xff" * 500, b"\x00" * 70_000])
async def test_a_connection_that_is_not_tls_is_closed(ca: Certificates, sent: bytes) -> None:
    async with running_api(**served_with(ca.issue("server"))) as api:
        async with raw_connection(api.server.port) as one:
            await one.send(sent)
            async with asyncio.timeout(10):
                assert b"HTTP" not in await one.closed()
        await clients_left(api)
        assert await health(api, ca.trusting()) == 200


@pytest.mark.parametrize(
    ("who", "is_let_in"),
    [("nobody", False), ("a stranger", False), ("one expired", False), ("a friend", True)],
)
async def test_with_mutual_tls_a_client_must_show_its_certificate(
    ca: Certificates, tmp_path: Path, who: str, is_let_in: bool
) -> None:
    pairs = {
        "nobody": None,
        "a stranger": Certificates(tmp_path, "strangers").issue("stranger", "orders"),
        "one expired": ca.issue("expired", "orders", not_after=LONG_AGO),
        "a friend": ca.issue("friend", "orders"),
    }
    settings = served_with(ca.issue("server"), tls_client_ca=str(ca.ca_file))
    async with running_api(**settings) as api:
        if is_let_in:
            assert await health(api, ca.trusting(pairs[who])) == 200
        else:
            with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
                await health(api, ca.trusting(pairs[who]))
            await clients_left(api)
            assert api.context.http.connections.closed_early["tls-handshake"] == 1
        assert await health(api, ca.trusting(pairs["a friend"])) == 200


async def test_a_client_certificate_may_be_optional(ca: Certificates, tmp_path: Path) -> None:
    stranger = Certificates(tmp_path, "strangers").issue("stranger", "orders")
    settings = served_with(
        ca.issue("server"), tls_client_ca=str(ca.ca_file), tls_client_certificates="optional"
    )
    async with running_api(**settings) as api:
        assert await health(api, ca.trusting()) == 200
        assert await health(api, ca.trusting(ca.issue("friend", "orders"))) == 200
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            await health(api, ca.trusting(stranger))


async def test_the_names_in_a_verified_certificate_reach_the_request(ca: Certificates) -> None:
    friend = ca.issue("friend", "orders.example", common_name="orders-service")
    settings = served_with(ca.issue("server"), tls_client_ca=str(ca.ca_file))
    async with (
        running_api(**settings) as api,
        raw_connection(api.server.port, ca.trusting(friend)) as one,
    ):
        await one.send(HEALTH)
        assert (await one.answer())[0] == 200
        (connection,) = api.connections
        assert connection.writer.transport is not None
        certificate = connection.writer.transport.get_extra_info("peercert")
        assert ("DNS", "orders.example") in certificate["subjectAltName"]
        names = [name for part in certificate["subject"] for name in part]
        assert ("commonName", "orders-service") in names


# -- limits --------------------------------------------------------------------------------


async def test_a_handshake_that_never_begins_is_counted_and_times_out(ca: Certificates) -> None:
    settings = served_with(ca.issue("server"), header_timeout_ms=3000, max_connections_per_client=1)
    clock = LoopClock()
    async with running_api(**settings) as api, raw_connection(api.server.port) as silent:
        await until(lambda: api.server.connection_count)
        with pytest.raises((ssl.SSLError, ConnectionError)):
            await health(api, ca.trusting())
        await clock.advance(3.0)
        assert await silent.closed() == b""
        await clients_left(api)
        assert await health(api, ca.trusting()) == 200


async def test_an_incomplete_head_over_tls_times_out(ca: Certificates) -> None:
    settings = served_with(ca.issue("server"), header_timeout_ms=1000)
    clock = LoopClock()
    async with (
        running_api(**settings) as api,
        raw_connection(api.server.port, ca.trusting()) as slow,
    ):
        await until(lambda: api.context.http.connections.open)
        await slow.send(b"GET /hea")
        await clock.advance(1.0)
        assert await slow.closed() == b""


@pytest.mark.parametrize(
    "settings",
    [
        {"write_timeout_ms": 100, "min_transfer_bytes_per_s": 0},
        {"transfer_grace_ms": 100},
    ],
)
async def test_a_client_that_does_not_read_over_tls_is_cut_off(
    ca: Certificates, settings: dict[str, Any]
) -> None:
    async with running_api(**served_with(ca.issue("server")), **settings) as api:
        await api.fill(3_900_000, 4)
        with socket.create_connection(("127.0.0.1", api.server.port)) as plain:
            plain.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            stuck = await asyncio.to_thread(
                ca.trusting().wrap_socket, plain, server_hostname="localhost"
            )
            stuck.sendall(PULL.replace(b"&wait", b"&max_bytes=16000000&max_messages=4&wait"))
            connections = api.context.http.connections
            async with asyncio.timeout(10):
                while connections.closed_early["slow-reader"] == 0:
                    assert await health(api, ca.trusting()) == 200
            assert connections.unsent.total_bytes == 0
            stuck.close()
        await clients_left(api)


async def test_a_stop_ends_handshakes_and_connections(ca: Certificates) -> None:
    async with running_api(**served_with(ca.issue("server")), shutdown_timeout_ms=100) as api:
        async with (
            raw_connection(api.server.port) as silent,
            raw_connection(api.server.port, ca.trusting()) as idle,
        ):
            async with asyncio.timeout(10):
                while api.server.connection_count < 2 or len(api.context.http.connections.open) < 1:
                    await asyncio.sleep(0.001)
                await api.server.stop()
                assert await silent.closed() == b""
                assert await idle.closed() == b""
        assert api.server.connection_count == 0
        assert not [t for t in asyncio.all_tasks() if t.get_name().startswith("tls")]


# -- files ---------------------------------------------------------------------------------


async def serial(api: Api, context: ssl.SSLContext) -> str:
    async with raw_connection(api.server.port, context) as one:
        return str(one.writer.get_extra_info("peercert")["serialNumber"])


def renew(file: Path, new: Path) -> None:
    """Replace a file atomically, so that no reader sees half of it."""
    shutil.copy(new, file.with_suffix(".renewed"))
    file.with_suffix(".renewed").replace(file)


async def changes(api: Api, context: ssl.SSLContext, before: str) -> str:
    async with asyncio.timeout(10):
        while (found := await serial(api, context)) == before:
            await asyncio.sleep(0.01)
    return found


async def test_a_renewed_certificate_is_used_from_the_next_connection_on(
    ca: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = ca.issue("server")
    context = ca.trusting()
    settings = served_with((certificate, key), tls_reload_interval_ms=10)
    async with running_api(**settings) as api, raw_connection(api.server.port, context) as old:
        first = await serial(api, context)
        new_certificate, new_key = ca.issue("new")
        # The two files never change at the same moment: in between they do not match.
        renew(certificate, new_certificate)
        async with asyncio.timeout(10):
            while "the old certificate stays" not in caplog.text:
                await asyncio.sleep(0.01)
        assert await serial(api, context) == first
        renew(key, new_key)
        await changes(api, context, first)
        await old.send(HEALTH)
        assert (await old.answer())[0] == 200
    assert caplog.text.count("the old certificate stays") == 1


async def test_a_removed_authority_is_not_trusted_any_more(
    ca: Certificates, tmp_path: Path
) -> None:
    """This holds although its client was accepted before: no session is resumed."""
    old, new = Certificates(tmp_path, "old"), Certificates(tmp_path, "new")
    trusted = tmp_path / "clients.pem"
    shutil.copy(old.ca_file, trusted)
    context = ca.trusting(old.issue("client", "orders"))
    settings = served_with(
        ca.issue("server"), tls_client_ca=str(trusted), tls_reload_interval_ms=10
    )
    async with running_api(**settings) as api:
        assert await health(api, context) == 200
        renew(trusted, new.ca_file)
        with pytest.raises((ssl.SSLError, ConnectionError, asyncio.IncompleteReadError)):
            async with asyncio.timeout(10):
                while await health(api, context) == 200:
                    await asyncio.sleep(0.01)
        assert await health(api, ca.trusting(new.issue("client", "orders"))) == 200


@pytest.mark.parametrize(
    ("break_it", "names"),
    [
        (lambda c, k: c.unlink(), "No such file"),
        (lambda c, k: k.unlink(), "No such file"),
        (lambda c, k: c.write_text("nonsense"), "tls_certificate"),
        (lambda c, k: k.write_bytes(c.read_bytes()), "tls_key"),
    ],
)
def test_files_that_cannot_be_used_are_named(
    ca: Certificates, break_it: Callable[[Path, Path], object], names: str
) -> None:
    certificate, key = ca.issue("server")
    break_it(certificate, key)
    with pytest.raises(TlsUnusable, match=names) as refused:
        TlsFiles(certificate, key).context()
    assert str(certificate) in str(refused.value)


def test_a_key_with_a_passphrase_is_refused_without_a_prompt(
    ca: Certificates, tmp_path: Path
) -> None:
    from cryptography.hazmat.primitives import serialization as pem

    certificate, key = ca.issue("server")
    loaded = pem.load_pem_private_key(key.read_bytes(), None)
    key.write_bytes(
        loaded.private_bytes(
            pem.Encoding.PEM,
            pem.PrivateFormat.PKCS8,
            pem.BestAvailableEncryption(b"secret"),
        )
    )
    with pytest.raises(TlsUnusable, match="without a passphrase"):
        TlsFiles(certificate, key).context()


def test_an_authority_that_cannot_be_read_is_named(ca: Certificates, tmp_path: Path) -> None:
    with pytest.raises(TlsUnusable, match=r"clients\.pem"):
        TlsFiles(*ca.issue("server"), client_ca=tmp_path / "clients.pem").context()


@pytest.mark.parametrize("name", ["tls_key", "tls_client_ca"])
def test_an_incomplete_tls_configuration_is_refused(name: str) -> None:
    given: dict[str, Any] = {name: "file.pem"}
    with pytest.raises(TlsUnusable, match=f"{name} is given without tls_certificate"):
        TlsFiles.of(replace(HttpConfig(), **given))


def test_one_file_may_contain_certificate_and_key(ca: Certificates, tmp_path: Path) -> None:
    certificate, key = ca.issue("server")
    both = tmp_path / "both.pem"
    both.write_bytes(certificate.read_bytes() + key.read_bytes())
    files = TlsFiles.of(HttpConfig(tls_certificate=str(both)))
    assert files is not None
    assert files.context().minimum_version is ssl.TLSVersion.TLSv1_2


# OpenSSL resumes sessions of TLS 1.2 that ended with a close message: all that a context keeps.
@pytest.mark.parametrize("version", [ssl.TLSVersion.TLSv1_2, ssl.TLSVersion.TLSv1_3])
async def test_no_session_is_resumed_after_a_check_of_the_files(
    ca: Certificates, version: ssl.TLSVersion, caplog: pytest.LogCaptureFixture
) -> None:
    context = ca.trusting()
    context.maximum_version = version

    def connect(session: ssl.SSLSession | None) -> tuple[bool | None, ssl.SSLSession | None]:
        with (
            socket.create_connection(("127.0.0.1", port), timeout=20) as plain,
            context.wrap_socket(plain, server_hostname="localhost", session=session) as one,
        ):
            one.sendall(HEALTH[:-2] + b"Connection: close\r\n\r\n")
            assert one.recv(100).startswith(b"HTTP/1.1 200")
            while one.recv(1000):
                pass
            return one.session_reused, one.session

    async with running_api(**served_with(ca.issue("server"))) as api:
        port = api.server.port
        _, session = await asyncio.to_thread(connect, None)
        if version is ssl.TLSVersion.TLSv1_3:
            assert (await asyncio.to_thread(connect, session))[0] is False
        await api.server.reload()
        assert (await asyncio.to_thread(connect, session))[0] is False
    assert "new connections use the certificate" not in caplog.text


async def test_files_that_cannot_be_read_are_logged_once_although_sessions_are_kept(
    ca: Certificates, caplog: pytest.LogCaptureFixture
) -> None:
    certificate, key = ca.issue("server")
    context = ca.trusting()
    context.maximum_version = ssl.TLSVersion.TLSv1_2
    async with running_api(**served_with((certificate, key))) as api:
        assert await health(api, context) == 200
        key.unlink()
        for _ in range(3):
            await api.server.reload()
        assert await health(api, context) == 200
    assert caplog.text.count("the old certificate stays") == 1


# O8: no metric said when the certificate expires.
@pytest.mark.parametrize(
    "not_after",
    [
        datetime(2027, 3, 4, 5, 6, 7, tzinfo=UTC),
        datetime(2049, 12, 31, 23, 59, 59, tzinfo=UTC),  # the last year with two digits
        datetime(2050, 1, 1, tzinfo=UTC),
        datetime(2123, 1, 1, tzinfo=UTC),
    ],
)
def test_the_expiry_time_of_a_certificate_is_read(tmp_path: Path, not_after: datetime) -> None:
    certificate, _ = Certificates(tmp_path).issue("server", not_after=not_after)
    pem = certificate.read_text()
    assert certificate_expires_s(pem) == not_after.timestamp()
    assert certificate_expires_s(f"some words before\n{pem}{pem}") == not_after.timestamp()


def test_text_without_a_certificate_has_no_expiry_time(tmp_path: Path) -> None:
    certificate, key = Certificates(tmp_path).issue("server")
    pem = certificate.read_text()
    assert certificate_expires_s("") is None
    assert certificate_expires_s(key.read_text()) is None
    for length in range(0, pem.find("-----END"), 7):
        cut = f"{pem[:length]}\n-----END CERTIFICATE-----\n"
        assert certificate_expires_s(cut) in {None, certificate_expires_s(pem)}
