"""S2: the permissions for receipts and ids of read leases.

A client that has such an id also needs the grants for its topic.
"""

from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from holdfast.groups.core.receipts import ReceiptCodec
from holdfast.http_api.access.tokens import Tokens
from tests.support.clients.tokens import bearer, make_token
from tests.support.servers.group_api import GroupApi, serving_groups

VERBS = ("ack", "nack", "release", "extend", "reject")


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    """Yield a broker with the topics "mine" and "theirs" in the group "g", each with a message, and
    the group "h" on "mine"."""
    async with serving_groups(tmp_path / "data") as api:
        for topic in ("mine", "theirs"):
            await api.topic(topic)
            await api.publish(topic, topic=topic)
        await api.group(topics={"mine": {}, "theirs": {}})
        await api.group("h", {"mine": {}})
        yield api


def show(api: GroupApi, *grants: str) -> None:
    """Let the broker require tokens, and the client send a token with these grants from now on."""
    token, text = make_token(*grants)
    assert api.broker._access is not None
    access = api.broker._access.access
    access.is_required, access.tokens = True, Tokens([token])
    api.session.headers.update(bearer(text))


async def receipts(api: GroupApi, group: str = "g") -> dict[str, str]:
    """Return a receipt of each topic, received with all grants."""
    reply = await api.receive(group=group)
    return {each["topic"]: each["receipt"] for each in reply["messages"]}


@pytest.mark.parametrize("verb", VERBS)
async def test_a_receipt_of_a_topic_that_the_token_does_not_grant_settles_nothing(
    api: GroupApi, verb: str
) -> None:
    got = await receipts(api)
    show(api, "consume:=mine:=g")
    path, both = f"/v1/groups/g/{verb}", [got["mine"], got["theirs"]]
    assert await api.refused("POST", path, {"receipts": [got["theirs"]]}) == (403, "forbidden")
    assert await api.refused("POST", path, {"receipts": both}) == (403, "forbidden")
    if verb != "extend":
        settle = [{"verb": verb, "receipts": [receipt]} for receipt in both]
        receive = {"member": "m", "topics": ["mine"], "settle": settle}
        refused = await api.refused("POST", "/v1/groups/g/receive", receive)
        assert refused == (403, "forbidden")
    show(api, "all")
    for topic in (0, 1):
        assert (await api.queue(topic=topic))["in_flight"] == 1
    show(api, "consume:=mine:=g")
    assert await api.settle(verb, got["mine"]) == ["done"]


async def test_a_refused_extension_does_not_lengthen_the_leases_that_a_group_may_have(
    api: GroupApi,
) -> None:
    got = await receipts(api)
    show(api, "consume:=mine:=g")
    assert api.broker._groups is not None
    group = api.broker._groups.registry.get("g")
    longest_ms = group.record.config.longest_lease_ms
    asked = {"receipts": [got["theirs"]], "lease_ms": longest_ms + 60_000}
    assert await api.refused("POST", "/v1/groups/g/extend", asked) == (403, "forbidden")
    assert group.record.config.longest_lease_ms == longest_ms
    asked["receipts"] = [got["mine"]]
    reply = await api.ask("POST", "/v1/groups/g/extend", asked)
    assert [each["status"] for each in reply["results"]] == ["done"]
    assert group.record.config.longest_lease_ms == longest_ms + 60_000


@pytest.mark.parametrize("verb", VERBS)
async def test_one_grant_must_cover_topic_and_group_of_a_receipt(api: GroupApi, verb: str) -> None:
    got = await receipts(api)
    show(api, "consume:=mine:=g", "consume:=theirs:=h")
    refused = await api.refused("POST", f"/v1/groups/g/{verb}", {"receipts": [got["theirs"]]})
    assert refused == (403, "forbidden")


async def test_a_receipt_forged_with_the_key_is_still_refused_by_its_topic(api: GroupApi) -> None:
    """A client that knows the signing key of receipts still needs the grant."""
    assert api.broker._groups is not None
    codec = api.broker._groups.registry.get("g")._codec
    assert isinstance(codec, ReceiptCodec)
    receipt = codec.decode((await receipts(api))["theirs"])
    forged = codec.encode(replace(receipt, member="thief"))
    show(api, "consume:=mine:=g")
    assert await api.refused("POST", "/v1/groups/g/ack", {"receipts": [forged]}) == (
        403,
        "forbidden",
    )


@pytest.mark.parametrize("verb", VERBS)
async def test_forged_and_foreign_receipts_settle_nothing(api: GroupApi, verb: str) -> None:
    got = await receipts(api)
    data = bytearray(urlsafe_b64decode(got["mine"] + "=" * (-len(got["mine"]) % 4)))
    forged = []
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= 0x40
        forged.append(urlsafe_b64encode(bytes(changed)).rstrip(b"=").decode())
    show(api, "consume:=mine:=g", "consume:=mine:=h")
    assert await api.settle(verb, *forged) == ["invalid"] * len(forged)
    assert await api.settle(verb, got["mine"], group="h") == ["invalid"]
    show(api, "all")
    assert (await api.queue())["in_flight"] == 1


async def test_a_receipt_that_is_sent_again_changes_nothing_for_a_new_delivery(
    api: GroupApi,
) -> None:
    old = (await receipts(api))["mine"]
    assert await api.settle("release", old) == ["done"]
    again = await receipts(api)
    show(api, "consume:=mine:=g")
    for verb in ("ack", "nack", "extend", "reject"):
        assert await api.settle(verb, old) == ["stale"], verb
    assert await api.settle("ack", again["mine"]) == ["done"]


async def test_a_read_lease_needs_the_grant_for_its_topic(api: GroupApi) -> None:
    leased = await api.ask("GET", "/v1/topics/theirs/splits?lease_ms=60000")
    lease, more = leased["lease"]["id"], {"lease_ms": 1000}
    theirs, mine = (f"/v1/topics/{topic}/read-leases/{lease}" for topic in ("theirs", "mine"))
    show(api, "consume:=mine")
    assert await api.refused("PUT", theirs, more) == (403, "forbidden")
    assert await api.refused("DELETE", theirs) == (403, "forbidden")
    assert (await api.refused("PUT", mine, more))[0] == 404
    assert await api.ask("DELETE", mine) == {"ended": False}
    show(api, "all")
    assert (await api.ask("PUT", theirs, more))["id"] == lease
    assert await api.ask("DELETE", theirs) == {"ended": True}
    assert (await api.refused("PUT", theirs, more))[0] == 404  # the id is reused
