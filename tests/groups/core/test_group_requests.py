"""A group in steps: waiting requests, requests that are skipped, and messages examined only
once."""

import itertools
from collections.abc import Iterator

import pytest

from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core.group import Group
from holdfast.groups.core.receiving import serve
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.cursor.cursor import State
from tests.groups.queues import Stage, park, served, settle

engines = pytest.mark.parametrize("engine", FAIR_ENGINES)


# -- skipped requests ----------------------------------------------------------------------------


def test_a_full_member_is_skipped_and_blocks_no_other_member() -> None:  # Q27, Q11
    stage = Stage(max_in_flight_per_member=2)
    stage.publish(2)
    held = stage.take("a")
    park(stage, "a")
    park(stage, "b")
    stage.publish(2)
    assert served(stage) == [("b", [2, 3])]
    stage.publish(1)
    assert served(stage) == []
    settle(stage, Verb.ACK, held)
    assert served(stage) == [("a", [4])]


def test_a_member_that_lost_a_race_keeps_its_credit() -> None:  # Q11, L15
    stage = Stage(max_in_flight_per_member=3)
    park(stage, "a", 3)
    park(stage, "b", 3)
    stage.publish(1)
    assert served(stage) == [("a", [0])]
    assert stage.group.in_flight.room("b") == 3
    stage.publish(3)
    assert served(stage) == [("b", [1, 2, 3])]


@engines
def test_a_flooded_topic_does_not_starve_a_light_topic(engine: str) -> None:  # F1
    stage = Stage({1: 100, 2: 1}, engine=engine, max_in_flight=10**6)
    stage.publish(50, (2, 0))
    counts = {1: 0, 2: 0}
    while sum(counts.values()) < 1_010:
        stage.publish(20, (1, 0))  # more messages arrive than are received
        messages = stage.take(max_messages=10)
        settle(stage, Verb.ACK, messages)
        for message in messages:
            counts[message.queue[0]] += 1
    assert counts[2] == pytest.approx(10, abs=1)


@engines
@pytest.mark.parametrize("backlogs", [(600, 600), (600, 60_000), (60_000, 300)])
def test_shares_do_not_depend_on_the_backlogs(engine: str, backlogs: tuple[int, int]) -> None:  # F3
    stage = Stage({1: 2, 2: 1}, engine=engine, max_in_flight=10**6)
    for topic_id, count in enumerate(backlogs, 1):
        stage.publish(count, (topic_id, 0))
    messages = [message for _ in range(30) for message in stage.take(max_messages=30)]
    assert sum(message.queue[0] == 1 for message in messages) == pytest.approx(600, abs=2)


# -- room ----------------------------------------------------------------------------------------


def test_no_room_is_lost_when_all_is_settled_and_waiting_reads_nothing() -> None:  # F12, P12
    stage = Stage(max_in_flight_per_member=4, lease_ms=5_000, has_dead_letters=False)
    stage.publish(40)
    ends = itertools.cycle((Verb.ACK, Verb.RELEASE, Verb.REJECT, None))
    while messages := stage.take("ab"[stage.now % 2], 3):
        verb = next(ends)
        if verb is None:
            stage.later(5_001)
        else:
            settle(stage, verb, messages)
    assert (stage.group.lease_count, stage.group.in_flight.count_of("a")) == (0, 0)
    assert stage.group.in_flight.room("b") == 4
    park(stage, "a")
    stage.queues.reads.clear()
    assert served(stage) == served(stage) == []
    assert stage.queues.reads == []


def test_settling_makes_room_for_the_next_message_at_once() -> None:  # F14
    stage = Stage(max_in_flight=1)
    stage.publish(3)
    messages = stage.take("a")
    for offset in (1, 2):
        park(stage, "a")
        assert served(stage) == []
        settle(stage, Verb.ACK, messages)
        ((_, reply),) = serve(stage.group, stage.now)
        messages = reply.messages  # type: ignore[union-attr]
        assert [message.offset for message in messages] == [offset]


# -- events that wake requests, and events that do not -------------------------------------------


