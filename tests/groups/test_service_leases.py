"""The leases of all groups together: their number is limited."""

from pathlib import Path

import pytest

from holdfast.groups.config import GroupsConfig
from holdfast.groups.service_types import Verb
from holdfast.groups.settings import GroupSettings
from tests.support.servers.group_broker import bodies_of, receipts_of, running, running_group


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_all_groups_together_have_a_most_of_leases(tmp_path: Path, more: int) -> None:
    # S5: each group had only its own limit, and eight groups killed a broker with 512 MiB
    async with running_group(tmp_path, limits=GroupsConfig(max_leases=10)) as broker:
        await broker.group("h")
        await broker.publish([str(number) for number in range(20)])
        first = await broker.receive(6, group="g")
        second = await broker.receive(4 + more, group="h")
        assert len(first.deliveries) == 6
        assert len(second.deliveries) == min(4 + more, 4)
        if more < 0:
            return
        assert bodies_of(await broker.receive(group="g")) == []
        taken = await broker.receive(2, group="h", settled=True)
        assert len(taken.deliveries) == 2, "what needs no lease is not kept back"
        waiting = await broker.wait_to_receive(group="h")
        await broker.settle(receipts_of(second)[:1], group="h")
        assert len((await waiting).deliveries) == 1
        await broker.settle(first, group="g")
        assert len((await broker.receive(20, group="h")).deliveries) == 6
        await broker.groups.delete_group("h")
        assert len((await broker.receive(20, group="g")).deliveries) == 10


async def test_a_start_with_more_leases_than_a_lowered_limit_keeps_them(tmp_path: Path) -> None:
    async with running_group(tmp_path, [str(number) for number in range(8)]) as broker:
        held = await broker.receive(6)
    async with running(tmp_path, limits=GroupsConfig(max_leases=3)) as broker:
        assert broker.groups.stats().in_flight == 6
        assert bodies_of(await broker.receive()) == []
        await broker.settle(receipts_of(held)[:3], Verb.ACK)
        assert bodies_of(await broker.receive()) == []
        await broker.settle(receipts_of(held)[3:4], Verb.ACK)
        assert bodies_of(await broker.receive()) == ["6"]
        await broker.groups.put_group("g", GroupSettings(lease_ms=5_000))
