"""How many messages a consumer requests and buffers, also of slow ordering keys."""

from heapq import heappop, heappush

import pytest

from holdfast.client.consume.prefetch import (
    FEW,
    MAX_REMEMBERED,
    SLOW_S,
    STUCK_S,
    Credit,
    ProcessingTimes,
)


def simulate(
    credit: Credit, round_trip_ms: float, handler_ms: float, backlog: int
) -> tuple[float, int]:
    """Return the busy fraction of the worker, and the most messages that it held at once.

    Both are measured over the second half, when the credit has settled.
    """
    events: list[tuple[float, str, int]] = []
    now = 0.0
    buffered, asked, is_working, busy_ms, most, half_at = 0, 0, False, 0.0, 0, 0.0
    left = backlog
    while left or buffered or asked or is_working:
        if not asked and left:
            asked = credit.request_size(buffered, buffered + is_working)
            if asked:
                heappush(events, (now + round_trip_ms, "reply", min(asked, left)))
        if buffered and not is_working:
            buffered, is_working = buffered - 1, True
            heappush(events, (now + handler_ms, "worked", 0))
        now, event, count = heappop(events)
        if event == "reply":
            credit.record_reply(asked, count, buffered)
            asked, left, buffered = 0, left - count, buffered + count
        else:
            is_working = False
            if left < backlog // 2:
                busy_ms += handler_ms
                half_at = half_at or now - handler_ms
        if left < backlog // 2:
            most = max(most, buffered + is_working)
    return busy_ms / (now - half_at), most


@pytest.mark.parametrize(
    ("round_trip_ms", "handler_ms"), [(50, 1), (50, 5), (1, 1), (200, 3), (1, 100)]
)
def test_the_worker_is_busy_with_a_small_buffer(round_trip_ms: float, handler_ms: float) -> None:
    # F17
    busy, most = simulate(Credit(1, 10_000), round_trip_ms, handler_ms, 5_000)
    in_a_round_trip = round_trip_ms / handler_ms
    assert busy >= 0.95
    assert most <= max(4, 2 * in_a_round_trip + 1)


def test_a_member_requests_no_more_messages_than_it_may_hold() -> None:
    # F16, T19
    credit = Credit(4, 10)
    for _ in range(10):
        credit.record_reply(8, 8, 0)
    assert credit.low == 10
    assert credit.request_size(0, 0) == 10
    assert credit.request_size(0, 7) == 3
    assert credit.request_size(0, 10) == 0
    assert credit.request_size(11, 11) == 0


def test_few_messages_are_requested_if_few_are_available() -> None:
    # T20
    credit = Credit(2, 1_000)
    for _ in range(100):
        asked = credit.request_size(0, 0)
        credit.record_reply(asked, 1, 0)
    assert credit.request_size(0, 0) == 4


def test_an_ordering_key_with_a_long_delivery_is_slow_and_later_stuck() -> None:
    # C1
    times: ProcessingTimes[str] = ProcessingTimes()
    times.start("a", 0.0)
    times.start("b", SLOW_S)
    assert times.find_slow(SLOW_S - 0.001) == {}
    assert times.find_slow(SLOW_S) == {"a": FEW}
    assert times.find_slow(STUCK_S) == {"a": 0, "b": FEW}
    times.finish("a", STUCK_S)
    times.finish("b", SLOW_S + 0.001)
    assert times.find_slow(20.0) == {"a": 1}


def test_a_slow_ordering_key_is_remembered_until_a_quick_delivery() -> None:
    times: ProcessingTimes[str] = ProcessingTimes()
    times.start("a", 1.0)
    times.finish("a", 1.0 + SLOW_S)
    assert times.find_slow(5.0) == {"a": FEW}
    times.start("a", 5.0)
    assert times.find_slow(5.0) == {"a": FEW}
    times.finish("a", 5.001)
    assert times.find_slow(5.001) == {}
    times.finish("a", 6.0)  # a second call changes nothing
    assert times.find_slow(6.0) == {}


def test_the_next_change_is_when_an_ordering_key_becomes_slow_or_stuck() -> None:
    times: ProcessingTimes[str] = ProcessingTimes()
    assert times.time_until_change_s(1.0) is None
    times.start("a", 1.0)
    times.start("b", 1.0 + SLOW_S)
    assert times.time_until_change_s(1.0) == SLOW_S
    left_s = times.time_until_change_s(1.0 + SLOW_S)
    assert left_s is not None and abs(left_s - SLOW_S) < 1e-9
    assert times.time_until_change_s(1.0 + STUCK_S + SLOW_S) is None


def test_only_the_latest_slow_ordering_keys_are_remembered() -> None:
    times: ProcessingTimes[int] = ProcessingTimes()
    for ordering_key in range(MAX_REMEMBERED + 2):
        times.start(ordering_key, 0.0)
        times.finish(ordering_key, SLOW_S)
    assert list(times.find_slow(1.0)) == list(range(2, MAX_REMEMBERED + 2))
