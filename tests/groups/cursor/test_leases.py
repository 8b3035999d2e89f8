"""Memory for leases, delays and timers: it depends on their current number, not on past ones."""

import pickle

from holdfast.groups.core.settling import Verb
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import NO_DEADLINE, Deadlines, Lease, Leases
from tests.groups.queues import Stage, settle


def size_of(thing: object) -> int:
    return len(pickle.dumps(thing))


def _lease(offset: int, deadline_ms: int) -> Lease:
    return Lease(Head(offset), "a", offset + 1, deadline_ms, 0, 1)


def test_short_leases_leave_no_deadlines_next_to_a_long_lease() -> None:
    leases = Leases()
    leases.add([_lease(0, 1_000)])
    before = size_of(leases)
    for offset in range(1, 1_000):
        leases.add([_lease(offset, 2_000 + offset)])
        leases.remove(offset)
    assert size_of(leases) < before + 1_500, "about a hundred entries"
    assert leases.next_deadline() == 1_000
    leases.remove(0)
    assert leases.next_deadline() is None


def test_extending_leases_leaves_no_deadlines() -> None:  # I16
    stage = Stage()
    stage.publish(100)
    messages, leases = stage.take("a", 1), stage.cursor().leases
    before = size_of(leases)
    for _ in range(5_000):
        settle(stage, Verb.EXTEND, messages, lease_ms=20_000)
        settle(stage, Verb.RELEASE, stage.take("b", 1))
    assert size_of(leases) < before + 3_000, "about two hundred entries"


def test_short_deadlines_leave_no_entries_next_to_a_long_deadline() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.set("long", 1_000_000)
    before = size_of(deadlines)
    for now_ms in range(1_000):
        deadlines.set("short", 2_000_000 + now_ms)
        deadlines.set("short", None)
    assert size_of(deadlines) < before + 1_500, "about a hundred entries"
    assert deadlines.next_deadline() == 1_000_000
    assert deadlines.take_due(1_000_000, 5) == ["long"]


def test_returned_messages_do_not_pile_up_for_an_unused_filter() -> None:
    stage = Stage()
    stage.publish(3, tag="a")
    stage.publish(1, tag="b")
    assert stage.offsets("once", filter="b") == [3]
    lane = stage.group.topics[1].lanes[0]
    before = size_of(lane.selection)
    for _ in range(1_000):
        settle(stage, Verb.RELEASE, stage.take("often", 3))
        lane.cursor.notes.leases.clear()
    assert size_of(lane.selection) < before + 6_000, "a few hundred entries"
    assert stage.offsets("late", filter="a") == [0, 1, 2]


def test_bound_leases_have_no_deadlines() -> None:
    leases = Leases()
    for offset in range(500):
        leases.add([_lease(offset, NO_DEADLINE)])
    assert leases.next_deadline() is None
    leases.add([_lease(500, 1_000)])
    for deadline_ms in range(2_000, 5_000):  # the heap is rebuilt
        lease = leases.get(500)
        assert lease is not None
        leases.extend(lease, deadline_ms)
    assert [each.head.offset for each in leases.find_due(NO_DEADLINE - 1, 1_000)] == [500]
    leases.remove(500)
    assert leases.next_deadline() is None
    assert len(leases.of_member("a")) == 500
