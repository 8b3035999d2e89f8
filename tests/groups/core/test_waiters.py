import pytest

from holdfast.groups.core.requests import FEW, ReceiveRequest, Waiters


@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, FEW + 1, 3 * FEW])
@pytest.mark.parametrize("removed", [0, 2, 3])
def test_all_waiters_are_visited_while_some_are_removed(count: int, removed: int) -> None:
    waiters = Waiters()
    held = [waiters.add(ReceiveRequest("a", 1), number, 1_000) for number in range(count)]
    seen, left = [], []
    for waiter in waiters:
        seen.append(waiter)
        if removed and len(seen) % removed == 0:
            assert waiters.remove(waiter)
        else:
            left.append(waiter)
    assert seen == held
    assert list(waiters) == left
    assert len(waiters) == len(left)


def test_deadlines_come_in_order_without_removed_waiters() -> None:
    waiters = Waiters()
    held = [waiters.add(ReceiveRequest("a", 1), None, deadline) for deadline in (30, 10, 20, 10)]
    assert waiters.next_deadline() == 10
    assert waiters.remove(held[1])
    assert not waiters.remove(held[1])
    assert waiters.take_due(20) == [held[3], held[2]]
    assert waiters.next_deadline() == 30
    assert waiters.take_due(29) == []
