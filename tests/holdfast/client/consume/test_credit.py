"""How many messages a consumer requests by default, against a simulated broker."""

from heapq import heappop, heappush

import pytest

from holdfast.client.consume.prefetch import Credit


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


def test_no_more_is_asked_for_than_may_be_held() -> None:
    # F16, T19
    credit = Credit(4, 10)
    for _ in range(10):
        credit.record_reply(8, 8, 0)
    assert credit.low == 10
    assert credit.request_size(0, 0) == 10
    assert credit.request_size(0, 7) == 3
    assert credit.request_size(0, 10) == 0
    assert credit.request_size(11, 11) == 0


def test_a_broker_with_little_is_asked_for_little() -> None:
    # T20
    credit = Credit(2, 1_000)
    for _ in range(100):
        asked = credit.request_size(0, 0)
        credit.record_reply(asked, 1, 0)
    assert credit.request_size(0, 0) == 4
