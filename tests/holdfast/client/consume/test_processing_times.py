"""The limit of messages that a member buffers of a slow ordering key, tested alone."""

from holdfast.client.consume.prefetch import (
    FEW,
    MAX_REMEMBERED,
    SLOW_S,
    STUCK_S,
    ProcessingTimes,
)


def test_a_unit_is_slow_while_its_delivery_takes_long_and_then_stuck() -> None:
    # C1
    paces: ProcessingTimes[str] = ProcessingTimes()
    paces.start("a", 0.0)
    paces.start("b", SLOW_S)
    assert paces.find_slow(SLOW_S - 0.001) == {}
    assert paces.find_slow(SLOW_S) == {"a": FEW}
    assert paces.find_slow(STUCK_S) == {"a": 0, "b": FEW}
    paces.finish("a", STUCK_S)
    paces.finish("b", SLOW_S + 0.001)
    assert paces.find_slow(20.0) == {"a": 1}


def test_a_slow_unit_is_remembered_until_it_is_quick() -> None:
    paces: ProcessingTimes[str] = ProcessingTimes()
    paces.start("a", 1.0)
    paces.finish("a", 1.0 + SLOW_S)
    assert paces.find_slow(5.0) == {"a": FEW}
    paces.start("a", 5.0)
    assert paces.find_slow(5.0) == {"a": FEW}
    paces.finish("a", 5.001)
    assert paces.find_slow(5.001) == {}
    paces.finish("a", 6.0)  # a second call changes nothing
    assert paces.find_slow(6.0) == {}


def test_the_next_change_is_the_first_unit_that_turns_slow_or_stuck() -> None:
    paces: ProcessingTimes[str] = ProcessingTimes()
    assert paces.time_until_change_s(1.0) is None
    paces.start("a", 1.0)
    paces.start("b", 1.0 + SLOW_S)
    assert paces.time_until_change_s(1.0) == SLOW_S
    left_s = paces.time_until_change_s(1.0 + SLOW_S)
    assert left_s is not None and abs(left_s - SLOW_S) < 1e-9
    assert paces.time_until_change_s(1.0 + STUCK_S + SLOW_S) is None


def test_so_many_units_are_remembered_the_latest_ones() -> None:
    paces: ProcessingTimes[int] = ProcessingTimes()
    for ordering_key in range(MAX_REMEMBERED + 2):
        paces.start(ordering_key, 0.0)
        paces.finish(ordering_key, SLOW_S)
    assert list(paces.find_slow(1.0)) == list(range(2, MAX_REMEMBERED + 2))
