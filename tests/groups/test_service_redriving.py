"""Redriving dead letters over a real storage. S3: a redrive cannot reach a foreign topic."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.consumequeue.errors import LimitReached, StateUnavailable, TopicFull, UnknownGroup
from holdfast.groups.config import GroupsConfig
from holdfast.groups.errors import InvalidGroup, NoDeadLetters, RedriveRunning
from holdfast.groups.service_types import RedriveOptions, RedriveResult, Verb
from holdfast.groups.serving.letters import keyed_producer_id
from holdfast.groups.serving.redriving import AT_ONCE
from holdfast.groups.settings import GroupSettings, Subscription
from tests.support.servers.group_broker import GroupBroker, running, running_group
from tests.support.storage.stored import bodies, until

ALL = RedriveOptions(limit=1000)


async def letters(broker: GroupBroker, *texts: str, **fields: Any) -> None:
    """Create "t" and the group "g", and let it reject these messages."""
    await broker.topic()
    await broker.group(dead_letter_topic="dead")
    if texts:
        await reject(broker, *texts, **fields)


async def reject(broker: GroupBroker, *texts: str, **fields: Any) -> None:
    before = broker.groups.stats().dead_letters_total
    await broker.publish(list(texts), **fields)
    await broker.settle(await broker.receive(len(texts)), Verb.REJECT)
    await until(lambda: broker.groups.stats().dead_letters_total == before + len(texts))


async def redrive(broker: GroupBroker, **fields: Any) -> RedriveResult:
    return await broker.groups.redrive("g", RedriveOptions(**{"limit": 1000, **fields}))


async def stored(broker: GroupBroker, topic: str = "t") -> list[bytes]:
    fetched = await broker.store.reading.read(
        broker.store.table.get(topic), 0, 0, max_messages=1000, max_bytes=1 << 20
    )
    return list(bodies(fetched))


async def test_a_letter_goes_back_as_it_was(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y", key="k", tag="v", properties={"mine": "1"})
        done = await redrive(broker)
        assert (done.topics, done.stuck, done.more) == ({"t": 2}, 0, False)
        again = await broker.receive()
        for each, body in zip(again.deliveries, (b"x", b"y"), strict=True):
            assert each.batch.body(each.row) == body
            assert each.batch.key(each.row) == "k"
            assert each.batch.tag(each.row) == "v"
            assert each.batch.properties(each.row) == {"mine": "1"}
        assert (await redrive(broker)).total == 0


async def test_a_letter_and_its_redrive_keep_the_envelope(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker)
        await broker.store.topics.change("t", fields={"max_message_bytes": 100})
        # Body and envelope have 100 bytes, without the 14 bytes that do not count.
        envelope = bytes(14) + bytes(99)
        rows = Rows(0, [b"x", b"y"], 1, envelopes=[envelope, b""])
        await broker.store.publishing.publish(broker.store.table.get("t"), [rows])
        await broker.settle(await broker.receive(2), Verb.REJECT)
        await until(lambda: broker.groups.stats().dead_letters_total == 2)
        dead = await broker.store.reading.read(
            broker.store.table.get("dead"), 0, 0, max_messages=2, max_bytes=1 << 20
        )
        found = [each.batch.envelope(row) for each in dead.slices for row in each.rows]
        assert found == [envelope, b""]
        assert (await redrive(broker)).topics == {"t": 2}
        again = await broker.receive()
        found = [each.batch.envelope(each.row) for each in again.deliveries]
        assert found == [envelope, b""]


async def test_a_dry_run_counts_and_changes_nothing(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y", "z")
        for _ in range(2):
            assert (await redrive(broker, dry_run=True)).topics == {"t": 3}
        assert not broker.groups.has_leases("g.redrive")
        assert await stored(broker) == [b"x", b"y", b"z"]
        assert (await redrive(broker, limit=1)).topics == {"t": 1}
        counted = await redrive(broker, dry_run=True)
        assert (counted.topics, counted.more) == ({"t": 2}, False)
        counted = await redrive(broker, dry_run=True, limit=1)
        assert (counted.topics, counted.more) == ({"t": 1}, True)


async def test_a_redrive_puts_back_at_most_limit_letters(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, *map(str, range(200)))
        done = await redrive(broker, limit=150)
        assert (done.total, done.more) == (150, True)
        done = await redrive(broker, limit=51)
        assert (done.total, done.more) == (50, False)
        expected = [str(number).encode() for number in range(200)]
        assert await stored(broker) == [*expected, *expected]


async def test_single_letters_can_be_chosen(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, *map(str, range(300)))
        chosen = {0: [3, 250, 999], 7: [1]}
        assert (await redrive(broker, offsets=chosen, dry_run=True)).total == 2
        done = await redrive(broker, offsets=chosen)
        assert (done.topics, done.more) == ({"t": 2}, False)
        assert (await stored(broker))[300:] == [b"3", b"250"]
        assert (await redrive(broker, offsets=chosen)).total == 0
        assert (await redrive(broker)).total == 298


# -- forged letters: stored before publishers were refused such properties -----------------


def forged(**fields: str | None) -> Mapping[str, str]:
    fields = {"topic": "t", "queue": "0", "group": "g", **fields}
    return {f"holdfast-dead-{name}": text for name, text in fields.items() if text is not None}


async def test_no_letter_reaches_a_topic_that_is_not_the_groups(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "real")
        await broker.topic("payments")
        for said in (
            forged(topic="payments"), forged(topic="dead"), forged(topic="nowhere"),
            forged(topic="x y"), forged(topic=None), forged(queue=None), forged(queue="-1"),
            forged(queue="two"), forged(queue="9" * 30),
        ):  # fmt: skip
            await broker.publish("forged", topic="dead", properties=dict(said))
        await broker.publish("another group's", topic="dead", properties=dict(forged(group="h")))
        counted = await redrive(broker, dry_run=True)
        assert (counted.topics, counted.stuck) == ({"t": 1}, 9)
        done = await redrive(broker)
        assert (done.topics, done.stuck) == ({"t": 1}, 9)
        assert await stored(broker, "payments") == []
        assert await stored(broker, "t") == [b"real", b"real"]
        assert len(await stored(broker, "dead")) == 11


async def test_a_letter_of_before_this_rule_goes_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "new")
        old = {**forged(), "holdfast-dead-offset": "5", "holdfast-dead-reason": "rejected"}
        await broker.publish("old", topic="dead", properties=old)
        assert (await redrive(broker)).topics == {"t": 2}


async def test_a_topic_that_the_group_lost_gets_no_letters(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x")
        await broker.topic("u")
        await broker.groups.put_group("g", GroupSettings(topics={"u": Subscription()}))
        done = await redrive(broker)
        assert (done.total, done.stuck) == (0, 1)
        await broker.groups.put_group("g", GroupSettings(topics={"t": Subscription()}))
        broker.later(61, "g.redrive")
        assert (await redrive(broker)).topics == {"t": 1}


async def test_no_client_can_compute_the_producer_id_of_a_letter(tmp_path: Path) -> None:
    """If every client could compute the id, any client could make the letter disappear."""
    async with running(tmp_path) as broker:
        await letters(broker, "x")
        key = broker.storage.groups.table.receipt_key
        assert key is not None
        ids = {keyed_producer_id(each, "redrive", "g 1") for each in (key, b"", b"another")}
        assert len(ids) == 3
        assert keyed_producer_id(key, "dead-letter", "g 1") not in ids
        assert all(0 < each < 2**63 for each in ids)


# -- failures ------------------------------------------------------------------------------


async def test_a_letter_that_a_crash_left_unacknowledged_is_stored_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y")
        await redrive(broker, limit=0)
        served = broker.groups.registry.by_name["g.redrive"]
        settle = served.settle

        async def crash(verb: Verb, *args: Any, **how: Any) -> Any:
            raise StateUnavailable("a crash")

        served.settle = crash  # type: ignore[method-assign]
        with pytest.raises(StateUnavailable):
            await redrive(broker)
        served.settle = settle  # type: ignore[method-assign]
        assert await stored(broker) == [b"x", b"y"] * 2
        assert (await redrive(broker)).total == 0, "they had been put back"
        assert await stored(broker) == [b"x", b"y"] * 2
        assert (await redrive(broker, dry_run=True)).total == 0


async def test_letters_that_an_earlier_redrive_leases_are_put_back_at_once(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y", "z")
        assert (await redrive(broker, limit=1)).total == 1
        held = await broker.receive(member="redrive", group="g.redrive", lease_ms=600_000)
        assert len(held.deliveries) == 2
        assert (await redrive(broker)).total == 2


async def test_a_letter_above_a_new_size_limit_ends_the_redrive_and_is_not_overtaken(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "1", "22", "333", "4", key="k")
        await broker.store.topics.change("t", fields={"max_message_bytes": 2})
        done = await redrive(broker)
        assert done.topics == {"t": 2}
        assert str(done.failure).startswith("message 0: 3 bytes exceed max_message_bytes (2)")
        assert done.more
        await broker.store.topics.change("t", fields={"max_message_bytes": 3})
        assert (await redrive(broker)).topics == {"t": 2}
        assert (await stored(broker))[4:] == [b"1", b"22", b"333", b"4"]


async def test_one_redrive_of_a_group_at_a_time(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x")
        publish = broker.store.publishing.publish

        async def and_again(*args: Any, **more: Any) -> Any:
            with pytest.raises(RedriveRunning):
                await redrive(broker)
            return await publish(*args, **more)

        broker.store.publishing.publish = and_again  # type: ignore[method-assign]
        assert (await redrive(broker)).total == 1
        broker.store.publishing.publish = publish  # type: ignore[method-assign]


async def test_a_group_without_letters_is_refused(tmp_path: Path) -> None:
    async with running_group(tmp_path) as broker:
        with pytest.raises(NoDeadLetters):
            await redrive(broker)
        with pytest.raises(UnknownGroup):
            await broker.groups.redrive("none", ALL)
        with pytest.raises(InvalidGroup, match="own topics"):
            await redrive(broker, dead_letter_topic="t")


async def test_somebodys_group_of_that_name_is_left_alone(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x")
        await broker.group("g.redrive", "t")
        with pytest.raises(InvalidGroup, match="in use"):
            await redrive(broker)
        assert list(broker.groups.group_state("g.redrive").topics) == ["t"]


async def test_a_broker_that_stops_puts_no_more_back(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x")
        broker.groups._redriver.drain()
        done = await redrive(broker)
        assert (done.total, done.more) == (0, True)


@pytest.mark.parametrize("dry_run", [False, True])
async def test_a_letter_stays_if_the_caller_may_not_publish_to_its_topic(
    tmp_path: Path, dry_run: bool
) -> None:
    # S2: the group gets a topic after the caller's grants were compared with its topics
    async with running(tmp_path) as broker:
        await broker.topic("secret")
        await broker.topic()
        both = {"t": Subscription(), "secret": Subscription()}
        await broker.group(topics=both, dead_letter_topic="dead")
        await reject(broker, "x")
        await reject(broker, "y", topic="secret")
        request: dict[str, Any] = {"may_publish": lambda topic: topic == "t", "dry_run": dry_run}
        done = await redrive(broker, **request)
        assert (done.topics, done.stuck) == ({"t": 1}, 1)
        assert await stored(broker, "secret") == [b"y"]


async def test_a_full_topic_gets_the_letters_that_fit_and_then_the_redrive_ends(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, *("x" * 1000 for _ in range(8)))
        await broker.store.topics.change("t", fields={"max_bytes": 14_000})
        done = await redrive(broker)
        assert isinstance(done.failure, TopicFull)
        assert 0 < done.total < 8
        assert done.more
        assert len(await stored(broker)) == 8 + done.total
        await broker.store.topics.change("t", fields={"max_bytes": None})
        rest = await redrive(broker)
        assert (rest.total, rest.failure) == (8 - done.total, None)


async def test_letters_count_as_published_and_a_rate_that_is_used_up_ends_it(
    tmp_path: Path,
) -> None:
    counted: list[tuple[int, int]] = []

    def published(messages: int, size: int) -> bool:
        counted.append((messages, size))
        return len(counted) < 2

    async with running(tmp_path) as broker:
        await letters(broker, *map(str, range(200)))
        done = await redrive(broker, published=published)
        assert (done.total, done.more) == (2 * AT_ONCE, True)
        assert [messages for messages, _ in counted] == [AT_ONCE] * 2
        assert all(size > AT_ONCE for _, size in counted)
        done = await redrive(broker, dry_run=True, published=published)
        assert (done.total, len(counted)) == (200 - 2 * AT_ONCE, 2)


async def test_letters_that_had_been_put_back_before_are_not_counted_again(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y")
        assert (await redrive(broker, limit=1)).total == 1
        await broker.groups.seek("g.redrive", "earliest")
        done = await redrive(broker)
        assert (done.total, done.topics) == (1, {"t": 1})
        assert await stored(broker) == [b"x", b"y", b"x", b"y"]


async def test_letters_are_put_back_once_though_their_keys_have_other_queues_by_now(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        for key in "abcd":
            await (letters if key == "a" else reject)(broker, key, key=key)
        assert (await redrive(broker)).total == 4
        topic = await broker.store.topics.change("t", queues=7, fields={})
        await broker.groups.seek("g.redrive", "earliest")
        assert (await redrive(broker)).total == 0
        assert sum(each.max_offset for each in broker.store.reading.queue_states(topic)) == 8


async def test_stuck_letters_are_counted_though_they_are_not_tried_again_yet(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await letters(broker, "x", "y")
        await broker.store.topics.delete("t")
        for _ in range(2):
            done = await redrive(broker)
            assert (done.total, done.stuck, done.more) == (0, 2, False)
        assert (await redrive(broker, offsets={0: [1]})).stuck == 1
        await broker.topic()
        broker.later(60.0, "g.redrive")
        done = await redrive(broker)
        assert (done.total, done.stuck) == (2, 0)


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_stuck_letters_at_the_limit_of_returned_messages_are_reported(
    tmp_path: Path, more: int
) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_returned_per_group=3)) as broker:
        await letters(broker, *map(str, range(3 + 2 * max(more, 0) + min(more, 0))))
        await broker.store.topics.delete("t")
        if more <= 0:
            done = await redrive(broker, limit=2)
            assert (done.stuck, done.more) == (3 + more, False)
        else:
            with pytest.raises(LimitReached, match="max_returned_per_group"):
                await redrive(broker, limit=2)
