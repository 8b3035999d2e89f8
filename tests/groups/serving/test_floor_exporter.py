"""The floors of groups as stored offsets, while groups change."""

from pathlib import Path
from typing import Any

from holdfast.groups.settings import Subscription
from tests.support.servers.group_broker import running_group


async def test_a_topic_that_goes_while_another_is_stored_ends_no_mirroring(tmp_path: Path) -> None:
    async with running_group(tmp_path, topics={"t": Subscription(), "u": Subscription()}) as broker:
        await broker.group("h", "t")
        await broker.publish("x", "t")
        for name in ("g", "h"):
            await broker.settle(await broker.receive(group=name), group=name)
        store_offsets = broker.store.offsets.store_offsets

        async def slowly(*args: Any, **how: Any) -> Any:
            broker.store.offsets.store_offsets = store_offsets  # type: ignore[method-assign]
            await broker.store.topics.delete("u")
            return await store_offsets(*args, **how)

        broker.store.offsets.store_offsets = slowly  # type: ignore[method-assign]
        await broker.groups.exporter.export_all()
        topic = broker.store.table.get("t")
        assert [
            broker.store.offsets.stored_offsets(name, topic).offsets for name in ("g", "h")
        ] == [{0: 1}, {0: 1}]
        await broker.groups.delete_group("g")
        assert broker.store.table.groups() == ["h"]
