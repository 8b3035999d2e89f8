import pytest

from holdfast.client.produce.publish_queue import (
    MAX_TOGETHER,
    MAX_TOGETHER_BYTES,
    Lane,
    Waiting,
)


def lane_of(*bodies: bytes) -> Lane:
    lane = Lane("orders", None)
    for body in bodies:
        lane.join(Waiting(body, 0.0))
    return lane


def bodies(messages: list[Waiting]) -> list[bytes]:
    return [message.encoded for message in messages]


def test_nothing_waits_while_nothing_is_under_way() -> None:
    lane = lane_of(b"1")
    assert lane.begins()
    assert bodies(lane.take()) == [b"1"]


def test_a_request_that_begins_takes_what_comes_until_it_leaves() -> None:
    lane = lane_of(b"1")
    assert lane.begins()
    lane.join(Waiting(b"2", 0.0))
    assert not lane.begins()
    assert bodies(lane.take()) == [b"1", b"2"]


def test_what_comes_meanwhile_goes_together_once_the_request_has_ended() -> None:
    lane = lane_of(b"1")
    assert lane.begins()
    lane.take()
    for body in (b"2", b"3", b"4"):
        lane.join(Waiting(body, 0.0))
        assert not lane.begins()
    lane.ended()
    assert lane.begins()
    assert bodies(lane.take()) == [b"2", b"3", b"4"]
    assert not lane.is_empty
    lane.ended()
    assert lane.is_empty


def test_an_empty_lane_begins_nothing() -> None:
    lane = lane_of()
    assert lane.is_empty
    assert not lane.begins()


@pytest.mark.parametrize(
    ("size", "count", "first"),
    [
        (1, MAX_TOGETHER + 1, MAX_TOGETHER),
        (MAX_TOGETHER_BYTES // 4, 5, 4),
        (MAX_TOGETHER_BYTES // 4 + 1, 5, 3),
        (MAX_TOGETHER_BYTES + 1, 2, 1),
    ],
)
def test_a_request_takes_so_much_and_the_rest_goes_with_the_next(
    size: int, count: int, first: int
) -> None:
    lane = lane_of(*[b"x" * size] * count)
    assert lane.begins()
    assert len(lane.take()) == first
    lane.ended()
    assert lane.begins()
    assert len(lane.take()) == count - first


@pytest.mark.parametrize(("size", "count"), [(1, MAX_TOGETHER), (MAX_TOGETHER_BYTES // 4, 4)])
def test_a_full_request_waits_for_none_that_is_under_way(size: int, count: int) -> None:
    lane = lane_of(b"1")
    assert lane.begins()
    lane.take()
    for _ in range(count):
        assert not lane.begins()
        lane.join(Waiting(b"x" * size, 0.0))
    assert lane.begins()
    lane.take()
    lane.join(Waiting(b"2", 0.0))
    assert not lane.begins()


def test_who_leaves_is_not_taken_and_takes_no_room() -> None:
    lane = lane_of(b"1", b"2")
    leaving = Waiting(b"x" * MAX_TOGETHER_BYTES, 0.0)
    lane.join(leaving)
    assert lane.begins()
    lane.leave(leaving)
    assert bodies(lane.take()) == [b"1", b"2"]
    lane.join(Waiting(b"3", 0.0))
    assert not lane.begins()


def test_all_may_leave_a_request_that_begins() -> None:
    lane = lane_of(b"1", b"2")
    assert lane.begins()
    assert bodies(lane.leave_all()) == [b"1", b"2"]
    assert lane.take() == []
    lane.ended()
    assert lane.is_empty
