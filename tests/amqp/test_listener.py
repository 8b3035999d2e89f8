"""AMQP connections on real sockets: handshakes, limits, deadlines, names, a clean stop."""

import asyncio
import socket
import time
import tracemalloc
from contextlib import AsyncExitStack, suppress
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from holdfast import __version__
from holdfast.amqp.engine.connection import ConnectionSettings
from holdfast.amqp.engine.events import Ended, Opened, SaslEnded
from holdfast.amqp.listener import CannotListen
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.frames import AMQP_HEADER, EMPTY_FRAME, SASL_FRAME, SASL_HEADER, frame
from holdfast.amqp.wire.performatives import Begin, Open, SaslInit, Transfer, encode_composite
from holdfast.broker import Broker
from holdfast.http_api.access.grants import parse_grants
from holdfast.http_api.access.service import RemoteWithoutAccess, RemoteWithoutTls
from holdfast.http_api.access.token_file import TokenFile, create_token
from holdfast.http_api.wire.listener import Listener
from tests.amqp.broker import amqp_broker, amqp_config, figure
from tests.amqp.client import TIMEOUT_S, amqp_client, data_message
from tests.support.clients.certificates import Certificates

AUTHENTICATION = {"authentication": True, "token_check_ms": 20}


def port_of(broker: Broker) -> int:
    assert broker.amqp_port is not None
    return broker.amqp_port


def token_of(folder: Path, *grants: str, certificate: str = "") -> tuple[str, str]:
    """Return (id, text) of a new token, or of an entry for a client certificate."""
    token, text = create_token(
        TokenFile(folder / "data"),
        name="",
        grants=[grant for each in grants for grant in parse_grants(each)],
        now_ms=time.time_ns() // 1_000_000,
        certificate=certificate,
    )
    return token.token_id, text


async def wait_for_figure(broker: Broker, name: str, value: float) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while await figure(broker, name) != value:
            await asyncio.sleep(0.02)


