"""The API over the real broker in one process: log, index and disk."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import aiohttp
import msgpack
import pytest

from holdfast.broker import Broker
from holdfast.commitlog.format.batch import iter_batches, queue_for_key
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.config import load_config

BATCH = "application/vnd.holdfast.batch"


@asynccontextmanager
async def serving(
    data_dir: Path, eager_tail: str = "true", **commitlog: int
) -> AsyncIterator[aiohttp.ClientSession]:
    flags = {
        "data_dir": str(data_dir),
        "http_api.port": "0",
        "commitlog.segment_bytes": "1MiB",
        "consumequeue.eager_tail": eager_tail,
        **{f"commitlog.{name}": str(value) for name, value in commitlog.items()},
    }
    async with (
        Broker(load_config(file=None, environ={}, flags=flags)) as broker,
        aiohttp.ClientSession(broker.url) as session,
    ):
        yield session


@pytest.fixture(params=["true", "false"], ids=["eager tail", "reput thread"])
async def session(
    tmp_path: Path, request: pytest.FixtureRequest
) -> AsyncIterator[aiohttp.ClientSession]:
    async with serving(tmp_path / "data", request.param) as session:
        yield session


async def get(session: aiohttp.ClientSession, path: str) -> Any:
    async with session.get(path) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def post(session: aiohttp.ClientSession, path: str, body: object) -> Any:
    async with session.post(path, json=body) as response:
        assert response.status == 200, await response.text()
        return await response.json()


async def test_all_formats_of_publish_and_pull_agree(session: aiohttp.ClientSession) -> None:
    await session.put("/v1/topics/t", json={"queues": 1})
    path = "/v1/topics/t/messages"
    bodies = [b"json", b"line", b"\x00packed\xff", b"batch", b"\xffraw"]
    await session.post(path, json={"messages": [{"body": "json"}]})
    await session.post(
        path, data=b'{"body":"line"}\n', headers={"Content-Type": "application/x-ndjson"}
    )
    await session.post(
        path,
        data=msgpack.packb({"messages": [{"body": bodies[2]}]}),
        headers={"Content-Type": "application/msgpack"},
    )
    block = encode_batch([b"batch"], queue_id=0, born_timestamp_us=1)
    await session.post(path, data=block, headers={"Content-Type": BATCH})
    await session.post(path, data=bodies[4])

    pull = "/v1/topics/t/queues/0/messages?offset=0"
    async with session.get(pull, headers={"Accept": "application/msgpack"}) as response:
        packed = msgpack.unpackb(await response.read())
        assert [message["body"] for message in packed["messages"]] == bodies
    async with session.get(pull, headers={"Accept": BATCH}) as response:
        found = [batch.body(0) for batch in iter_batches(await response.read())]
        assert found == bodies
        assert response.headers["Holdfast-Next-Offset"] == "5"


async def test_a_restart_keeps_everything(tmp_path: Path) -> None:
    names = [f"key-{number}" for number in range(50)]
    messages = [{"body": name, "key": name, "tag": name[-1]} for name in names]
    async with serving(tmp_path / "data") as session:
        await post(session, "/v1/topics/t/messages", {"messages": messages})
        offsets = {"offsets": {"0": 3}}
        async with session.put("/v1/groups/g/topics/t/offsets", json=offsets) as response:
            assert response.status == 200, await response.text()
        paths = [
            "/v1/topics/t",
            "/v1/topics",
            "/v1/topics/t/messages?offsets=0:0,1:0,2:0,3:0&max_messages=1000",
            "/v1/topics/t/queues/0/messages?from=earliest&tag=1,2",
            "/v1/topics/t/messages/search?key=key-7",
            "/v1/topics/t/splits",
            "/v1/topics/t/queues/2/offset?timestamp_ms=1",
            "/v1/groups/g/topics/t/offsets",
        ]
        before = [await get(session, path) for path in paths]
        found = before[2]["messages"]
        assert sorted(each["key"] for each in found) == sorted(names)
        assert all(each["queue"] == queue_for_key(each["key"], 4) for each in found)
        one = found[9]
        assert await get(session, f"/v1/messages/{one['message_id']}") == one
    async with serving(tmp_path / "data") as session:
        assert [await get(session, path) for path in paths] == before


async def test_a_retry_of_an_idempotent_request_is_stored_once(
    session: aiohttp.ClientSession,
) -> None:
    path = "/v1/topics/t/messages"
    body = {"messages": [{"body": "a"}, {"body": "b", "key": "k"}, {"body": "c", "queue": 3}]}
    producer = {"Holdfast-Producer-Id": "meter", "Holdfast-Producer-Epoch": "0"}

    async def send(sequence: int) -> tuple[int, Any]:
        headers = {**producer, "Holdfast-Producer-Sequence": str(sequence)}
        async with session.post(path, json=body, headers=headers) as response:
            return response.status, await response.json()

    first, again, following = await send(0), await send(0), await send(1)
    assert first[0] == again[0] == following[0] == 200
    assert again[1]["results"] == first[1]["results"]
    assert (again[1].get("duplicate"), following[1].get("duplicate")) == (True, None)
    status, gap = await send(5)
    assert (status, gap["type"], gap["expected"]) == (409, "/problems/sequence-gap", 2)
    kept = await get(session, "/v1/topics/t")
    assert sum(queue["max_offset"] for queue in kept["queues"]) == 6


@pytest.mark.parametrize("body_bytes", [1, 100_000])  # decoded in the event loop, or in a thread
async def test_a_retry_after_queues_were_added_is_stored_once(
    tmp_path: Path, body_bytes: int
) -> None:
    producer = {"Holdfast-Producer-Id": "meter", "Holdfast-Producer-Epoch": "0"}
    padding = "x" * body_bytes
    messages = [{"body": f"a{padding}"}, {"body": "b", "key": "k3"}, {"body": "c", "key": "k4"}]

    async def send(session: aiohttp.ClientSession, sequence: int) -> Any:
        headers = {**producer, "Holdfast-Producer-Sequence": str(sequence)}
        body = {"messages": messages * 2}
        async with session.post("/v1/topics/t/messages", json=body, headers=headers) as response:
            assert response.status == 200, await response.text()
            return await response.json()

    async with serving(tmp_path / "data") as session:
        await session.put("/v1/topics/t", json={"queues": 2})
        first = await send(session, 0)
        for queues in (3, 5):
            await session.patch("/v1/topics/t", json={"queues": queues})
            again = await send(session, 0)
            assert (again["results"], again["duplicate"]) == (first["results"], True)
    async with serving(tmp_path / "data") as session:
        assert (await send(session, 0))["results"] == first["results"]
        following = await send(session, 1)
        assert following.get("duplicate") is None
        assert (await send(session, 1))["results"] == following["results"]
        kept = await get(session, "/v1/topics/t")
        assert sum(queue["max_offset"] for queue in kept["queues"]) == 12


async def test_new_producers_beyond_the_budget_are_refused_and_no_retry_is_stored_twice(
    tmp_path: Path,
) -> None:
    # S4: a request of one publisher made the broker store other publishers' retries twice
    async with serving(tmp_path / "data", max_producers_per_topic=3) as session:

        async def send(producer: int, topic: str = "t") -> tuple[int, Any]:
            headers = {
                "Holdfast-Producer-Id": str(producer),
                "Holdfast-Producer-Epoch": "0",
                "Holdfast-Producer-Sequence": "0",
            }
            path = f"/v1/topics/{topic}/messages?queue=0"
            async with session.post(path, data=b"x", headers=headers) as response:
                return response.status, await response.json()

        assert (await send(1))[0] == 200
        flood = b"".join(
            encode_batch([b"x"], queue_id=0, producer_id=number) for number in range(2, 50)
        )
        kind = {"Content-Type": "application/vnd.holdfast.batch"}
        async with session.post("/v1/topics/t/messages", data=flood, headers=kind) as response:
            problem = await response.json()
            assert (response.status, problem["type"]) == (409, "/problems/too-many-producers")
            assert problem["limit_name"] == "max_producers_per_topic"
        again = await send(1)
        assert (again[0], again[1].get("duplicate")) == (200, True)
        assert [(await send(number))[0] for number in (2, 3, 4)] == [200, 200, 409]
        assert (await send(4, "other"))[0] == 200
    async with serving(tmp_path / "data", max_producers_per_topic=3) as session:
        # The use of the budget is known after a restart as well.
        assert [(await send(number))[0] for number in (1, 2, 3, 4)] == [200, 200, 200, 409]
        assert (await send(3))[1].get("duplicate") is True


async def test_many_publishers_and_pulls_at_once(session: aiohttp.ClientSession) -> None:
    await session.put("/v1/topics/t", json={"queues": 4, "durability": "written"})

    async def consume(queue: int) -> list[str]:
        found: list[str] = []
        offset = 0
        while len(found) < 50:
            reply = await get(
                session, f"/v1/topics/t/queues/{queue}/messages?offset={offset}&wait_ms=30000"
            )
            found += [message["body"] for message in reply["messages"]]
            offset = reply["next_offset"]
        return found

    async def produce(queue: int) -> None:
        for number in range(50):
            message = {"body": f"{queue}.{number}", "queue": queue}
            await post(session, "/v1/topics/t/messages", {"messages": [message]})

    consumed = [asyncio.create_task(consume(queue)) for queue in range(4)]
    await asyncio.gather(*(produce(queue) for queue in range(4)))
    for queue, found in enumerate(await asyncio.gather(*consumed)):
        assert found == [f"{queue}.{number}" for number in range(50)]
