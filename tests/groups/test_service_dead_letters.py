"""Dead letters over a real storage: each is there once, whenever the broker stops."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.errors import LogError
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.groups import dead_letters
from holdfast.groups.rows import NOT_KEPT
from holdfast.groups.service_types import Status, TopicSpec, Verb
from tests.support.group_broker import GroupBroker, bodies_of, receipts_of, running
from tests.support.stored import bodies, copy_running, until


async def _dead(broker: GroupBroker, count: int) -> list[dict[str, str]]:
    """Wait until so many are marked; return the properties of what is in the topic."""
    await until(lambda: broker.groups.stats().dead_letters_total == count)
    topic = broker.store.topic("dead")
    fetched = await broker.store.read(topic, 0, 0, max_messages=1000, max_bytes=1 << 20)
    return [each.batch.properties(row) for each in fetched.slices for row in each.rows]


async def _group_of_two_topics(broker: GroupBroker) -> None:
    """Make "t", "u", and a group of both whose dead letters go to "dead"."""
    for name in ("t", "u", "dead"):
        await broker.topic(name)
    both = {"t": TopicSpec(), "u": TopicSpec()}
    await broker.group(topics=both, dead_letter_topic="dead")


async def test_what_is_rejected_or_fails_too_often_is_a_dead_letter(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(max_attempts=2, backoff_ms=[0], dead_letter_topic="dead")
        await broker.publish(["x", "y"], key="k", tag="v", properties={"mine": "1"})
        first = await broker.receive()
        assert await broker.settle(receipts_of(first)[:1], Verb.REJECT) == [Status.DONE]
        assert await broker.settle(receipts_of(first)[1:], Verb.NACK) == [Status.DONE]
        again = await broker.receive()
        assert bodies_of(again) == ["y"]
        assert await broker.settle(again, Verb.NACK) == [Status.DONE]
        found = await _dead(broker, 2)
        common = {
            "mine": "1",
            "holdfast-dead-topic": "t",
            "holdfast-dead-queue": "0",
            "holdfast-dead-group": "g",
        }
        assert found == [
            {
                **common,
                "holdfast-dead-offset": "0",
                "holdfast-dead-reason": "rejected",
                "holdfast-dead-attempts": "1",
            },
            {
                **common,
                "holdfast-dead-offset": "1",
                "holdfast-dead-reason": "max-attempts",
                "holdfast-dead-attempts": "2",
            },
        ]
        topic = broker.store.topic("dead")
        fetched = await broker.store.read(topic, 0, 0, max_messages=10, max_bytes=1 << 20)
        assert bodies(fetched) == [b"x", b"y"]
        assert {each.batch.key(row) for each in fetched.slices for row in each.rows} == {"k"}
        assert {each.batch.tag(row) for each in fetched.slices for row in each.rows} == {"v"}
        queue = broker.groups.describe("g").topics[0].queues[0]
        assert (queue.dead, queue.floor, queue.in_flight) == (2, 2, 0)
        assert await broker.settle(first, Verb.REJECT) == [Status.DONE, Status.STALE]


async def test_a_letter_that_was_appended_before_a_crash_is_not_appended_again(
    tmp_path: Path,
) -> None:
    async with running(tmp_path / "data") as broker:
        await broker.topic()
        await broker.group(dead_letter_topic="dead")
        await broker.publish(["x", "y", "z"])
        held = await broker.receive()
        served = broker.groups._served.by_name["g"]
        # Nothing is marked: the crash comes before that, whatever was appended.
        marked = served.core.dead_lettered
        served.core.dead_lettered = lambda *letter: False  # type: ignore[method-assign]
        await broker.settle(held, Verb.REJECT)
        await until(lambda: broker.store.max_offset((2, 0)) == 3)
        await broker.publish("more")
        copy_running(tmp_path / "data", tmp_path / "crashed")
        served.core.dead_lettered = marked  # type: ignore[method-assign]
    async with running(tmp_path / "crashed") as broker:
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "1", "2"]
        assert bodies_of(await broker.receive()) == ["more"]
    async with running(tmp_path / "crashed") as broker:
        assert broker.groups.describe("g").dying == 0
        assert broker.groups.describe("g").topics[0].queues[0].dead == 3


async def test_letters_are_sent_at_the_next_start_when_the_log_took_none(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(dead_letter_topic="dead")
        await broker.publish(["x", "y"])

        async def refuse(*args: object, **kwargs: object) -> list[object]:
            raise LogError("no room")

        publish = broker.store.publish
        broker.store.publish = refuse  # type: ignore[assignment]
        await broker.settle(await broker.receive(), Verb.REJECT)
        assert broker.groups.describe("g").dying == 2
        broker.store.publish = publish
    async with running(tmp_path) as broker:
        assert len(await _dead(broker, 2)) == 2


async def test_a_group_goes_elsewhere_only_when_its_letters_have_gone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "GONE_S", 60.0)
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(dead_letter_topic="dead")
        await broker.publish(["x", "y"])
        goes_on = asyncio.Event()
        publish = broker.store.publish

        async def hesitate(*args: Any, **kwargs: Any) -> Any:
            await goes_on.wait()
            return await publish(*args, **kwargs)

        broker.store.publish = hesitate
        await broker.settle(await broker.receive(), Verb.REJECT)
        seek = asyncio.create_task(broker.groups.seek("g", {"t": {0: 2}}))
        await asyncio.sleep(0)
        goes_on.set()
        assert await seek == {"t": {0: 2}}
        assert len(await _dead(broker, 2)) == 2


async def test_a_group_whose_letters_cannot_go_stays_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "GONE_S", 0)
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(dead_letter_topic="dead")
        await broker.publish(["x", "y"])

        async def refuse(*args: object, **kwargs: object) -> list[object]:
            raise LogError("no room")

        broker.store.publish = refuse  # type: ignore[assignment]
        await broker.settle(await broker.receive(), Verb.REJECT)
        with pytest.raises(StateUnavailable, match="try again later"):
            await broker.groups.seek("g", "latest")
        assert broker.groups.describe("g").dying == 2


async def test_without_a_topic_for_them_dead_letters_are_dropped(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group()
        await broker.publish(["x"])
        await broker.settle(await broker.receive(), Verb.REJECT)
        queue = broker.groups.describe("g").topics[0].queues[0]
        assert (queue.dead, queue.floor) == (1, 1)


async def test_a_letter_whose_message_is_trimmed_is_not_waited_for(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.group(dead_letter_topic="dead")
        await broker.publish(["x", "y"])
        held = await broker.receive()
        served = broker.groups._served.by_name["g"]
        letters = served._letters
        sent: list[object] = []
        letters.send = sent.extend  # type: ignore[method-assign, assignment]
        await broker.settle(held, Verb.REJECT)
        del letters.send
        served.trimmed((1, 0), 1)
        letters.send(sent)  # type: ignore[arg-type]
        found = await _dead(broker, 1)
        assert [each["holdfast-dead-offset"] for each in found] == ["1"]
        assert NOT_KEPT not in {each.queue for each in broker.groups.describe("g").topics[0].queues}


async def test_a_topic_that_is_let_go_while_its_letter_is_read_stops_no_other_letter(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        await broker.publish("x", "t")
        await broker.publish("y", "u")
        of_t = await broker.receive(topics=["t"])
        of_u = await broker.receive(topics=["u"])
        delivering = broker.groups._served.by_name["g"]._delivering
        batch, is_asked, goes_on = delivering.batch, asyncio.Event(), asyncio.Event()

        async def hesitate(*args: Any, **how: Any) -> Any:
            is_asked.set()
            await goes_on.wait()
            return await batch(*args, **how)

        delivering.batch = hesitate  # type: ignore[method-assign]
        await broker.settle(of_t, Verb.REJECT)
        await is_asked.wait()
        await broker.group(topics={"u": TopicSpec()}, dead_letter_topic="dead")
        goes_on.set()
        await broker.settle(of_u, Verb.REJECT)
        await until(lambda: broker.groups.stats().dead_letters_total == 1)
        fetched = await broker.store.read(
            broker.store.topic("dead"), 0, 0, max_messages=10, max_bytes=1 << 20
        )
        assert bodies(fetched) == [b"y"]


@pytest.mark.parametrize(
    ("most", "together"), [(1, [1, 1, 1]), (10_000, [1, 1, 1]), (11_000, [2, 1]), (40_000, [3])]
)
async def test_large_letters_go_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, together: list[int]
) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE_BYTES", most)
    async with running(tmp_path) as broker:
        await broker.topic()
        await broker.topic("dead")
        await broker.group(dead_letter_topic="dead")
        await broker.publish([letter * 10_000 for letter in "xyz"])
        publish, sizes = broker.store.publish, []

        async def counted(*args: Any, **how: Any) -> Any:
            sizes.append(len(args[1]))
            return await publish(*args, **how)

        broker.store.publish = counted
        await broker.settle(await broker.receive(), Verb.REJECT)
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "1", "2"]
        assert sizes == together


async def test_a_group_that_lets_a_topic_go_moves_nowhere_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "GONE_S", 60.0)
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        await broker.publish("x", "t")
        publish, goes_on = broker.store.publish, asyncio.Event()

        async def hesitate(*args: Any, **kwargs: Any) -> Any:
            await goes_on.wait()
            return await publish(*args, **kwargs)

        broker.store.publish = hesitate
        await broker.settle(await broker.receive(), Verb.REJECT)
        seek = asyncio.create_task(broker.groups.seek("g", {"t": {0: 1}, "u": {0: 0}}))
        await asyncio.sleep(0)
        await broker.group(topics={"u": TopicSpec()}, dead_letter_topic="dead")
        goes_on.set()
        assert await seek == {"u": {0: 0}}
