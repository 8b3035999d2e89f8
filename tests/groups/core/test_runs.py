"""Messages selected in runs: the result and the fairness are the same as one by one."""

import random
from collections import defaultdict
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import COSTS, FAIR_ENGINES, MODES
from holdfast.groups.core.fair_set import HeadCost
from holdfast.groups.core.group import Group
from holdfast.groups.core.group_topic import GroupTopic, Offer, Run, truncate_run
from holdfast.groups.core.selection import READ_AHEAD
from holdfast.groups.core.settling import Verb
from holdfast.groups.cursor.cursor import Cursor
from tests.groups.queues import Stage, settle
from tests.groups.world import World

WEIGHTS = {topic_id: 4 * (topic_id + 1) for topic_id in range(10)}

engines = pytest.mark.parametrize("engine", FAIR_ENGINES)


class OneByOneTopic(GroupTopic):
    """A topic from which each message is selected alone."""

    def select_run(self, offered: Offer, *how: Any) -> Run:
        return truncate_run(super().select_run(offered, *how), 1)


class OneByOne(Group):
    """A group that selects again after each message."""

    def add_topic(
        self, topic_id: int, *, weight: int = 1, levels: int = 1, filter: object | None = None
    ) -> None:
        super().add_topic(topic_id, weight=weight, levels=levels, filter=filter)
        self.topics[topic_id] = OneByOneTopic(topic_id, levels, filter)


def state_of(group: Group) -> dict[object, object]:
    """Return all state that depends on the past deliveries of a group."""
    fair = group.fair
    found: dict[object, object] = {
        "served": dict(fair.served),
        "charged": dict(fair.charged),
        "standing": {flow: fair.standing(flow) for flow in group.topics},
        "active": {flow: fair.is_active(flow) for flow in group.topics},
        "available": group.available(),
        "in flight": group.in_flight,
        "deadline": group.next_deadline(),
    }
    for topic in group.topics.values():
        found[topic.topic_id] = [[lane.key for lane in lanes] for lanes in topic.rotations]
        for lane in topic.lanes.values():
            found[lane.key] = state_of_cursor(lane.cursor)
    return found | {"in flight": {m: group.in_flight.count_of(m) for m in group.members}}


def state_of_cursor(cursor: Cursor) -> tuple[object, ...]:
    leases = [
        (each.head, each.member, each.number, each.deadline_ms, each.attempt, each.charge)
        for each in cursor.leases
    ]
    return (
        *(cursor.epoch, cursor.floor, cursor.next, cursor.end, cursor.available),
        *(cursor.reserved_next, cursor.reserved_durable),
        sorted(leases),
        sorted(cursor.delays),
        sorted(cursor.attempts),
        sorted(cursor.dying),
        cursor.done.chunks(),
    )


