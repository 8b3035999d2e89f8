"""When a group that has no member is due to be deleted."""

from holdfast.groups.core.unused import UnusedTime


def test_a_group_is_due_when_it_was_unused_for_its_limit() -> None:
    unused = UnusedTime()
    unused.update(1_000, is_used=False, now_ms=5)
    unused.update(1_000, is_used=False, now_ms=500)
    assert [unused.take_due(at) for at in (1_004, 1_005, 1_006)] == [False, True, False]
    unused.update(1_000, is_used=False, now_ms=2_000)  # it is being deleted
    unused.postpone(3_000)
    assert (unused.take_due(2_999), unused.take_due(3_000)) == (False, True)


def test_a_use_and_a_new_limit_begin_a_new_time() -> None:
    unused = UnusedTime()
    unused.update(1_000, is_used=False, now_ms=0)
    unused.update(1_000, is_used=True, now_ms=900)
    assert not unused.take_due(1_000)
    unused.update(1_000, is_used=False, now_ms=950)
    assert not unused.take_due(1_949)
    unused.update(200, is_used=False, now_ms=1_000)
    assert unused.due_ms == 1_200
    unused.update(0, is_used=False, now_ms=1_100)
    assert not unused.take_due(5_000)


def test_a_group_that_was_used_after_its_report_is_due_again() -> None:
    unused = UnusedTime()
    unused.update(10, is_used=False, now_ms=0)
    assert unused.take_due(10)
    unused.update(10, is_used=True, now_ms=11)
    unused.postpone(12)  # it is not reported any more
    assert unused.due_ms is None
    unused.update(10, is_used=False, now_ms=20)
    assert unused.take_due(30)
