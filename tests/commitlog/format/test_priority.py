"""Priorities and levels: the tables of AMQP 0-10 and JMS."""

import pytest

from holdfast.commitlog.format.priority import (
    DEFAULT_PRIORITY,
    HIGHEST_PRIORITY,
    MAX_LEVELS,
    level_of,
    level_of_queue,
    queue_of,
)


@pytest.mark.parametrize(
    ("levels", "expected"),
    [
        (1, "0000000000"),
        (2, "0000011111"),
        (3, "0000122222"),
        (4, "0000123333"),
        (5, "0001234444"),
        (9, "0123456788"),
        (10, "0123456789"),
    ],
)
def test_priorities_become_levels(levels: int, expected: str) -> None:  # Q20
    assert "".join(str(level_of(priority, levels)) for priority in range(10)) == expected
    assert queue_of(3, 9, levels) == 3 * levels + levels - 1
    assert queue_of(3, None, levels) == queue_of(3, 4, levels)


@pytest.mark.parametrize("levels", range(1, MAX_LEVELS + 1))
def test_a_queue_has_the_level_of_its_messages(levels: int) -> None:
    assert DEFAULT_PRIORITY == 4
    for priority in range(HIGHEST_PRIORITY + 1):
        assert level_of_queue(queue_of(7, priority, levels), levels) == level_of(priority, levels)
    # Each level of an index is a separate queue, and two indexes share no queue.
    used = {queue_of(index, p, levels) for index in range(3) for p in range(10)}
    assert used == set(range(3 * levels))
