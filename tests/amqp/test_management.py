"""Requests of the HTTP API to the node `/management`, on a real broker."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.nodes import management
from holdfast.amqp.nodes.management import MAX_REPLY_LINKS, MAX_REQUEST_BYTES, MAX_REQUESTS
from holdfast.amqp.wire.performatives import Properties, Target, encode_composite
from holdfast.amqp.wire.types import Described, Symbol, ULong, encode
from holdfast.broker import Broker
from tests.amqp.broker import amqp_broker
from tests.amqp.client import AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import AUTHENTICATION, port_of, token_of
from tests.support.storage.stored import until

PAIRED = {Symbol("paired"): True}
NO_BODY = encode(Described(ULong(0x77), None))


def request(method: str | None, path: str | None, body: Any = None, **properties: Any) -> bytes:
    """Return a request with a JSON body, or without a body."""
    fields = {"reply_to": "$me", "message_id": ULong(7), **properties}
    head = encode_composite(Properties(to=path, subject=method, **fields))
    return head + (NO_BODY if body is None else data_message(json.dumps(body).encode()))


class Manager:
    """A client with a pair of links to `/management`."""

    def __init__(self, client: AmqpClient, session: Any, sender: Any, receiver: Any) -> None:
        self.client, self.session = client, session
        self.sender, self.receiver = sender, receiver

    async def send(self, *messages: bytes) -> list[str]:
        """Send messages; return the names of their outcomes."""
        ids = await self.client.send(self.sender, *messages)
        found = await self.client.outcomes(ids)
        return [type(found[each]).__name__ for each in ids]

    async def reply(self) -> tuple[Properties, dict[str, Any], bytes]:
        """Return the next reply: properties, headers and body."""
        (delivery,) = await self.client.receive(1)
        assert delivery.is_settled
        sections = Sections(delivery.message)
        return sections.properties(), sections.application_properties(), sections.body_value()

    async def ask(self, *args: Any, **properties: Any) -> tuple[int, Any]:
        """Send a request; return the status and the body of its reply."""
        assert await self.send(request(*args, **properties)) == ["Accepted"]
        found, _, body = await self.reply()
        return int(found.subject or 0), json.loads(body)


@asynccontextmanager
async def manager(
    broker: Broker, credit: int = 100, target: str = "client", **sasl: Any
) -> AsyncIterator[Manager]:
    async with amqp_client(port_of(broker), **sasl) as client:
        session = await client.session()
        receiver = await client.receiver(
            session, "/management", "pair", credit, properties=PAIRED, target=Target(target)
        )
        sender = await client.sender(session, "/management", "pair", properties=PAIRED)
        yield Manager(client, session, sender, receiver)


@pytest.mark.parametrize("is_required", [False, True])
async def test_the_http_api_answers_requests(tmp_path: Path, is_required: bool) -> None:
    settings: dict[str, Any] = {}
    login: dict[str, Any] = {}
    if is_required:
        settings = {"access": AUTHENTICATION}
        _, token = token_of(tmp_path, "admin:orders")
        login = {"mechanism": "PLAIN", "response": b"\0me\0" + token.encode()}
    async with amqp_broker(tmp_path, **settings) as broker, manager(broker, **login) as manage:
        assert await manage.ask("GET", "/v1/topics") == (200, {"topics": [], "next": None})
        status, topic = await manage.ask("PUT", "/v1/topics/orders", {"queues": 2})
        assert (status, topic["topic"], topic["queue_count"]) == (201, "orders", 2)
        status, topics = await manage.ask("GET", "/v1/topics?limit=1")
        assert [each["topic"] for each in topics["topics"]] == ["orders"]
        status, problem = await manage.ask("GET", "/v1/topics/books")
        expected = (403, "forbidden") if is_required else (404, "unknown-topic")
        assert (status, problem["type"]) == (expected[0], f"/problems/{expected[1]}")
        status, problem = await manage.ask("GET", "/amqp")
        assert (status, problem["type"]) == (400, "/problems/malformed-request")
    lines = (tmp_path / "data" / "access" / "audit.log").read_text()
    assert '"act":"topic.create","object":"orders","outcome":"done"' in lines


async def test_a_reply_has_the_status_the_headers_and_the_correlation(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker, target="replies") as manage:
        await manage.ask("PUT", "/v1/topics/t", {})
        await manage.send(request("PATCH", "/v1/overview", reply_to="replies"))
        properties, headers, body = await manage.reply()
        assert (properties.subject, properties.content_type) == ("405", "application/problem+json")
        assert (properties.to, properties.correlation_id) == ("replies", 7)
        assert headers == {"Allow": "GET, HEAD"}
        assert json.loads(body)["type"] == "/problems/method-not-allowed"
        await manage.send(request("HEAD", "/v1/topics/t", correlation_id="own", reply_to="pair"))
        properties, _, body = await manage.reply()
        assert (properties.subject, properties.correlation_id, body) == ("200", "own", b"")


@pytest.mark.parametrize(
    ("method", "path"),
    [(None, "/v1/topics"), ("GET", None), ("get", "/v1/topics"), ("GET", "v1/topics"),
     ("GET", "/v1/topics HTTP/1.1\r\nX: y"), ("GET", "/v1/topics#top"), ("GET", "/t\u00f6pics")],
)  # fmt: skip
async def test_what_is_no_http_request_gets_a_problem(
    tmp_path: Path, method: str | None, path: str | None
) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker) as manage:
        status, problem = await manage.ask(method, path)
        assert (status, problem["type"]) == (400, "/problems/malformed-request")


async def test_a_request_without_a_way_back_is_rejected(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker) as manage:
        put: Any = ("PUT", "/v1/topics/t", {})
        outcomes = await manage.send(
            request(*put, reply_to=None),
            request(*put, reply_to="/temp/other"),
            request(*put) + b"torn",
            encode_composite(Properties(reply_to="$me")) + encode(Described(ULong(0x77), ULong(3))),
        )
        assert outcomes == ["Rejected"] * 4
        assert await manage.ask("GET", "/v1/topics") == (200, {"topics": [], "next": None})
        await manage.client.send(manage.sender, request(*put, reply_to=None), settled=True)
        assert (await manage.client.detached(manage.sender)).condition == "amqp:invalid-field"


async def test_requests_stop_at_the_credit_until_replies_are_taken(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker, credit=0) as manage:
        client = manage.client
        get = request("GET", "/v1/topics")
        assert await manage.send(*[get] * MAX_REQUESTS) == ["Accepted"] * MAX_REQUESTS
        manage.receiver.grant(0, echo=True)
        assert manage.sender.credit == 0
        manage.receiver.grant(MAX_REQUESTS + 1)
        assert len(await client.receive(MAX_REQUESTS)) == MAX_REQUESTS
        await client.until(lambda: manage.sender.credit == MAX_REQUESTS)
        await manage.send(get)
        assert len(await client.receive(1)) == 1


async def test_a_reply_that_is_not_taken_is_dropped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(management, "REPLY_WAIT_S", 0.05)
    async with amqp_broker(tmp_path) as broker, manager(broker, credit=0) as manage:
        await manage.send(request("GET", "/v1/topics", message_id="dropped"))
        await manage.client.until(lambda: manage.sender.credit == MAX_REQUESTS)
        monkeypatch.undo()
        manage.receiver.grant(10)
        await manage.send(request("GET", "/v1/topics", message_id="taken"))
        assert (await manage.reply())[0].correlation_id == "taken"


async def test_the_memory_of_waiting_replies_is_counted(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker, credit=0) as manage:
        assert broker._http is not None
        arriving = broker._http.connections.arriving
        await manage.send(request("GET", "/v1/topics"))
        await until(lambda: arriving.total_bytes > 0)
        manage.receiver.detach()
        manage.client.write()
        await until(lambda: arriving.total_bytes == 0)


async def test_a_request_that_waits_ends_with_its_reply_link(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker) as manage:
        await manage.ask("PUT", "/v1/topics/t", {})
        path = "/v1/topics/t/queues/0/messages?wait_ms=600000&offset=0"
        status, problem = await manage.ask("GET", path)
        assert status == 400, problem
        await manage.send(request("GET", path.replace("600000", "20000")))
        assert broker._hold is not None
        hold = broker._hold
        await until(lambda: hold.stats().held == 1)
        manage.receiver.detach()
        manage.client.write()
        await until(lambda: hold.stats().held == 0)


async def test_a_drain_waits_for_the_replies_that_are_ready(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker, credit=0) as manage:
        manage.receiver.grant(5, drain=True)
        await manage.client.until(lambda: not manage.receiver.is_draining)
        assert manage.receiver.credit == 0


async def test_a_large_reply_needs_several_frames(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path, max_frame_bytes=512) as broker, manager(broker) as manage:
        status, document = await manage.ask("GET", "/openapi.json")
        assert status == 200
        assert "/v1/topics" in document["paths"]


async def test_the_limits_of_the_links(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, manager(broker) as manage:
        client, session = manage.client, manage.session
        for number in range(MAX_REPLY_LINKS - 1):
            await client.receiver(session, "/management", f"more-{number}")
        refused = await client.receiver(session, "/management", "too many")
        error = await client.detached(refused)
        assert error.condition == "amqp:resource-limit-exceeded"
        assert manage.sender.max_message_bytes == MAX_REQUEST_BYTES
