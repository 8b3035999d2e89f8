"""A receive with `no_local` gets no messages that its own session published."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.amqp.messages.envelope import Envelope, encode_envelope
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch
from holdfast.commitlog.format.session_ids import producer_id_of, publisher_hash
from tests.support.servers.group_api import GroupApi, bodies, serving_groups

MESSAGES = "/v1/topics/orders/messages"


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    async with serving_groups(tmp_path / "data") as api:
        yield api


async def publish(api: GroupApi, session: str, sequence: int, body: str, tag: str = "t") -> None:
    head = "Holdfast-Producer-"
    headers = {f"{head}Id": session, f"{head}Epoch": "0", f"{head}Sequence": str(sequence)}
    messages = [{"body": body, "tag": tag, "queue": 0, "properties": {"size": "5"}}]
    async with api.session.post(MESSAGES, json={"messages": messages}, headers=headers) as reply:
        assert reply.status == 200, await reply.text()


async def publish_batch(api: GroupApi, producer_id: int, *contents: bytes) -> None:
    block = encode_batch(contents, queue_id=0, producer_id=producer_id, sequence=0)
    headers = {"Content-Type": "application/vnd.holdfast.batch"}
    async with api.session.post(MESSAGES, data=block, headers=headers) as reply:
        assert reply.status == 200, await reply.text()


async def test_a_session_gets_the_messages_of_others_and_its_own_stay_available(
    api: GroupApi,
) -> None:
    # T28
    await api.topic()
    await api.group()
    await publish(api, "mine", 0, "mine 1", "a")
    await publish(api, "other", 0, "other 1", "a")
    # The log may combine these into one batch.
    await asyncio.gather(*(publish(api, each, 1, f"{each} 2") for each in ("mine", "other")))
    await publish_batch(api, producer_id_of("mine-too"), b"mine too")
    await publish_batch(api, 77, b"77 1", b"77 2")
    await api.publish("unknown")

    async def look(**more: Any) -> set[str]:
        reply = await api.receive("looks", max_messages=99, **more)
        await api.settle("release", reply)
        return set(bodies(reply))

    everything = await look()
    assert len(everything) == 8
    of_others = {"other 1", "other 2", "mine too", "77 1", "77 2", "unknown"}
    assert await look(no_local="mine") == of_others
    assert await look(no_local=str(producer_id_of("mine"))) == of_others
    assert await look(no_local="77") == everything - {"77 1", "77 2"}
    assert await look(no_local="mine-too") == everything - {"mine too"}
    assert await look(no_local="unknown") == everything
    assert await look(no_local="mine", filter="a,b") == {"other 1"}
    assert await look(no_local="mine", filter="size > 4 OR size < 1") == {"other 1", "other 2"}
    assert await look(no_local="mine", filter="*") == of_others

    own = await api.receive("m1", max_messages=99, no_local="mine")
    assert set(bodies(own)) == of_others
    await api.settle("ack", own)
    # The session alone: its messages remain, and a held receive gets the next one of another.
    waiting = await api.wait_to_receive("m1", no_local="mine")
    await publish(api, "mine", 2, "mine 3")
    await publish(api, "other", 2, "other 3")
    assert bodies(await waiting) == ["other 3"]
    rest = await api.receive("m2", max_messages=99, no_local="other")
    assert set(bodies(rest)) == {f"mine {number}" for number in range(1, 4)}


async def test_a_range_of_producers_is_a_session(api: GroupApi) -> None:
    # T28
    await api.topic()
    await api.group()
    for producer_id in (99, 100, 150, 199, 200, 2**63 - 1):
        await publish_batch(api, producer_id, b"%d" % producer_id)
    await publish(api, "100-199", 0, "a name")
    await api.publish("unknown")

    async def look(no_local: str) -> set[str]:
        reply = await api.receive("looks", max_messages=99, no_local=no_local)
        await api.settle("release", reply)
        return set(bodies(reply))

    others = {"a name", "unknown", str(2**63 - 1)}
    assert await look("100-199") == {"99", "200"} | others
    assert await look("150-150") == {"99", "100", "199", "200"} | others
    assert await look(f"200-{2**63 - 1}") == {"99", "100", "150", "199", "unknown"}
    everything = {"99", "100", "150", "199", "200"} | others
    for name in ("199-100", "100-", "-199", "100-199-", "0-199", f"100-{2**63}"):
        assert await look(name) == everything, name


async def test_a_container_of_amqp_is_a_session_too(api: GroupApi) -> None:
    await api.topic()
    await api.group()
    storage = api.broker._storage
    assert storage is not None
    store = storage.store
    envelopes = [encode_envelope(Envelope(publisher_hash(name))) for name in ("mine", "other")]
    rows = Rows(0, [b"of mine", b"of other"], 1, envelopes=envelopes)
    await store.publishing.publish(store.table.get("orders"), [rows])
    assert bodies(await api.receive(no_local="mine")) == ["of other"]


async def test_no_local_is_refused_in_keyed_groups_and_checked(api: GroupApi) -> None:
    await api.topic()
    await api.group(mode="keyed")
    path = "/v1/groups/g/receive"
    asked = {"member": "m", "no_local": "mine"}
    assert await api.refused("POST", path, asked) == (400, "filter-not-allowed")
    for length, refusal in ((0, "invalid-parameter"), (127, "filter-not-allowed"),
                            (128, "invalid-parameter")):  # fmt: skip
        asked = {"member": "m", "no_local": "x" * length}
        assert await api.refused("POST", path, asked) == (400, refusal), length
