from hypothesis import given
from hypothesis import strategies as st

from holdfast.holdservice.deadlines import TICKS_PER_S, Deadlines


def test_nothing_is_due_before_its_deadline() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 10.0)
    assert deadlines.due(9.999) == []
    assert deadlines.due(10.0) == ["a"]
    assert deadlines.due(10.0) == []


def test_what_is_due_together_comes_by_deadline_and_then_by_turn() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for name, deadline in [("late", 1.004), ("a", 1.001), ("b", 1.001), ("soon", 0.2)]:
        deadlines.add(name, deadline)
    assert deadlines.due(2.0) == ["soon", "a", "b", "late"]


def test_the_next_moment_passes_over_what_was_removed() -> None:
    deadlines: Deadlines[str] = Deadlines()
    deadlines.add("a", 1.0)
    deadlines.add("b", 2.0)
    assert deadlines.next() == 1.0
    deadlines.remove("a", 1.0)
    assert deadlines.next() == 2.0
    deadlines.remove("b", 2.0)
    assert deadlines.next() is None
    assert len(deadlines) == 0


def test_what_came_and_went_leaves_nothing_but_its_tick() -> None:
    deadlines: Deadlines[int] = Deadlines()
    for number in range(10_000):
        deadlines.add(number, 60.0 + number / 10_000)
        deadlines.remove(number, 60.0 + number / 10_000)
    assert len(deadlines._ticks) <= TICKS_PER_S + 1
    assert list(deadlines) == []


times = st.floats(0, 1e6) | st.integers(0, 5 * TICKS_PER_S).map(lambda tick: tick / TICKS_PER_S)


@given(st.lists(times), times)
def test_a_deadline_is_never_early_and_at_most_a_tick_late(given: list[float], now: float) -> None:
    deadlines: Deadlines[int] = Deadlines()
    for item, deadline in enumerate(given):
        deadlines.add(item, deadline)
    due = deadlines.due(now)
    assert due == sorted(due, key=given.__getitem__)
    for item, deadline in enumerate(given):
        if deadline > now:
            assert item not in due
        elif deadline <= now - 1 / TICKS_PER_S:
            assert item in due
    following = deadlines.next()
    assert len(deadlines) == len(given) - len(due) == len(list(deadlines))
    if following is not None:
        assert following > now
        assert deadlines.due(following)


def test_no_more_are_taken_than_asked_for_and_the_rest_stay_due() -> None:
    deadlines: Deadlines[str] = Deadlines()
    for item, deadline in (("b", 1.0002), ("a", 1.0001), ("c", 1.0003), ("d", 2.0)):
        deadlines.add(item, deadline)
    assert deadlines.crowd() == 3
    assert deadlines.due(1.5, 2) == ["a", "b"]
    assert len(deadlines) == 2
    assert deadlines.next() is not None
    assert deadlines.due(1.5, 2) == ["c"]
    assert deadlines.crowd() == 1
    assert deadlines.due(3.0, 2) == ["d"]
    assert deadlines.crowd() == 0
    assert deadlines.next() is None
