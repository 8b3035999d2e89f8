import pytest

from holdfast.client.produce.publish_queue import (
    MAX_SHARED_MESSAGES,
    MAX_SHARED_REQUEST_BYTES,
    PendingPublish,
    PublishQueue,
)


def queue_of(*bodies: bytes) -> PublishQueue:
    queue = PublishQueue("orders", None)
    for body in bodies:
        queue.add(PendingPublish(body, 0.0))
    return queue


def bodies(messages: list[PendingPublish]) -> list[bytes]:
    return [message.encoded for message in messages]


def test_nothing_waits_while_nothing_is_under_way() -> None:
    queue = queue_of(b"1")
    assert queue.start_request()
    assert bodies(queue.take_messages()) == [b"1"]


def test_a_request_that_begins_takes_what_comes_until_it_leaves() -> None:
    queue = queue_of(b"1")
    assert queue.start_request()
    queue.add(PendingPublish(b"2", 0.0))
    assert not queue.start_request()
    assert bodies(queue.take_messages()) == [b"1", b"2"]


def test_what_comes_meanwhile_goes_together_once_the_request_has_ended() -> None:
    queue = queue_of(b"1")
    assert queue.start_request()
    queue.take_messages()
    for body in (b"2", b"3", b"4"):
        queue.add(PendingPublish(body, 0.0))
        assert not queue.start_request()
    queue.finish_request()
    assert queue.start_request()
    assert bodies(queue.take_messages()) == [b"2", b"3", b"4"]
    assert not queue.is_empty
    queue.finish_request()
    assert queue.is_empty


def test_an_empty_queue_begins_nothing() -> None:
    queue = queue_of()
    assert queue.is_empty
    assert not queue.start_request()


@pytest.mark.parametrize(
    ("size", "count", "first"),
    [
        (1, MAX_SHARED_MESSAGES + 1, MAX_SHARED_MESSAGES),
        (MAX_SHARED_REQUEST_BYTES // 4, 5, 4),
        (MAX_SHARED_REQUEST_BYTES // 4 + 1, 5, 3),
        (MAX_SHARED_REQUEST_BYTES + 1, 2, 1),
    ],
)
def test_a_request_takes_so_much_and_the_rest_goes_with_the_next(
    size: int, count: int, first: int
) -> None:
    queue = queue_of(*[b"x" * size] * count)
    assert queue.start_request()
    assert len(queue.take_messages()) == first
    queue.finish_request()
    assert queue.start_request()
    assert len(queue.take_messages()) == count - first


@pytest.mark.parametrize(
    ("size", "count"), [(1, MAX_SHARED_MESSAGES), (MAX_SHARED_REQUEST_BYTES // 4, 4)]
)
def test_a_full_request_waits_for_none_that_is_under_way(size: int, count: int) -> None:
    queue = queue_of(b"1")
    assert queue.start_request()
    queue.take_messages()
    for _ in range(count):
        assert not queue.start_request()
        queue.add(PendingPublish(b"x" * size, 0.0))
    assert queue.start_request()
    queue.take_messages()
    queue.add(PendingPublish(b"2", 0.0))
    assert not queue.start_request()


def test_who_leaves_is_not_taken_and_takes_no_room() -> None:
    queue = queue_of(b"1", b"2")
    leaving = PendingPublish(b"x" * MAX_SHARED_REQUEST_BYTES, 0.0)
    queue.add(leaving)
    assert queue.start_request()
    queue.remove(leaving)
    assert bodies(queue.take_messages()) == [b"1", b"2"]
    queue.add(PendingPublish(b"3", 0.0))
    assert not queue.start_request()


def test_all_may_leave_a_request_that_begins() -> None:
    queue = queue_of(b"1", b"2")
    assert queue.start_request()
    assert bodies(queue.clear()) == [b"1", b"2"]
    assert queue.take_messages() == []
    queue.finish_request()
    assert queue.is_empty