@engines
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("mode", MODES)
@settings(max_examples=1, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_a_run_equals_selecting_one_by_one(mode: str, cost: str, engine: str, seed: int) -> None:
    # Q9: runs are the fast path
    print(f"seed {seed}, {mode}, {engine}, {cost}")
    runs, singles = (
        World(seed, mode=mode, engine=engine, cost=cost, make_group=each)
        for each in (Group, OneByOne)
    )
    for _ in range(200):
        runs.step()
        singles.step()
        assert runs.receipts == singles.receipts
        assert state_of(runs.group) == state_of(singles.group)
    assert runs.rng.random() == singles.rng.random()


@engines
@pytest.mark.parametrize("cost", COSTS)
@settings(max_examples=5, deadline=None)
@given(data=st.data())
def test_long_queues_are_shared_as_one_by_one(engine: str, cost: str, data: st.DataObject) -> None:
    """Nearly all steps are receives here, so runs are as long as possible."""
    weights = dict(enumerate(data.draw(st.lists(st.integers(0, 40), min_size=1, max_size=5))))
    queue_counts = {topic_id: data.draw(st.integers(1, 3)) for topic_id in weights}
    rng = data.draw(st.randoms(use_true_random=False))
    stages = [
        Stage({}, make_group=make, engine=engine, cost=cost, max_in_flight=10**6)
        for make in (Group, OneByOne)
    ]
    sizes = [rng.choice([50, 50, 50, 300]) for _ in range(200)]
    for stage in stages:
        for topic_id, weight in weights.items():
            stage.group.add_topic(topic_id, weight=weight)
            for queue in range(queue_counts[topic_id]):
                stage.add_queue((topic_id, queue))
                for size_bytes in sizes:
                    stage.publish(
                        1, (topic_id, queue), size_bytes=size_bytes, tag="xyz"[size_bytes % 3]
                    )
    for _ in range(12):
        member, max_messages = rng.choice("abc"), rng.choice([1, 7, 32, 200])
        asked: dict[str, object] = {
            "max_bytes": rng.choice([400, 5_000, 1 << 40]),
            "settled": rng.random() < 0.1,
            "filter": rng.choice([None, None, "x", "y"]),
        }
        verb, share = rng.choice([Verb.ACK, Verb.NACK, Verb.RELEASE]), rng.random() ** 2
        taken = [stage.take(member, max_messages, **asked) for stage in stages]
        assert taken[0] == taken[1]
        for stage, messages in zip(stages, taken, strict=True):
            stage.later(10)
            messages = messages[: int(share * len(messages))]
            settle(stage, verb, [each for each in messages if each.receipt])
        assert state_of(stages[0].group) == state_of(stages[1].group)


@engines
@pytest.mark.parametrize("cost", COSTS)
@pytest.mark.parametrize("queues", [1, 4])
def test_a_request_of_one_topic_is_one_run(
    engine: str, cost: str, queues: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stage = Stage(queues=queues, engine=engine, cost=cost)
    for queue in range(queues):
        stage.publish(20, (1, queue))
    assert stage.offsets(max_messages=queues) == [0] * queues
    fair = stage.group.fair
    chosen: list[int | None] = []
    select = fair.select

    def counted(head_cost: HeadCost) -> int | None:
        chosen.append(select(head_cost))
        return chosen[-1]

    monkeypatch.setattr(fair, "select", counted)
    messages = stage.take(max_messages=3 * queues + 1)
    assert [message.queue[1] for message in messages[: 2 * queues]] == 2 * list(range(queues))
    assert [message.offset for message in messages if message.queue[1] == 0] == [1, 2, 3, 4]
    assert chosen == [1]


def test_a_receive_of_many_messages_reads_many_at_a_time() -> None:
    stage = Stage(max_in_flight=10_000)
    stage.publish(2_000)
    stage.take(max_messages=256)
    stage.queues.reads.clear()
    assert len(stage.take(max_messages=256)) == 256
    assert [end - start for _, start, end in stage.queues.reads] == [256]
    stage.take(max_messages=10)  # from here on the group reads as many as usual
    stage.queues.reads.clear()
    for _ in range(30):
        stage.take(max_messages=10)
    assert {end - start for _, start, end in stage.queues.reads} == {READ_AHEAD}


@engines
@pytest.mark.parametrize("queues", [1, 4])
@pytest.mark.parametrize("credits", [(1,), (32,), (1_000,), (1, 7, 32, 5)])
def test_shares_follow_the_weights_in_every_reply(
    engine: str, queues: int, credits: tuple[int, ...]
) -> None:  # F2, F3, F8, F15, F19, F21, P2
    stage = Stage(
        WEIGHTS,
        queues=queues,
        engine=engine,
        max_in_flight=10**6,
        max_in_flight_per_member=10**6,
    )
    for topic_id, weight in WEIGHTS.items():
        for queue in range(queues):
            stage.publish(40 * weight // queues, (topic_id, queue))
    rng = random.Random(1)
    served, total = dict.fromkeys(WEIGHTS, 0), sum(WEIGHTS.values())
    offsets: dict[QueueKey, int] = defaultdict(int)
    count = 0

    def assert_fair(topic_id: int) -> None:
        # One quantum and one cost, or two messages.
        bound = WEIGHTS[topic_id] + 1 if engine == "dwrr" else 2
        assert abs(served[topic_id] - count * WEIGHTS[topic_id] / total) <= bound

    while count < 25 * total:
        for message in stage.take(rng.choice("abc"), rng.choice(credits)):
            assert_fair(message.queue[0])  # a topic's share is smallest before its next message
            count += 1
            served[message.queue[0]] += 1
            assert_fair(message.queue[0])
            assert message.offset == offsets[message.queue]
            offsets[message.queue] += 1
            if count == 25 * total:
                assert served == {
                    each: pytest.approx(25 * weight, rel=0.005) for each, weight in WEIGHTS.items()
                }
    for topic_id in WEIGHTS:
        assert_fair(topic_id)
    assert sum(stage.group.fair.served.values()) == count