def test_late_notices_of_an_end_wake_nothing() -> None:  # L12
    stage = Stage()
    stage.publish(3)
    settle(stage, Verb.ACK, stage.take())
    park(stage, "a")
    assert served(stage) == []
    stage.queues.reads.clear()
    for end in (3, 1, 2):
        stage.group.note_end((1, 0), end)
        assert served(stage) == []
    assert (stage.cursor().end, stage.queues.reads) == (3, [])


@pytest.mark.parametrize("whose", ["the group's", "the member's"])
def test_messages_that_do_not_match_do_not_wake_and_are_scanned_once(
    whose: str,
) -> None:  # L13, L14
    stage = Stage(filter="y" if whose == "the group's" else None)
    filter = "y" if whose == "the member's" else None
    park(stage, "a", filter=filter)
    for _ in range(10):
        stage.publish(1_000, tag="x")
        assert served(stage) == []
    assert sum(end - start for _, start, end in stage.queues.reads) == 10_000
    (waiter,) = stage.group.tick(stage.now + 5_000)
    assert waiter.ticket == "a"
    stage.queues.reads.clear()
    stage.now += 5_000
    assert stage.take(filter=filter) == []
    assert stage.queues.reads == []
    park(stage, "a", filter=filter)
    stage.publish(1, tag="y")
    assert served(stage) == [("a", [10_000])]


def test_available_counts_new_messages_of_an_idle_group() -> None:  # A36
    stage = Stage()
    stage.publish(10)
    messages = stage.take()
    settle(stage, Verb.ACK, messages[:3] + messages[5:7])
    assert stage.ask(max_messages=0).available == 0
    stage.publish(100)
    assert stage.ask(max_messages=0).available == 100
    settle(stage, Verb.RELEASE, messages[3:5])
    assert stage.ask(max_messages=0).available == 102


# -- one message, three actors -------------------------------------------------------------------

#: The steps of each actor, in order; the test tries every interleaving.
ACTORS = {
    "a": ("receive", Verb.ACK, Verb.RELEASE),
    "b": ("receive", Verb.NACK, "receive", Verb.ACK),
    "world": ("the lease ends", "a leaves", "the lease ends"),
}


def mixed(left: dict[str, int]) -> Iterator[tuple[str, ...]]:
    """Yield every interleaving of the actors' steps."""
    if not any(left.values()):
        yield ()
    for actor, count in left.items():
        if count:
            for rest in mixed({**left, actor: count - 1}):
                yield (actor, *rest)


def holder_of(group: Group) -> str | None:
    leases = list(group.topics[1].lanes[0].cursor.leases)
    assert len(leases) == group.lease_count <= 1
    return leases[0].member if leases else None


def test_a_message_has_one_owner_and_one_end_in_every_interleaving() -> None:  # Q4, I4
    outcomes = set()
    for order in mixed({actor: len(steps) for actor, steps in ACTORS.items()}):
        stage = Stage(lease_ms=5_000, backoff_ms=())
        stage.publish()
        steps = {actor: iter(each) for actor, each in ACTORS.items()}
        held: dict[str, list[SelectedMessage]] = {"a": [], "b": []}
        ends = 0
        for actor in order:
            step, was_done = next(steps[actor]), stage.cursor().floor == 1
            holder = holder_of(stage.group)
            if step == "receive":
                messages = stage.take(actor)
                assert bool(messages) == (not was_done and holder is None), order
                held[actor] = messages or held[actor]
            elif step == "the lease ends":
                stage.later(5_000)
            elif step == "a leaves":
                stage.group.leave("a", stage.now)
            elif held[actor]:
                assert isinstance(step, Verb)
                (status,) = settle(stage, step, held[actor])
                # A member cannot settle a message that another member holds.
                assert status is Status.STALE or holder in (actor, None), order
                is_end = stage.cursor().floor == 1 and not was_done
                assert not is_end or (status is Status.DONE and step is Verb.ACK)
                ends += is_end
            assert not was_done or stage.cursor().floor == 1, "what has ended comes not back"
            assert holder_of(stage.group) is None or stage.cursor().floor == 0
        assert ends == (stage.cursor().state(0) is State.DONE) <= 1
        outcomes.add(ends)
    assert outcomes == {0, 1}
