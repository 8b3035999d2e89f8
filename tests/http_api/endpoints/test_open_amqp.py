"""Who may open a WebSocket for AMQP, and with which request."""

from pathlib import Path
from typing import Any

import pytest

from holdfast.http_api.access.audit import AuditFile, AuditLog
from holdfast.http_api.access.grants import ANONYMOUS, Principal
from holdfast.http_api.access.hosts import AllowedHosts
from holdfast.http_api.routing.context import BrokerStatus
from tests.support.clients.certificates import Certificates
from tests.support.clients.raw_http import raw_connection
from tests.support.clients.tokens import access_of, make_token
from tests.support.clients.web_sockets import Echo, handshake, serving_websockets
from tests.support.servers.api_server import Api


async def ask(api: Api, path: str = "/amqp", **headers: Any) -> int:
    """Return the status of the reply to a handshake."""
    async with raw_connection(api.server.port) as connection:
        await connection.send(handshake(path, **headers))
        status, _, _ = await connection.answer()
        return status


def principals(served: list[Echo]) -> list[Principal | None]:
    return [each.principal for each in served]


async def test_only_the_handshake_of_amqp_opens_a_websocket() -> None:
    missing = dict.fromkeys(("Upgrade", "Connection", "Sec_WebSocket_Key", "Sec_WebSocket_Version"))
    refused: list[dict[str, Any]] = [
        *({name: None} for name in missing),
        {"Sec_WebSocket_Protocol": None},
        {"Sec_WebSocket_Protocol": "mqtt, AMQPWSB10"},
        {"Sec_WebSocket_Version": "8"},
        {"Sec_WebSocket_Key": "short"},
        {"Upgrade": "h2c"},
        {"line": "GET {} HTTP/1.0"},
    ]
    async with serving_websockets() as (api, served):
        for headers in refused:
            async with raw_connection(api.server.port) as connection:
                await connection.send(handshake(**headers))
                status, fields, _ = await connection.answer()
                assert (status, fields["sec-websocket-version"]) == (400, "13"), headers
        assert await ask(api, line="POST {} HTTP/1.1", Content_Length="0") == 405
        assert (await api.get("/amqp")).problem == "malformed-request"
        assert (await api.ask("HEAD", "/amqp")).status == 400
        assert served == []
        for offered in ("amqp", "mqtt, amqp", "amqp,x"):
            async with raw_connection(api.server.port) as connection:
                await connection.send(handshake(Sec_WebSocket_Protocol=offered))
                status, fields, _ = await connection.answer()
                assert (status, fields["sec-websocket-protocol"]) == (101, "amqp")


async def test_the_root_opens_one_too() -> None:
    async with serving_websockets() as (api, served):
        assert await ask(api, "/") == 101
        assert await ask(api, "/", Sec_WebSocket_Protocol=None) == 200  # text
        assert await ask(api, "/v1") == 404
        assert len(served) == 1


async def test_there_is_nothing_if_it_is_off_or_the_broker_is_not_ready() -> None:
    async with serving_websockets() as (api, _):
        for phase in ("recovering", "draining"):
            api.status = BrokerStatus(phase)
            assert await ask(api) == 503
        api.status = BrokerStatus("ready")
        api.context.http.amqp = None
        assert (await ask(api), await ask(api, "/")) == (404, 404)


async def test_a_token_authenticates_the_caller(tmp_path: Path) -> None:
    good, text = make_token("publish:=orders")
    old, old_text = make_token("all", expires_ms=1)
    async with serving_websockets() as (api, served):
        assert await ask(api) == 101
        api.context.http.access = access_of(good, old)
        audit = AuditLog(AuditFile(tmp_path / "audit", 1 << 20, 2), max_denied_per_second=100)
        api.context.http.audit = audit
        audit.start()
        for wrong in (f"Bearer {old_text}", f"Bearer {text}x", f"Basic {text}", "Bearer"):
            assert await ask(api, Authorization=wrong) == 401
        audit.stop()
        assert (tmp_path / "audit").read_text().count("GET /amqp") == 4
        assert await ask(api, Authorization=f"Bearer {text}") == 101
        assert await ask(api) == 101  # SASL will authenticate it
        assert await ask(api, "/", Authorization="Bearer x") == 401
        assert principals(served) == [ANONYMOUS, good.principal, None]
        assert {each.peer.remote for each in served} == {"127.0.0.1"}


#: Origin of a page -> whether it is admitted: without authentication, with a token or SASL, and by
#: a certificate. `http_api.cors_origins` lists https://console.example, and * in the second table.
ORIGINS = {
    None: (True, True, True),
    "http://localhost:3000": (True, True, True),
    "https://console.example": (True, True, True),
    "http://broker.example": (False, True, True),  # the host of the request
    "https://evil.example": (False, False, False),
    "null": (False, False, False),
}


@pytest.mark.parametrize("is_any_listed", [False, True])
async def test_pages_of_other_origins_are_refused(is_any_listed: bool, tmp_path: Path) -> None:
    token, text = make_token("all")
    known, _ = make_token("all", certificate="reader.example")
    ca = Certificates(tmp_path)
    certificate, key = ca.issue("broker", "localhost")
    files = {"tls_certificate": str(certificate), "tls_key": str(key),
             "tls_client_ca": str(ca.ca_file), "tls_client_certificates": "optional"}  # fmt: skip
    listed = "https://console.example" + (", *" if is_any_listed else "")
    async with (
        serving_websockets(cors_origins=listed) as (plain, _),
        serving_websockets(cors_origins=listed, **files) as (encrypted, served),
    ):
        encrypted.context.http.access = access_of(token, known)
        for origin, admitted in ORIGINS.items():
            headers: dict[str, Any] = {"Origin": origin, "Host": "broker.example"}
            expected = [101 if each else 403 for each in admitted]
            if is_any_listed:
                expected[1] = 101
            found = [await ask(plain, **headers)]
            plain.context.http.access, before = access_of(token), plain.context.http.access
            found.append(await ask(plain, Authorization=f"Bearer {text}", **headers))
            assert await ask(plain, **headers) == found[1]
            plain.context.http.access = before
            context = ca.trusting(ca.issue("reader", "reader.example"))
            async with raw_connection(encrypted.server.port, context) as connection:
                await connection.send(handshake(**headers))
                found.append((await connection.answer())[0])
            assert found == expected, origin
        assert set(principals(served)) == {known.principal}


async def test_a_page_of_another_site_is_refused_by_its_fetch_metadata() -> None:
    async with serving_websockets() as (api, _):
        assert await ask(api, Sec_Fetch_Site="cross-site") == 403


async def test_only_allowed_host_names_open_a_websocket() -> None:
    async with serving_websockets() as (api, served):
        api.context.http.access.hosts = AllowedHosts(["broker.example"])
        for host, status in (
            ("evil.example", 421),
            ("broker.example:80", 101),
            ("127.0.0.1", 101),
            ("192.0.2.1", 421),
        ):
            assert await ask(api, Host=host) == status
        assert len(served) == 2
