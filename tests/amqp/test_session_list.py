"""The sessions and links that GET /v1/connections/sessions lists, of clients of a real broker."""

from pathlib import Path
from typing import Any

import aiohttp

from holdfast.amqp import session_list
from holdfast.broker import Broker
from tests.amqp.broker import amqp_broker
from tests.amqp.client import AmqpClient, amqp_client, data_message
from tests.amqp.test_listener import AUTHENTICATION, port_of, token_of


async def asked(broker: Broker, query: str = "", token: str = "") -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    url = f"{broker.url}/v1/connections/sessions{query}"
    async with aiohttp.ClientSession(headers=headers) as session, session.get(url) as reply:
        return reply.status, await reply.json()


async def listed(broker: Broker, query: str = "") -> list[Any]:
    status, found = await asked(broker, query)
    assert status == 200
    return list(found["sessions"])


async def test_a_session_is_listed_with_the_credit_and_the_window_of_its_links(
    tmp_path: Path,
) -> None:
    async with (
        amqp_broker(tmp_path, incoming_window=500) as broker,
        amqp_client(port_of(broker)) as client,
    ):
        session = await client.session()
        sender = await client.sender(session, "orders")
        await client.outcomes(await client.send(sender, *[data_message(b"a")] * 3))
        receiver = await client.receiver(session, "queue://orders", credit=10)
        await client.receive(3)
        await client.session()  # a round trip: the broker has the client's last flow
        first, second = await listed(broker)
        links = {link.pop("role"): link for link in first.pop("links")}
        assert first == {
            "connection": second["connection"],
            "client": "127.0.0.1",
            "container_id": "test",
            "channel": session.channel,
            "window_in": first["window_in"],
            "window_out": session.windows.incoming_left,
            "unsettled_in": 0,
            "unsettled_out": 3,
            "link_count": 2,
        }
        assert first["window_in"] == session.windows.outgoing_room
        assert 0 < first["window_in"] <= 500
        assert links["sender"] == {
            "name": sender.name,
            "address": "orders",
            "attached": True,
            "credit": sender.credit,
            "available": links["sender"]["available"],
            "draining": False,
        }
        assert (links["receiver"]["name"], links["receiver"]["credit"]) == (receiver.name, 7)
        assert links["receiver"]["address"] == "queue://orders"
        assert (second["links"], second["link_count"], second["unsettled_out"]) == ([], 0, 0)


async def make_sessions(client: AmqpClient, count: int) -> None:
    for _ in range(count):
        await client.session()


async def test_sessions_are_listed_page_by_page_and_by_client(tmp_path: Path) -> None:
    async with (
        amqp_broker(tmp_path) as broker,
        amqp_client(port_of(broker)) as one,
        amqp_client(port_of(broker)) as other,
    ):
        await make_sessions(one, 3)
        await make_sessions(other, 2)
        every = await listed(broker)
        places = [(each["connection"], each["channel"]) for each in every]
        assert len(set(places)) == 5
        assert places == sorted(places)
        for limit in (1, 2, 3, 4, 5):
            found, after = [], ""
            while True:
                _, page = await asked(broker, f"?limit={limit}{after}")
                assert len(page["sessions"]) <= limit
                found += page["sessions"]
                if page["next"] is None:
                    break
                after = f"&after={page['next']}"
            assert found == every, limit
        assert await listed(broker, "?client=127.0.0.1") == every
        assert await listed(broker, "?client=10.0.0.7") == []
        for wrong in ("1", "1:", ":1", "1:1:1", "a:b", "-1:1"):
            status, problem = await asked(broker, f"?after={wrong}")
            assert (status, problem["parameter"]) == (400, "after"), wrong
        await one.session()
        other.transport.abort()
        await other.lost()
        while {each["connection"] for each in await listed(broker)} != {every[0]["connection"]}:
            pass  # each request waits for the broker, which learns of the lost connection soon


async def test_a_page_has_a_limited_number_of_links(tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setattr(session_list, "MAX_LINKS", 3)
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        for count in (1, 2, 1, 5):
            session = await client.session()
            for number in range(count):
                await client.sender(session, "orders", f"{session.channel} {number}")
        sizes, after = [], ""
        while True:
            _, page = await asked(broker, after)
            sizes.append([(each["link_count"], len(each["links"])) for each in page["sessions"]])
            if page["next"] is None:
                break
            after = f"?after={page['next']}"
        assert sizes == [[(1, 1), (2, 2)], [(1, 1)], [(5, 3)]]


async def test_an_address_is_cut(tmp_path: Path) -> None:
    async with amqp_broker(tmp_path) as broker, amqp_client(port_of(broker)) as client:
        await client.sender(await client.session(), "x" * 1_000)
        ((link,),) = [each["links"] for each in await listed(broker)]
        assert link["address"] == "x" * 256


async def test_the_list_needs_the_grant_operate(tmp_path: Path) -> None:
    (_, consumer), (_, operator) = [token_of(tmp_path, each) for each in ("consume:*:*", "operate")]
    async with amqp_broker(tmp_path, access=AUTHENTICATION) as broker:
        assert (await asked(broker))[0] == 401
        status, problem = await asked(broker, token=consumer)
        assert (status, problem["type"]) == (403, "/problems/forbidden")
        assert (await asked(broker, token=operator))[0] == 200