async def exchange(port: int, data: bytes) -> bytes:
    """Send bytes on a new connection; return all that arrives until the broker closes it."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(data)
        async with asyncio.timeout(TIMEOUT_S):
            return await reader.read()
    finally:
        writer.close()


# -- the handshake ---------------------------------------------------------------------------


async def test_the_broker_says_what_it_is(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker), opens=False) as client:
        remote = (await client.next(Opened)).open
        assert client.mechanisms == ("ANONYMOUS", "PLAIN")
        assert remote.properties
        assert remote.properties["product"] == "Holdfast"
        assert remote.properties["version"] == __version__
        assert set(remote.offered_capabilities) == {
            "ANONYMOUS-RELAY",
            "sole-connection-for-container",
            "SHARED-SUBS",
        }
        assert remote.max_frame_size == 65_536
        assert remote.idle_time_out == 30_000


@pytest.mark.parametrize("header", [b"AMQP\x00\x00\x09\x01", b"GET / HT", b"AMQP\x02\x01\x00\x00"])
async def test_an_unknown_protocol_header_is_answered_with_ours(
    tmp_path: Path, header: bytes
) -> None:
    async with amqp_broker(tmp_path) as broker:
        assert await exchange(port_of(broker), header) == SASL_HEADER


async def test_without_authentication_clients_may_leave_out_sasl(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), ConnectionSettings("c", requires_sasl=False)),
        amqp_client(port_of(broker)),
    ):
        pass


@pytest.mark.parametrize("settings", [{"sasl_required": True}, {"access": AUTHENTICATION}])
async def test_sasl_can_be_required(tmp_path: Path, settings: dict[str, Any]) -> None:
    async with amqp_broker(tmp_path, **settings) as broker:
        assert await exchange(port_of(broker), AMQP_HEADER) == SASL_HEADER


@pytest.mark.parametrize("mechanism", ["PLAIN", "ANONYMOUS"])
async def test_without_authentication_any_credentials_are_accepted(
    tmp_path: Path, mechanism: str
) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), mechanism=mechanism, response=b"\x00guest\x00guest"),
    ):
        pass


async def test_a_token_admits_a_client_by_every_mechanism(tmp_path: Path) -> None:
    token = token_of(tmp_path, "all")[1].encode()
    responses = {
        "PLAIN": b"\x00any\x00" + token,
        "XOAUTH2": b"user=any\x01auth=Bearer " + token + b"\x01\x01",
        "OAUTHBEARER": b"n,a=any,\x01host=h\x01auth=Bearer " + token + b"\x01\x01",
    }
    async with amqp_broker(tmp_path, access=AUTHENTICATION) as broker:
        for mechanism, response in responses.items():
            sasl: dict[str, Any] = {"mechanism": mechanism, "response": response}
            async with amqp_client(port_of(broker), **sasl) as client:
                assert client.mechanisms == ("PLAIN", "XOAUTH2", "OAUTHBEARER")
            sasl = {"mechanism": mechanism, "response": None, "later_response": response}
            async with amqp_client(port_of(broker), **sasl):
                pass


@pytest.mark.parametrize(
    ("mechanism", "response"),
    [
        ("PLAIN", b"\x00any\x00wrong"),
        ("PLAIN", b"nonsense"),
        ("ANONYMOUS", b""),
        ("EXTERNAL", b""),
        ("SCRAM-SHA-256", b"n,,n=user,r=fyko"),
    ],
)
async def test_a_client_without_a_valid_token_is_refused(
    tmp_path: Path, mechanism: str, response: bytes
) -> None:
    token = token_of(tmp_path, "all")[1]
    sasl: dict[str, Any] = {"mechanism": mechanism, "response": response}
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        amqp_client(port_of(broker), opens=False, **sasl) as client,
    ):
        assert (await client.next(SaslEnded)).code == 1
        client.transport.close()
        await client.lost()
        assert await figure(broker, "sasl_failures_total", token) == 1


async def test_tls_and_a_client_certificate_admit_a_client(tmp_path: Path) -> None:
    own, others = Certificates(tmp_path), Certificates(tmp_path, "clients")
    certificate, key = own.issue("server")
    pair = others.issue("client", "client@example", common_name="machine-7")
    token_of(tmp_path, "all", certificate="machine-7")
    http = {
        "tls_certificate": str(certificate),
        "tls_key": str(key),
        "tls_client_ca": str(others.ca_file),
    }
    async with amqp_broker(tmp_path, http=http, access=AUTHENTICATION) as broker:
        assert broker.amqp_tls_port
        async with amqp_client(
            broker.amqp_tls_port, tls=own.trusting(pair), mechanism="EXTERNAL"
        ) as client:
            assert client.mechanisms[0] == "EXTERNAL"


# -- what the broker refuses to listen on ------------------------------------------------------


@pytest.mark.parametrize(
    ("access", "error"),
    [
        ({}, RemoteWithoutAccess),
        ({"authentication": True}, RemoteWithoutTls),
    ],
)
async def test_a_remote_address_needs_authentication_and_tls(
    tmp_path: Path, access: dict[str, Any], error: type[Exception]
) -> None:
    broker = Broker(amqp_config(tmp_path, host="0.0.0.0", access=access))
    broker.any_amqp_port = True
    with pytest.raises(error):
        await broker.start()


async def test_a_port_that_is_in_use_is_named(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker:
        second = Broker(amqp_config(tmp_path / "second", port=port_of(broker)))
        with pytest.raises(CannotListen, match=f"port {port_of(broker)}: .*amqp.port"):
            await second.start()


# -- deadlines ---------------------------------------------------------------------------------


@pytest.mark.parametrize("sent", [b"", SASL_HEADER[:3], SASL_HEADER])
async def test_a_slow_handshake_is_cut_off(tmp_path: Path, sent: bytes) -> None:
    async with amqp_broker(tmp_path, handshake_timeout_ms=50) as broker:
        await exchange(port_of(broker), sent)
        assert await figure(broker, "closed_early_total") == 1


async def test_an_idle_connection_is_closed(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, idle_timeout_ms=3_000) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        error = await client.closed()
        assert error.condition == "amqp:resource-limit-exceeded"
        assert error.description == "local-idle-timeout expired"


async def test_empty_frames_of_the_client_keep_its_connection_open(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, idle_timeout_ms=4_000) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        for _ in range(12):
            client.transport.write(EMPTY_FRAME)
            await asyncio.sleep(0.5)
        await client.session()
        assert not client.is_lost


async def test_the_broker_keeps_a_connection_alive_with_empty_frames(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), ConnectionSettings("c", idle_timeout_ms=200)) as client,
    ):
        before = client.received_bytes
        expected = before + 5 * len(EMPTY_FRAME)
        await client.until(lambda: client.received_bytes >= expected, "empty frames")


@pytest.mark.parametrize(("timeout_ms", "is_refused"), [(99, True), (100, False)])
async def test_a_very_short_idle_timeout_of_the_client_is_refused(
    tmp_path: Path, timeout_ms: int, is_refused: bool
) -> None:
    settings = ConnectionSettings("c", idle_timeout_ms=timeout_ms)
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), settings, opens=False) as client,
    ):
        await client.next(Opened)
        if is_refused:
            assert (await client.closed()).condition == "amqp:not-allowed"
        else:
            await client.session()


# -- limits ------------------------------------------------------------------------------------


@pytest.mark.parametrize("limit", ["max_connections", "max_connections_per_client"])
async def test_the_number_of_connections_is_limited(tmp_path: Path, limit: str) -> None:
    async with amqp_broker(tmp_path, **{limit: 2}) as broker, AsyncExitStack() as stack:
        port = port_of(broker)
        clients = [await stack.enter_async_context(amqp_client(port)) for _ in range(2)]
        with suppress(ConnectionError):  # the broker resets the connection
            assert await exchange(port, SASL_HEADER) == b""
        clients[0].transport.abort()
        await wait_for_figure(broker, "connections", 1)
        await stack.enter_async_context(amqp_client(port))
        assert await figure(broker, "refused_total") == 1


@pytest.mark.parametrize("limit", ["max_total_sessions", "max_client_sessions"])
async def test_the_number_of_sessions_is_limited(tmp_path: Path, limit: str) -> None:
    # T6
    async with amqp_broker(tmp_path, **{limit: 2}) as broker:
        async with amqp_client(port_of(broker)) as client:
            first = await client.session()
            async with amqp_client(port_of(broker), ConnectionSettings("other")) as other:
                await other.session()
                other.engine.begin()
                ended = await other.next(Ended)
                assert ended.error
                assert ended.error.condition == "amqp:resource-limit-exceeded"
                first.end()
                client.write()
                await wait_for_figure(broker, "sessions", 1)
                await client.session()
        await wait_for_figure(broker, "sessions", 0)


async def test_a_thousand_sessions_of_a_connection_deliver_with_bounded_memory(
    tmp_path: Path,
) -> None:
    # T6: the memory is that of both ends, which run in this process
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), opens=False) as client,
    ):
        assert (await client.next(Opened)).open.channel_max == 65_534
        publisher = await client.sender(await client.session(), "/topics/news")
        for number in range(1_000):
            if number == 900:
                tracemalloc.start()
            name = f"link {number}"
            await client.receiver(await client.session(), "/topics/news", name, credit=1)
        used_bytes, _ = tracemalloc.get_traced_memory()
        tracemalloc.stop()
        assert used_bytes < 100 * 32 * 1024
        await wait_for_figure(broker, "sessions", 1_001)
        await client.send(publisher, data_message(b"to all"))
        found = await client.receive(1_000)
        assert len({id(each.link) for each in found}) == 1_000
        assert {Sections(each.message).body_value() for each in found} == {b"to all"}


async def test_the_65536th_session_of_a_connection_is_refused(tmp_path: Path) -> None:
    # T6: channels number the sessions from 0
    async with amqp_broker(tmp_path) as broker:
        begins = [(channel, Begin(None, 0, 9, 9)) for channel in (0, 65_534, 65_535)]
        answer = await exchange(port_of(broker), raw_frames([(0, Open("c")), *begins]))
        assert b"framing-error" in answer
        assert b"65535" in answer


async def test_a_connection_that_ignores_the_limit_of_sessions_is_closed(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, max_total_sessions=1) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        for _ in range(40):
            client.engine.begin()
        assert (await client.closed()).condition == "amqp:resource-limit-exceeded"


async def test_a_channel_above_the_highest_is_refused(tmp_path: Path) -> None:
    # T6
    async with amqp_broker(tmp_path, max_sessions=2) as broker:
        async with amqp_client(port_of(broker), opens=False) as client:
            assert (await client.next(Opened)).open.channel_max == 1
            for _ in range(2):
                await client.session()
        frames = [(0, Open("c")), (0, Begin(None, 0, 9, 9)), (2, Begin(None, 0, 9, 9))]
        assert b"framing-error" in await exchange(port_of(broker), raw_frames(frames))


def raw_frames(frames: list[tuple[int, Any]]) -> bytes:
    """Return frames, each with its channel, after the handshake of SASL."""
    data = SASL_HEADER + frame(0, encode_composite(SaslInit("ANONYMOUS", b"", None)), SASL_FRAME)
    data += AMQP_HEADER
    data += b"".join(frame(channel, encode_composite(each)) for channel, each in frames)
    return data


@pytest.mark.parametrize("above", [-1, 0, 1])
async def test_unfinished_deliveries_of_a_connection_are_limited(
    tmp_path: Path, above: int
) -> None:
    limit = 64 * 1024
    async with (
        amqp_broker(tmp_path, max_incoming_bytes=limit) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        link = await client.sender(session, "orders")
        await client.until(lambda: link.sendable, "credit")
        transfer = encode_composite(Transfer(link.handle, 0, b"t", 0, more=True))
        for size in (limit // 2, limit // 2 + above):
            client.transport.write(frame(session.channel, transfer + bytes(size)))
        if above > 0:
            assert (await client.closed()).condition == "amqp:resource-limit-exceeded"
        else:
            await client.session()


# -- names -------------------------------------------------------------------------------------


async def test_a_container_may_have_one_connection_only(tmp_path: Path) -> None:
    settings = ConnectionSettings("c", desired_capabilities=("sole-connection-for-container",))
    async with amqp_broker(tmp_path) as broker:
        async with (
            amqp_client(port_of(broker), settings),
            amqp_client(port_of(broker), settings, opens=False) as second,
        ):
            opened = await second.next(Opened)
            assert opened.open.properties
            assert opened.open.properties["amqp:connection-establishment-failed"] is True
            error = await second.closed()
            assert error.condition == "amqp:invalid-field"
            assert error.info == {"invalid-field": "container-id"}
        await wait_for_figure(broker, "connections", 0)
        async with amqp_client(port_of(broker), settings):
            pass


@pytest.mark.parametrize(("size", "is_refused"), [(1024, False), (1025, True)])
async def test_a_very_long_container_id_is_refused(
    tmp_path: Path, size: int, is_refused: bool
) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker), ConnectionSettings("c" * size), opens=False) as client,
    ):
        await client.next(Opened)
        if is_refused:
            assert (await client.closed()).condition == "amqp:invalid-field"
        else:
            await client.session()


async def test_a_link_that_is_attached_again_is_stolen(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker)) as first,
        amqp_client(port_of(broker)) as second,
        amqp_client(port_of(broker), ConnectionSettings("another")) as third,
    ):
        links = [
            await client.sender(await client.session(), "orders", "mine")
            for client in (first, third, second)
        ]
        assert (await first.detached(links[0])).condition == "amqp:link:stolen"
        ids = await third.send(links[1], b"")
        await third.outcomes(ids)


# -- waiting until the broker serves -------------------------------------------------------------


async def test_connections_wait_until_the_listener_serves() -> None:
    accepted: list[bytes] = []

    class Recorder(asyncio.Protocol):
        def data_received(self, data: bytes) -> None:
            accepted.append(data)

    listener = await Listener.bind("127.0.0.1", 0, Recorder)
    _, writer = await asyncio.open_connection(*listener.address)
    writer.write(b"early")
    await writer.drain()
    assert not accepted
    await listener.serve()
    async with asyncio.timeout(TIMEOUT_S):
        while not accepted:
            await asyncio.sleep(0.01)
    assert accepted == [b"early"]
    writer.close()
    listener.close()
    await listener.wait_closed()
    with pytest.raises(OSError, match=r".*"):
        socket.create_connection(listener.address, timeout=TIMEOUT_S)


# -- WebSockets ----------------------------------------------------------------------------------


async def test_a_websocket_carries_amqp_with_the_principal_of_its_handshake(
    tmp_path: Path,
) -> None:
    token = token_of(tmp_path, "all")[1]
    external = frame(0, encode_composite(SaslInit("EXTERNAL", b"", None)), SASL_FRAME)
    data = SASL_HEADER + external + AMQP_HEADER + frame(0, encode_composite(Open("c")))
    async with (
        amqp_broker(tmp_path, access=AUTHENTICATION) as broker,
        aiohttp.ClientSession(headers={"Authorization": f"Bearer {token}"}) as session,
        session.ws_connect(f"{broker.url}/amqp", protocols=["amqp"]) as web_socket,
    ):
        await web_socket.send_bytes(data)
        received = b""
        while b"Holdfast" not in received:
            received += await web_socket.receive_bytes(timeout=TIMEOUT_S)
        assert await figure(broker, "connections", token) == 1
    assert b"EXTERNAL" in received


async def test_websockets_may_be_off(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path, websocket=False) as broker,
        aiohttp.ClientSession() as session,
    ):
        with pytest.raises(aiohttp.WSServerHandshakeError):
            await session.ws_connect(f"{broker.url}/amqp", protocols=["amqp"])
