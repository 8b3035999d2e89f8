"""The queues that moved since the last call. Pure."""

from holdfast.groups.serving.queue_watch import ChangedQueues


def test_each_queue_that_changed_is_returned_once() -> None:
    moved = ChangedQueues()
    assert moved.since(0, 10) == ([], 0)
    for queue in (3, 1, 3, 2):
        moved.note(queue)
    assert moved.since(0, 10) == ([1, 3, 2], 4)
    assert moved.since(2, 10) == ([3, 2], 4)
    assert moved.since(4, 10) == ([], 4)


def test_queues_above_the_limit_are_returned_next_time() -> None:
    moved = ChangedQueues()
    for queue in range(5):
        moved.note(queue)
    found, count = moved.since(0, 2)
    assert found == [0, 1]
    moved.note(0)
    assert moved.since(count, 3) == ([2, 3, 4], 5)
    assert moved.since(5, 3) == ([0], 6)
