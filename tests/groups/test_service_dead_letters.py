"""Dead letters over a real storage: each is stored once, whenever the broker stops."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from holdfast.commitlog.errors import LogError
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.groups.cursor.cursor import NOT_KEPT
from holdfast.groups.service_types import Status, Verb
from holdfast.groups.serving import dead_letters
from holdfast.groups.settings import GroupSettings, Subscription
from tests.support.servers.api_server import raising
from tests.support.servers.group_broker import (
    GroupBroker,
    bodies_of,
    receipts_of,
    running,
    running_group,
    turns,
)
from tests.support.storage.stored import bodies, copy_running, until

_refuse = raising(LogError("no room"))


async def _dead(broker: GroupBroker, count: int) -> list[dict[str, str]]:
    """Wait until `count` letters are marked; return the properties of the letters in the topic."""
    await until(lambda: broker.groups.stats().dead_letters_total == count)
    topic = broker.store.table.get("dead")
    fetched = await broker.store.reading.read(topic, 0, 0, max_messages=1000, max_bytes=1 << 20)
    return [each.batch.properties(row) for each in fetched.slices for row in each.rows]


def _hold_back(owner: object, name: str) -> asyncio.Event:
    """Let each call of a coroutine method wait until the returned event is set."""
    call, goes_on = getattr(owner, name), asyncio.Event()

    async def hesitate(*args: Any, **how: Any) -> Any:
        await goes_on.wait()
        return await call(*args, **how)

    setattr(owner, name, hesitate)
    return goes_on


async def _group_of_two_topics(broker: GroupBroker) -> None:
    """Create "t", "u" and "dead", and a group of "t" and "u" whose dead letters go to "dead"."""
    for name in ("t", "u", "dead"):
        await broker.topic(name)
    both = {"t": Subscription(), "u": Subscription()}
    await broker.group(topics=both, dead_letter_topic="dead")


async def test_a_message_that_is_rejected_or_fails_too_often_becomes_a_dead_letter(
    tmp_path: Path,
) -> None:
    async with running_group(
        tmp_path, max_attempts=2, backoff_ms=[0], dead_letter_topic="dead"
    ) as broker:
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
        topic = broker.store.table.get("dead")
        fetched = await broker.store.reading.read(topic, 0, 0, max_messages=10, max_bytes=1 << 20)
        assert bodies(fetched) == [b"x", b"y"]
        assert {each.batch.key(row) for each in fetched.slices for row in each.rows} == {"k"}
        assert {each.batch.tag(row) for each in fetched.slices for row in each.rows} == {"v"}
        queue = (await broker.groups.describe("g")).topics[0].queues[0]
        assert (queue.dead, queue.floor, queue.in_flight) == (2, 2, 0)
        assert await broker.settle(first, Verb.REJECT) == [Status.DONE, Status.STALE]


async def test_a_letter_that_was_appended_before_a_crash_is_not_appended_again(
    tmp_path: Path,
) -> None:
    async with running_group(
        tmp_path / "data", ["x", "y", "z"], dead_letter_topic="dead"
    ) as broker:
        held = await broker.receive()
        served = broker.groups.registry.by_name["g"]
        # No message is marked: the crash happens before that, after letters were appended.
        marked = served.core.record_dead_letter
        served.core.record_dead_letter = lambda *letter: False  # type: ignore[method-assign]
        await broker.settle(held, Verb.REJECT)
        await until(lambda: broker.store.reading.max_offset((2, 0)) == 3)
        await broker.publish("more")
        copy_running(tmp_path / "data", tmp_path / "crashed")
        served.core.record_dead_letter = marked  # type: ignore[method-assign]
    async with running(tmp_path / "crashed") as broker:
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "1", "2"]
        assert bodies_of(await broker.receive()) == ["more"]
    async with running(tmp_path / "crashed") as broker:
        assert (await broker.groups.describe("g")).dying == 0
        assert (await broker.groups.describe("g")).topics[0].queues[0].dead == 3


async def test_a_message_that_a_seek_redelivers_may_become_a_dead_letter_again(
    tmp_path: Path,
) -> None:
    # Each rejection makes a letter: the previous letter may have been redriven or trimmed.
    async with running_group(tmp_path, ["x"], dead_letter_topic="dead") as broker:
        for count in (1, 2):
            assert await broker.settle(await broker.receive(), Verb.REJECT) == [Status.DONE]
            assert len(await _dead(broker, count)) == count
            await broker.groups.seek("g", "earliest")


async def test_letters_are_sent_at_the_next_start_when_the_log_took_none(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x", "y"], dead_letter_topic="dead") as broker:
        publish = broker.store.publishing.publish
        broker.store.publishing.publish = _refuse  # type: ignore[method-assign, assignment]
        await broker.settle(await broker.receive(), Verb.REJECT)
        assert (await broker.groups.describe("g")).dying == 2
        broker.store.publishing.publish = publish  # type: ignore[method-assign]
    async with running(tmp_path) as broker:
        assert len(await _dead(broker, 2)) == 2


async def test_a_seek_waits_until_dead_letters_are_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DRAIN_TIMEOUT_S", 60.0)
    async with running_group(tmp_path, ["x", "y"], dead_letter_topic="dead") as broker:
        goes_on = _hold_back(broker.store.publishing, "publish")
        await broker.settle(await broker.receive(), Verb.REJECT)
        seek = asyncio.create_task(broker.groups.seek("g", {"t": {0: 2}}))
        await asyncio.sleep(0)
        goes_on.set()
        assert await seek == {"t": {0: 2}}
        assert len(await _dead(broker, 2)) == 2


async def test_a_letter_that_no_segment_holds_is_given_up_and_stops_nothing(tmp_path: Path) -> None:
    # R11: a letter that was too large for a segment was retried forever
    async with running_group(tmp_path, dead_letter_topic="dead") as broker:
        largest = broker.storage.log.largest_batch
        await broker.publish(["x", "y" * (largest - 300), "z"])
        held = await broker.receive(max_bytes=1 << 20)
        assert await broker.settle(held, Verb.REJECT) == [Status.DONE] * 3
        await until(lambda: broker.groups.stats().dead_letters_total == 3)
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "2"]
        assert broker.groups.stats().letters_not_kept_total == {"too-large": 1}
        queue = (await broker.groups.describe("g")).topics[0].queues[0]
        assert (queue.floor, queue.dead, (await broker.groups.describe("g")).dying) == (3, 3, 0)
        assert await broker.groups.seek("g", "earliest") == {"t": {0: 0}}


@pytest.mark.parametrize(("over", "kept"), [(-1, 1), (0, 1), (1, 0)])
async def test_a_letter_of_exactly_the_largest_size_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, over: int, kept: int
) -> None:
    # R11: one byte below, at and above the limit
    async with running_group(tmp_path, ["x"], dead_letter_topic="dead") as broker:
        held = await broker.receive()
        letters = broker.groups.registry.by_name["g"].dead_letters
        make = letters._rows

        def make_and_set_the_limit(*letter: Any) -> Any:
            rows = make(*letter)
            monkeypatch.setattr(broker.storage.log, "largest_batch", rows.total_size - over)
            return rows

        monkeypatch.setattr(letters, "_rows", make_and_set_the_limit)
        await broker.settle(held, Verb.REJECT)
        await until(lambda: broker.groups.stats().dead_letters_total == 1)
        dead = broker.store.table.get("dead").topic_id
        assert broker.store.reading.max_offset((dead, 0)) == kept


async def test_a_letter_of_the_largest_size_is_kept_with_one_that_is_too_large(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R11: of letters that are appended together, only those above the limit are given up
    async with running_group(
        tmp_path, ["x", "larger" * 100, "z"], dead_letter_topic="dead"
    ) as broker:
        held = await broker.receive()
        letters = broker.groups.registry.by_name["g"].dead_letters
        make, sizes = letters._rows, list[int]()

        def make_and_set_the_limit(*letter: Any) -> Any:
            rows = make(*letter)
            sizes.append(rows.total_size)
            monkeypatch.setattr(broker.storage.log, "largest_batch", min(sizes))
            return rows

        monkeypatch.setattr(letters, "_rows", make_and_set_the_limit)
        await broker.settle(held, Verb.REJECT)
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "2"]
        assert broker.groups.stats().letters_not_kept_total == {"too-large": 1}


async def test_letters_that_the_log_does_not_take_for_the_moment_are_sent_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R11: a failed append is retried, and no letter is lost or stored twice
    monkeypatch.setattr(dead_letters, "RETRY_S", 0.01)
    async with running_group(tmp_path, ["x", "y"], dead_letter_topic="dead") as broker:
        letters = broker.groups.registry.by_name["g"].dead_letters
        publish, refused = letters._publish, list[int]()

        async def refuse_twice(topic: Any, some: Any) -> None:
            if len(refused) < 2:
                refused.append(len(some))
                raise OSError(28, "No space left on device")
            await publish(topic, some)

        monkeypatch.setattr(letters, "_publish", refuse_twice)
        await broker.settle(await broker.receive(), Verb.REJECT)
        found = await _dead(broker, 2)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "1"]
        assert refused == [2, 2]
        await broker.publish("z")
        await broker.settle(await broker.receive(), Verb.REJECT)
        assert len(await _dead(broker, 3)) == 3


async def test_a_message_that_cannot_be_read_for_the_moment_holds_up_no_other_letter(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # R11: a letter that fails must not block later letters
    monkeypatch.setattr(dead_letters, "RETRY_S", 0.01)
    async with running_group(tmp_path, ["x", "y", "z"], dead_letter_topic="dead") as broker:
        delivering = broker.groups.registry.by_name["g"]._flow
        batch, is_bad = delivering.batch, True

        async def fail(queue: Any, offset: int) -> Any:
            if offset == 0 and is_bad:
                raise OSError(5, "Input/output error")
            return await batch(queue, offset)

        held = await broker.receive()
        delivering.batch = fail  # type: ignore[method-assign]
        await broker.settle(held, Verb.REJECT)
        found = await _dead(broker, 2)
        assert [each["holdfast-dead-offset"] for each in found] == ["1", "2"]
        is_bad = False
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["1", "2", "0"]


async def test_a_seek_fails_while_dead_letters_cannot_be_appended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DRAIN_TIMEOUT_S", 0)
    async with running_group(tmp_path, ["x", "y"], dead_letter_topic="dead") as broker:
        broker.store.publishing.publish = _refuse  # type: ignore[method-assign, assignment]
        await broker.settle(await broker.receive(), Verb.REJECT)
        with pytest.raises(StateUnavailable, match="try again later"):
            await broker.groups.seek("g", "latest")
        assert (await broker.groups.describe("g")).dying == 2


async def test_without_a_topic_for_them_dead_letters_are_dropped(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x"]) as broker:
        await broker.settle(await broker.receive(), Verb.REJECT)
        queue = (await broker.groups.describe("g")).topics[0].queues[0]
        assert (queue.dead, queue.floor) == (1, 1)


async def test_a_letter_whose_message_is_trimmed_is_not_waited_for(tmp_path: Path) -> None:
    async with running_group(tmp_path, ["x", "y"], dead_letter_topic="dead") as broker:
        held = await broker.receive()
        served = broker.groups.registry.by_name["g"]
        letters = served.dead_letters
        sent: list[object] = []
        letters.add = sent.extend  # type: ignore[method-assign, assignment]
        await broker.settle(held, Verb.REJECT)
        del letters.add
        served.note_log_start((1, 0), 1)
        letters.add(sent)  # type: ignore[arg-type]
        served.after_change()
        found = await _dead(broker, 1)
        assert [each["holdfast-dead-offset"] for each in found] == ["1"]
        assert NOT_KEPT not in {
            each.queue for each in (await broker.groups.describe("g")).topics[0].queues
        }


async def test_removing_a_topic_while_its_letter_is_read_stops_no_other_letter(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        await broker.publish("x", "t")
        await broker.publish("y", "u")
        of_t = await broker.receive(topics=["t"])
        of_u = await broker.receive(topics=["u"])
        delivering = broker.groups.registry.by_name["g"]._flow
        batch, is_asked, goes_on = delivering.batch, asyncio.Event(), asyncio.Event()

        async def hesitate(*args: Any, **how: Any) -> Any:
            is_asked.set()
            await goes_on.wait()
            return await batch(*args, **how)

        delivering.batch = hesitate  # type: ignore[method-assign]
        await broker.settle(of_t, Verb.REJECT)
        await is_asked.wait()
        await broker.store.topics.delete("t")
        served = broker.groups.registry.by_name["g"]
        await until(lambda: len(served.core.topics) == 1)
        goes_on.set()
        await broker.settle(of_u, Verb.REJECT)
        await until(lambda: broker.groups.stats().dead_letters_total == 1)
        fetched = await broker.store.reading.read(
            broker.store.table.get("dead"), 0, 0, max_messages=10, max_bytes=1 << 20
        )
        assert bodies(fetched) == [b"y"]


@pytest.mark.parametrize(
    ("most", "together"), [(1, [1, 1, 1]), (10_000, [1, 1, 1]), (11_000, [2, 1]), (40_000, [3])]
)
async def test_large_letters_go_few_at_a_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, together: list[int]
) -> None:
    monkeypatch.setattr(dead_letters, "AT_ONCE_BYTES", most)
    async with running_group(
        tmp_path, [letter * 10_000 for letter in "xyz"], dead_letter_topic="dead"
    ) as broker:
        publish, sizes = broker.store.publishing.publish, []

        async def counted(*args: Any, **how: Any) -> Any:
            sizes.append(len(args[1]))
            return await publish(*args, **how)

        broker.store.publishing.publish = counted  # type: ignore[method-assign]
        await broker.settle(await broker.receive(), Verb.REJECT)
        found = await _dead(broker, 3)
        assert [each["holdfast-dead-offset"] for each in found] == ["0", "1", "2"]
        assert sizes == together


async def test_a_group_that_lets_a_topic_go_moves_nowhere_in_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dead_letters, "DRAIN_TIMEOUT_S", 60.0)
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        await broker.publish("x", "t")
        goes_on = _hold_back(broker.store.publishing, "publish")
        await broker.settle(await broker.receive(), Verb.REJECT)
        seek = asyncio.create_task(broker.groups.seek("g", {"t": {0: 1}, "u": {0: 0}}))
        await asyncio.sleep(0)
        await broker.store.topics.delete("t")
        goes_on.set()
        assert await seek == {"u": {0: 0}}


# -- the group drops rejected messages ---------------------------------------------------------


async def _reject_all(broker: GroupBroker, count: int) -> None:
    """Reject `count` messages of "t" in one request, in the group of "t" and "u"."""
    await broker.publish([str(number) for number in range(count)], "t")
    held = await broker.receive(count)
    assert await broker.settle(held, Verb.REJECT) == [Status.DONE] * count


@pytest.mark.parametrize("is_made", [True, False])
@pytest.mark.parametrize(
    "change",
    [
        {"topics": {"u": Subscription()}},
        {"topics": {"u": Subscription()}, "dead_letter_topic": ""},
        {"dead_letter_topic": ""},
        {"dead_letter_topic": "elsewhere"},
        None,
    ],
)
async def test_a_rejected_message_becomes_a_dead_letter_before_its_topic_is_removed(
    tmp_path: Path, change: dict[str, Any] | None, is_made: bool
) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "u", "dead")[: 2 + is_made]:
            await broker.topic(name)
        both = {"t": Subscription(), "u": Subscription()}
        await broker.group(topics=both, dead_letter_topic="dead")
        await _reject_all(broker, 200)
        if change is None:
            await broker.groups.delete_group("g")
        else:
            await broker.groups.put_group("g", GroupSettings(**change))
        assert broker.store.reading.max_offset((broker.store.table.get("dead").topic_id, 0)) == 200
        assert not broker.groups.stats().letters_not_kept_total


async def test_a_topic_becomes_a_dead_letter_topic_after_its_own_letters_are_appended(
    tmp_path: Path,
) -> None:
    async with running(tmp_path) as broker:
        for name in ("t", "dead", "x"):
            await broker.topic(name)
        await broker.group(topics={"t*": Subscription()}, dead_letter_topic="dead")
        await _reject_all(broker, 200)
        await broker.group("h", topics="x", dead_letter_topic="t")
        assert broker.groups.registry.by_name["g"].core.topics == {}
        assert broker.store.reading.max_offset((broker.store.table.get("dead").topic_id, 0)) == 200


@pytest.mark.parametrize("change", ["topics", "dead_letter_topic", "delete", "by pattern"])
async def test_a_group_whose_letters_cannot_go_is_not_changed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, change: str
) -> None:
    monkeypatch.setattr(dead_letters, "DRAIN_TIMEOUT_S", 0)
    async with running(tmp_path) as broker:
        for name in ("t", "u", "dead"):
            await broker.topic(name)
        both = {"t*": Subscription(), "u": Subscription()}
        before = await broker.group(topics=both, dead_letter_topic="dead")

        await broker.publish(["x", "y"], "t")
        broker.store.publishing.publish = _refuse  # type: ignore[method-assign, assignment]
        await broker.settle(await broker.receive(1), Verb.REJECT)
        with pytest.raises(StateUnavailable, match="try again later"):
            if change == "topics":
                await broker.groups.put_group("g", GroupSettings(topics={"u": Subscription()}))
            elif change == "dead_letter_topic":
                await broker.groups.put_group("g", GroupSettings(dead_letter_topic=""))
            elif change == "delete":
                await broker.groups.delete_group("g")
            else:
                await broker.group("h", topics="u", dead_letter_topic="t")
        assert broker.groups.groups() == ["g"]
        assert broker.groups.group_state("g") == before
        assert (await broker.groups.describe("g")).dying == 1
        assert await broker.settle(await broker.receive()) == [Status.DONE], "it goes on"


async def test_nothing_is_rejected_while_a_topic_is_removed(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        await broker.publish("x", "t")
        held = await broker.receive()
        commit, rejecting = broker.store.state.commit, []

        async def slowly(changes: Any) -> None:
            rejecting.append(asyncio.create_task(broker.settle(held, Verb.REJECT)))
            await turns(10)
            assert not rejecting[0].done()
            await commit(changes)

        broker.store.state.commit = slowly  # type: ignore[method-assign]
        await broker.groups.put_group("g", GroupSettings(topics={"u": Subscription()}))
        assert await rejecting[0] != [Status.DONE]


async def test_letters_of_a_deleted_topic_are_given_up_with_a_log_line(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with running(tmp_path) as broker:
        await _group_of_two_topics(broker)
        goes_on = _hold_back(broker.groups.registry.by_name["g"].dead_letters, "_publish")
        await _reject_all(broker, 200)
        await broker.store.topics.delete("t")
        goes_on.set()
        dead = (broker.store.table.get("dead").topic_id, 0)

        def not_kept() -> int:
            return broker.groups.stats().letters_not_kept_total.get("unreadable", 0)

        await until(lambda: not_kept() + (broker.store.reading.max_offset(dead) or 0) >= 200)
        lines = [line for line in caplog.messages if "is not kept" in line]
        assert len(lines) == not_kept() > 0
