"""Leases on plans over HTTP: create, extend, end, report and refuse them."""

import asyncio
from typing import Any

import pytest

from holdfast.commitlog.format.segment_format import SegmentHeader
from holdfast.http_api.config import HttpConfig
from tests.support.servers.api_server import Api

LONGEST_MS = HttpConfig().max_read_lease_ms
SPLITS = "/v1/topics/orders/splits"


async def fill(api: Api) -> None:
    for queue in (0, 0, 0, 1):
        await api.publish("orders", {"body": "x", "queue": queue})


async def take(api: Api, query: str = "") -> dict[str, Any]:
    answer = await api.get(f"{SPLITS}?lease_ms=60000{query}")
    assert answer.status == 200, answer.body
    lease = answer.json()["lease"]
    assert isinstance(lease, dict)
    return lease


def stop_the_clocks(api: Api) -> None:
    """Stop both clocks: a lease's end is computed with two clocks, which could differ by 1 ms."""
    api.store.read_leases.monotonic = lambda: 1000.0
    api.store.read_leases.now_ms = lambda: 1_700_000_000_000


async def pinned(api: Api) -> dict[str, Any] | None:
    found: dict[str, Any] | None = (await api.get("/v1/topics/orders")).json().get("read_leases")
    return found


async def test_a_plan_has_a_lease_if_asked(api: Api) -> None:
    stop_the_clocks(api)
    await fill(api)
    assert "lease" not in (await api.get(SPLITS)).json()
    assert "lease" not in (await api.get(f"{SPLITS}?lease_ms=0")).json()
    assert await pinned(api) is None
    lease = await take(api, "&start=0:2")
    assert lease["until_ms"] == 1_700_000_060_000
    assert await pinned(api) == {
        "count": 1,
        "until_ms": lease["until_ms"],
        "offsets": {"0": 2, "1": 0},
    }


async def test_a_failed_or_cancelled_plan_pins_nothing(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    await fill(api)
    leased, go_on = asyncio.Event(), asyncio.Event()

    async def waits(splits: object) -> list[SegmentHeader]:
        leased.set()
        await go_on.wait()
        raise OSError("the disk")

    monkeypatch.setattr(api.store.lookups, "segments", waits)
    asking = asyncio.create_task(take(api))
    await leased.wait()
    assert await pinned(api) is not None
    asking.cancel()
    async with asyncio.timeout(20):
        while await pinned(api) is not None:
            await asyncio.sleep(0)
    go_on.set()
    assert (await api.get(f"{SPLITS}?lease_ms=60000")).status == 500
    assert await pinned(api) is None


async def test_only_planned_queues_are_pinned(api: Api) -> None:
    await fill(api)
    await take(api, "&start=0:1&only_named=true")
    found = await pinned(api)
    assert found is not None
    assert found["offsets"] == {"0": 1}
    reply = (await api.get(f"{SPLITS}?start=1:0&only_named=true")).json()
    assert [split["queue"] for split in reply["splits"]] == [1]


@pytest.mark.parametrize(
    ("query", "status"), [("start=latest", 200), ("end=0:9", 416), ("start=0:1", 410)]
)
async def test_an_empty_or_failed_plan_has_no_lease(api: Api, query: str, status: int) -> None:
    await fill(api)
    api.trim(0, 2)
    answer = await api.get(f"{SPLITS}?{query}&lease_ms=1000")
    assert answer.status == status
    if status == 200:
        assert "lease" not in answer.json()
    else:
        assert answer.problem == {416: "offset-beyond-end", 410: "offset-trimmed"}[status]
    assert await pinned(api) is None


async def test_a_lease_is_extended_and_ended(api: Api) -> None:
    await fill(api)
    lease = await take(api)
    path = f"/v1/topics/orders/read-leases/{lease['id']}"
    await api.store.topics.create("other")
    elsewhere = await api.send_json("PUT", path.replace("orders", "other"), {"lease_ms": 1000})
    assert (elsewhere.status, elsewhere.problem) == (404, "unknown-read-lease")
    extended = await api.send_json("PUT", path, {"lease_ms": 120_000})
    assert extended.json()["id"] == lease["id"]
    assert extended.json()["until_ms"] > lease["until_ms"]
    assert (await api.ask("DELETE", path)).json() == {"ended": True}
    assert (await api.ask("DELETE", path)).json() == {"ended": False}
    for never in ("x", lease["id"].upper(), lease["id"] + "0"):
        refused = await api.ask("DELETE", path.replace(lease["id"], never))
        assert (refused.status, refused.json()["type"]) == (404, "/problems/unknown-read-lease")
    gone = await api.send_json("PUT", path, {"lease_ms": 1000})
    assert (gone.status, gone.problem) == (404, "unknown-read-lease")


async def test_the_duration_of_a_lease_is_limited(api: Api) -> None:
    await fill(api)
    path = f"/v1/topics/orders/read-leases/{(await take(api))['id']}"
    for length_ms, status in ((LONGEST_MS - 1, 200), (LONGEST_MS, 200), (LONGEST_MS + 1, 400)):
        for answer in (
            await api.send_json("PUT", path, {"lease_ms": length_ms}),
            await api.get(f"{SPLITS}?start=0:2&only_named=true&lease_ms={length_ms}"),
        ):
            assert answer.status == status
            if status == 400:
                assert answer.problem == "limit-exceeded"
                assert answer.json()["limit"] == LONGEST_MS
    assert (await api.send_json("PUT", path, {"lease_ms": 0})).status == 400


async def test_too_many_leases_are_refused_and_counted(api: Api) -> None:
    await fill(api)
    for _ in range(3):
        await take(api)
    answer = await api.get(f"{SPLITS}?lease_ms=1000")
    assert (answer.status, answer.problem) == (429, "too-many-read-leases")
    assert answer.json()["limit_name"] == "max_read_leases"
    assert answer.headers["Retry-After"] == "10"
    metrics = (await api.get("/metrics")).body.decode().splitlines()
    for line in (
        "holdfast_read_leases 3.0",
        "holdfast_read_lease_queues 6.0",
        "holdfast_read_leases_taken_total 3.0",
        "holdfast_read_leases_refused_total 1.0",
        "holdfast_read_leases_expired_total 0.0",
    ):
        assert line in metrics


async def test_only_named_needs_named_queues(api: Api) -> None:
    await fill(api)
    for query in ("", "&start=earliest"):
        answer = await api.get(f"{SPLITS}?only_named=true{query}")
        assert (answer.status, answer.problem) == (400, "invalid-parameter")
