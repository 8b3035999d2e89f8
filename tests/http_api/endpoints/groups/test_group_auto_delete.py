"""Groups that are deleted when they have had no member for some time, with a real broker."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.groups.serving.group_changes import GroupChanges
from holdfast.groups.serving.group_server import GroupServer
from tests.support.servers.group_api import GroupApi, bodies, serving_groups, until

AFTER_MS = 60_000


@pytest.fixture
async def api(tmp_path: Path) -> AsyncIterator[GroupApi]:
    """A broker with the topic "orders" and a group "g" that is deleted after a minute."""
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(auto_delete_after_ms=AFTER_MS, member_ttl_ms=1_000, lease_ms=30_000)
        yield api


async def has_gone(api: GroupApi, group: str = "g") -> None:
    """Wait until the group and its stored offsets do not exist any more."""

    async def is_gone() -> bool:
        async with api.session.get(f"/v1/groups/{group}") as response:
            return response.status == 404

    await until(is_gone)
    assert await api.refused("GET", f"/v1/groups/{group}") == (404, "unknown-group")


async def stays(api: GroupApi) -> None:
    """Check that the group is not being deleted."""
    for _ in range(5):
        await asyncio.sleep(0)
    assert (await api.describe())["config"]["auto_delete_after_ms"] == AFTER_MS


async def test_a_group_is_deleted_when_it_had_no_member_for_its_time(
    api: GroupApi, tmp_path: Path
) -> None:  # Q26
    await api.group("kept")
    await api.publish("a", "b")
    api.later(55.0)
    await stays(api)
    # A member counts for its time to live, and a lease as long as it lasts.
    reply = await api.receive(max_messages=1)
    api.later(29.0)
    await api.settle("ack", reply)
    await api.receive(max_messages=0)
    api.later(2.5)  # the member is silent from now on
    api.later(55.0)
    await stays(api)
    api.later(5.1)
    await has_gone(api)
    offsets = await api.refused("GET", "/v1/groups/g/topics/orders/offsets")
    assert offsets == (404, "unknown-group")
    assert await api.refused("POST", "/v1/groups/g/receive", {"member": "m"}) == (
        404,
        "unknown-group",
    )
    assert (await api.describe("kept"))["config"]["auto_delete_after_ms"] == 0
    await api.group()
    assert bodies(await api.receive()) == ["a", "b"]


async def test_a_waiting_member_keeps_its_group(api: GroupApi) -> None:
    waiting = await api.wait_to_receive(wait_ms=60_000)
    api.later(50.0)
    await stays(api)
    api.later(11.0)
    assert bodies(await waiting) == []
    api.later(50.0)
    await stays(api)
    api.later(20.0)
    await has_gone(api)


async def test_the_time_begins_again_after_a_restart_and_with_a_new_limit(tmp_path: Path) -> None:
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(auto_delete_after_ms=AFTER_MS)
        api.later(55.0)
    async with serving_groups(tmp_path / "data") as api:
        api.later(55.0)
        await stays(api)
        await api.group(auto_delete_after_ms=2 * AFTER_MS)
        api.later(110.0)
        await api.group(auto_delete_after_ms=0)
        api.later(500.0)
        assert (await api.describe())["config"]["auto_delete_after_ms"] == 0
        await api.group(auto_delete_after_ms=AFTER_MS)
        api.later(61.0)
        await has_gone(api)
    async with serving_groups(tmp_path / "data") as api:
        assert await api.refused("GET", "/v1/groups/g") == (404, "unknown-group")


async def test_a_member_that_comes_before_the_deletion_keeps_its_group(
    api: GroupApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    tried = asyncio.Event()
    delete = GroupChanges.delete_unused

    async def delete_late(self: GroupChanges, group: GroupServer) -> bool:
        await api.receive("late", max_messages=0)
        is_deleted = await delete(self, group)
        tried.set()
        return is_deleted

    monkeypatch.setattr(GroupChanges, "delete_unused", delete_late)
    api.later(61.0)
    async with asyncio.timeout(10):
        await tried.wait()
    await stays(api)
    monkeypatch.undo()
    api.later(62.0)  # the member is silent now
    api.later(61.0)
    await has_gone(api)


async def test_the_deletion_is_in_the_audit_log(tmp_path: Path) -> None:
    async with serving_groups(tmp_path / "data") as api:
        await api.topic()
        await api.group(auto_delete_after_ms=AFTER_MS)
        api.later(61.0)
        await has_gone(api)
    (path,) = (tmp_path / "data").rglob("audit.log")
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    (line,) = [each for each in lines if each["act"] == "group.delete"]
    assert (line["group"], line["auto_delete_after_ms"]) == ("g", AFTER_MS)
    assert (line["principal"], line["outcome"]) == ("broker", "done")
