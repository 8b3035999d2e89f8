"""The dispatcher alone: messages of one ordering key are handled in order, different ordering keys
in parallel."""

from collections import defaultdict
from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from holdfast.client.consume.dispatcher import Dispatcher


@dataclass(frozen=True)
class Delivery:
    """Equal to any other delivery of the same offset, as the real class is."""

    offset: int


def test_one_delivery_of_an_ordering_key_at_a_time_the_oldest_first() -> None:
    ready: Dispatcher[Delivery] = Dispatcher(3)
    for offset, ordering_key in enumerate("aabab"):
        ready.add(Delivery(offset), ordering_key)
    first, second = ready.take(), ready.take()
    assert first is not None and second is not None
    assert (first.offset, second.offset) == (0, 2)
    assert ready.take() is None
    ready.finish(second)
    third = ready.take()
    assert third is not None and third.offset == 4
    ready.finish(first)
    ready.finish(first)
    fourth = ready.take()
    assert fourth is not None and fourth.offset == 1
    assert len(ready) == 1


def test_at_most_concurrency_deliveries_are_in_progress() -> None:
    ready: Dispatcher[Delivery] = Dispatcher(2)
    for offset in range(3):
        ready.add(Delivery(offset), offset)
    taken = [ready.take(), ready.take(), ready.take()]
    assert [each is None for each in taken] == [False, False, True]
    assert [each.offset for each in ready.in_progress] == [0, 1]


def test_dropped_and_drained_deliveries_are_not_taken() -> None:
    ready: Dispatcher[Delivery] = Dispatcher(9)
    waiting = [Delivery(offset) for offset in range(6)]
    for each, ordering_key in zip(waiting, "aabbcc", strict=True):
        ready.add(each, ordering_key)
    assert ready.drop(waiting[0], "a")
    assert not ready.drop(waiting[0], "a")
    assert ready.truncate("b", 0) == waiting[2:4]
    taken = ready.take()
    assert taken is waiting[1]
    assert [each.offset for each in ready.drain()] == [4, 5]
    assert ready.take() is None
    assert len(ready) == 0


def test_a_redelivered_message_waits_for_its_first_delivery() -> None:
    ready: Dispatcher[Delivery] = Dispatcher(2)
    lost, again = Delivery(7), Delivery(7)
    ready.add(lost, "a")
    assert ready.take() is lost
    ready.add(again, "a")
    assert ready.take() is None
    ready.finish(lost)
    assert ready.take() is again


STEPS = st.tuples(st.sampled_from(("add", "take", "done", "drop")), st.integers(0, 3))


@given(st.integers(1, 4), st.lists(STEPS, max_size=60))
def test_the_order_of_an_ordering_key_always_holds(
    concurrency: int, steps: list[tuple[str, int]]
) -> None:
    ready: Dispatcher[Delivery] = Dispatcher(concurrency)
    waiting: dict[int, list[Delivery]] = defaultdict(list)
    in_progress: dict[int, Delivery] = {}
    key_of: dict[int, int] = {}
    for number, (step, ordering_key) in enumerate(steps):
        if step == "add":
            each = Delivery(number)
            key_of[number] = ordering_key
            waiting[ordering_key].append(each)
            ready.add(each, ordering_key)
        elif step == "take":
            taken = ready.take()
            free = [u for u, some in waiting.items() if some and u not in in_progress]
            if taken is None:
                assert not free or len(in_progress) == concurrency
            else:
                first = min(free, key=lambda u: waiting[u][0].offset)
                assert taken is waiting[first].pop(0)
                in_progress[first] = taken
        elif step == "done" and ordering_key in in_progress:
            ready.finish(in_progress.pop(ordering_key))
        elif step == "drop" and waiting[ordering_key]:
            assert ready.drop(waiting[ordering_key].pop(), ordering_key)
        assert len(ready) == sum(map(len, waiting.values()))
        assert len(ready.in_progress) == len(in_progress) <= concurrency


def test_waiting_deliveries_of_an_ordering_key_are_truncated() -> None:
    # C1
    ready: Dispatcher[Delivery] = Dispatcher(9)
    waiting = [Delivery(offset) for offset in range(6)]
    for each, ordering_key in zip(waiting, "aaaabb", strict=True):
        ready.add(each, ordering_key)
    assert ready.take() is waiting[0]
    assert ready.count_waiting("a") == 3
    assert ready.truncate("a", 3) == []
    assert ready.truncate("a", 1) == waiting[2:4]
    assert ready.truncate("b", 0) == waiting[4:]
    assert ready.truncate("c", 0) == []
    assert len(ready) == ready.count_waiting("a") == 1
    assert ready.take() is None
    assert ready.finish(waiting[0])
    assert not ready.finish(waiting[0])
    assert ready.take() is waiting[1]
