"""Memory for leases, delays and timers: it depends on their current number, not on past ones."""

from holdfast.groups.core.selection import MIN_RETURNED, OrderedSelection
from holdfast.groups.core.settling import Verb
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import MIN_OUTDATED, Lease, Leases
from tests.groups.queues import Stage, settle


def _lease(offset: int, deadline_ms: int) -> Lease:
    return Lease(Head(offset), "a", offset + 1, deadline_ms, 0, 1)


def test_short_leases_leave_no_deadlines_next_to_a_long_lease() -> None:
    leases = Leases()
    leases.add([_lease(0, 1_000)])
    for offset in range(1, 1_000):
        leases.add([_lease(offset, 2_000 + offset)])
        leases.remove(offset)
    assert len(leases._deadlines) < 100
    assert leases.next_deadline() == 1_000
    leases.remove(0)
    assert leases.next_deadline() is None


def test_short_leases_leave_no_timers_next_to_a_long_lease() -> None:
    stage = Stage({1: 1, 2: 1})
    stage.publish(1, (1, 0))
    held = stage.take("slow", lease_ms=3_600_000)
    ends = stage.group.next_deadline()
    for _ in range(1_000):
        stage.publish(1, (2, 0))
        stage.now += 1
        settle(stage, Verb.ACK, stage.take("quick", lease_ms=7_200_000))
    assert len(stage.group._timers._heap) <= MIN_OUTDATED + 4
    assert stage.group.next_deadline() == ends
    settle(stage, Verb.ACK, held)


def test_returned_messages_do_not_pile_up_for_an_unused_filter() -> None:
    stage = Stage()
    stage.publish(3, tag="a")
    stage.publish(1, tag="b")
    assert stage.offsets("once", filter="b") == [3]
    for _ in range(1_000):
        settle(stage, Verb.RELEASE, stage.take("often", 3))
    selection = stage.group.topics[1].lanes[0].selection
    assert isinstance(selection, OrderedSelection)
    assert all(len(each.returned) <= MIN_RETURNED + 6 for each in selection._pointers.values())
    assert stage.offsets("late", filter="a") == [0, 1, 2]
