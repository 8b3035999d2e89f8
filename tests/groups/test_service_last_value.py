"""Groups with `last_value` over a real storage: restarts, retention, and large backlogs."""

from collections.abc import Sequence
from pathlib import Path

import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.last_values import LastValues
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.errors import InvalidGroup
from holdfast.groups.service_types import Verb
from holdfast.groups.serving.head_source import KEYS_A_TURN
from holdfast.groups.settings import Subscription
from tests.support.event_loop.calls_a_turn import calls_a_turn
from tests.support.servers.group_broker import GroupBroker, bodies_of, running, running_group


async def publish(broker: GroupBroker, *messages: str) -> None:
    """Publish each message alone: its key, its number, such as "a1". A key "-" means no key."""
    for body in messages:
        await broker.publish([body], key=None if body[0] == "-" else body[0])


def superseded(broker: GroupBroker, group: str = "g") -> int:
    lanes = broker.groups.registry.by_name[group].lanes()
    return sum(lane.cursor.superseded_count for lane in lanes)


async def test_the_newest_message_of_each_key_is_delivered(tmp_path: Path) -> None:  # Q24
    async with running_group(tmp_path, last_value=True) as broker:
        await publish(broker, "a1", "b1", "-1", "a2", "-2", "b2", "b3", "c1")
        received = await broker.receive()
        assert bodies_of(received) == ["-1", "a2", "-2", "b3", "c1"]
        assert superseded(broker) == 3
        described = await broker.groups.describe("g")
        assert described.topics[0].queues[0].superseded == 3
        waiting = await broker.wait_to_receive()
        await publish(broker, "a3")
        assert bodies_of(await waiting) == ["a3"]
        await broker.settle(received, Verb.NACK, delay_ms=0)
        assert bodies_of(await broker.receive()) == ["-1", "-2", "b3", "c1"]


async def test_leases_and_newest_messages_survive_a_restart(tmp_path: Path) -> None:  # Q24
    async with running_group(tmp_path, last_value=True) as broker:
        await publish(broker, "a1", "b1", "c1")
        received = await broker.receive(1)
        await publish(broker, "a2", "b2", "b3")
    async with running(tmp_path) as broker:
        assert bodies_of(await broker.receive()) == ["c1", "a2", "b3"]
        assert superseded(broker) == 2
        await broker.settle(received, Verb.RELEASE)
        assert bodies_of(await broker.receive()) == []
        await broker.groups.seek("g", "earliest")
        assert bodies_of(await broker.receive()) == ["c1", "a2", "b3"]


async def test_the_setting_needs_the_mode_competing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        for mode in ("keyed", "single_active", "exclusive"):
            with pytest.raises(InvalidGroup, match=f"needs the mode competing, not {mode}"):
                await broker.group(last_value=True, mode=mode)
        await broker.group(last_value=True)
        with pytest.raises(InvalidGroup, match="last_value"):
            await broker.group(mode="keyed")
        await broker.group(mode="keyed", last_value=False)


async def test_a_change_of_the_setting_holds_for_what_is_not_delivered(tmp_path: Path) -> None:
    async with running_group(tmp_path) as broker:
        await publish(broker, "a1", "a2", "b1", "b2")
        assert bodies_of(await broker.receive(1)) == ["a1"]
        await broker.group(last_value=True)
        assert bodies_of(await broker.receive()) == ["a2", "b2"]
        await broker.group(last_value=False)
        await publish(broker, "c1", "c2")
        assert bodies_of(await broker.receive()) == ["c1", "c2"]


async def test_a_filter_of_the_group_does_not_decide_which_message_is_newest(
    tmp_path: Path,
) -> None:
    async with running_group(
        tmp_path, topics={"t": Subscription(filter="x")}, last_value=True
    ) as broker:
        await broker.publish("a1", key="a", tag="x")
        await broker.publish("b1", key="b", tag="x")
        await broker.publish("a2", key="a", tag="y")
        assert bodies_of(await broker.receive()) == ["b1"]


async def published(broker: GroupBroker, keys: Sequence[str], batch: int = 5_000) -> None:
    for start in range(0, len(keys), batch):
        part = keys[start : start + batch]
        bodies = [b"%d" % (start + at) for at in range(len(part))]
        block = encode_batch(bodies, keys=part, born_timestamp_us=1, queue_id=0)
        topic = broker.store.table.get("t")
        await broker.store.publishing.publish(topic, [Batch.decode(block)])


async def received_all(broker: GroupBroker) -> list[str]:
    """Receive and settle until nothing is left."""
    found: list[str] = []
    while some := bodies_of(await broker.receive(1_000, wait_s=1.0, settled=True)):
        found += some
    return found


@pytest.mark.parametrize("is_cold", [False, True])
async def test_a_large_backlog_is_examined_in_slices(tmp_path: Path, is_cold: bool) -> None:  # Q24
    async with running_group(tmp_path, last_value=True) as broker:
        if not is_cold:
            await published(broker, ["k"] * 100_000)
            await one_is_left(broker, 100_000)
            return
        await published(broker, ["k"] * 100_000)
    async with running(tmp_path) as broker:
        await one_is_left(broker, 100_000)


async def one_is_left(broker: GroupBroker, count: int) -> None:
    """Check that the last of these messages is delivered, and that no loop iteration does much."""
    with calls_a_turn(LastValues, "_add", weigh=lambda values, keys: len(keys)) as keys:
        received = await broker.receive(wait_s=90.0)
    assert bodies_of(received) == [str(count - 1)]
    assert keys.total == count
    assert keys.most <= KEYS_A_TURN
    assert superseded(broker) == count - 1


async def test_returned_messages_that_are_superseded_are_dropped_in_slices(
    tmp_path: Path,
) -> None:
    count = 2 * KEYS_A_TURN + 10
    keys = [f"k{at}" for at in range(count)]
    limits = GroupsConfig(max_in_flight=count, max_receive_messages=count)
    async with running_group(
        tmp_path, limits=limits, last_value=True, max_in_flight=count
    ) as broker:
        await published(broker, keys)
        while len((received := await broker.receive(count, max_bytes=1 << 24)).deliveries) < count:
            await broker.settle(received, Verb.RELEASE)
        await broker.settle(received, Verb.RELEASE)
        await published(broker, keys)
        with calls_a_turn(Cursor, "drop_superseded") as dropped:
            received = await broker.receive(count, max_bytes=1 << 24, wait_s=30.0)
        assert dropped.total == count
        assert dropped.most <= KEYS_A_TURN
        first = received.deliveries[0]
        assert first.offset >= count


async def test_more_keys_than_may_be_kept(tmp_path: Path) -> None:
    keys = [f"k{at % 700}" for at in range(2_000)]
    newest = {key: str(at) for at, key in enumerate(keys)}
    async with running_group(
        tmp_path, limits=GroupsConfig(max_last_value_keys=100), last_value=True
    ) as broker:
        await published(broker, keys, 300)
        assert await received_all(broker) == sorted(newest.values(), key=int)
        assert superseded(broker) == 1_300
