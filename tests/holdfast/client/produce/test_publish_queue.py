import pytest

from holdfast.client.produce.publish_queue import (
    MAX_SHARED_MESSAGES,
    MAX_SHARED_REQUEST_BYTES,
    PendingPublish,
    PublishOptions,
    PublishQueue,
)


def queue_of(*bodies: bytes) -> PublishQueue:
    queue = PublishQueue("orders", PublishOptions())
    for body in bodies:
        queue.add(PendingPublish(body, 0.0))
    return queue


def bodies(messages: list[PendingPublish]) -> list[bytes]:
    return [message.encoded for message in messages]


def test_an_empty_queue_starts_no_request() -> None:
    queue = queue_of()
    assert not queue.start_request()
    queue.add(PendingPublish(b"1", 0.0))
    assert queue.start_request()
    assert bodies(queue.take_messages()) == [b"1"]
    assert not queue.is_empty
    queue.finish_request()
    assert queue.is_empty


@pytest.mark.parametrize(
    ("size", "count", "first"),
    [
        (1, MAX_SHARED_MESSAGES + 1, MAX_SHARED_MESSAGES),
        (MAX_SHARED_REQUEST_BYTES // 4, 5, 4),
        (MAX_SHARED_REQUEST_BYTES // 4 + 1, 5, 3),
        (MAX_SHARED_REQUEST_BYTES + 1, 2, 1),
    ],
)
def test_a_request_has_a_limited_size_and_the_rest_is_in_the_next(
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
def test_a_full_request_does_not_wait_for_the_one_in_flight(size: int, count: int) -> None:
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


def test_a_removed_message_is_not_sent_and_does_not_count() -> None:
    queue = queue_of(b"1", b"2")
    leaving = PendingPublish(b"x" * MAX_SHARED_REQUEST_BYTES, 0.0)
    queue.add(leaving)
    assert queue.start_request()
    queue.remove(leaving)
    assert bodies(queue.take_messages()) == [b"1", b"2"]
    queue.add(PendingPublish(b"3", 0.0))
    assert not queue.start_request()


def test_all_messages_of_a_starting_request_may_be_removed() -> None:
    queue = queue_of(b"1", b"2")
    assert queue.start_request()
    assert bodies(queue.clear()) == [b"1", b"2"]
    assert queue.take_messages() == []
    queue.finish_request()
    assert queue.is_empty
