"""Weighted fairness: the founding table, and P1 to P12 in both engines."""

import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core import fair_set
from holdfast.groups.core.fair_set import Costs, FairSet
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.leases import Lease

WEIGHTS = {number: 4 * (number + 1) for number in range(10)}
ROUND = sum(WEIGHTS.values())

engines = pytest.mark.parametrize("engine", FAIR_ENGINES)


def new_set(engine: str, weights: dict[int, int], *, is_active: bool = True) -> FairSet:
    fair = FairSet(engine)
    for flow, weight in weights.items():
        fair.add(flow, weight)
        if is_active:
            fair.activate(flow)
    return fair


def serve(fair: FairSet, count: int, costs: dict[int, int] | None = None) -> list[int]:
    messages = []
    for _ in range(count):
        flow = fair.select(lambda flow: 1 if costs is None else costs.get(flow))
        assert flow is not None
        fair.charge(flow, 1 if costs is None else costs[flow])
        messages.append(flow)
    return messages


def jain(shares: list[float]) -> float:
    return sum(shares) ** 2 / (len(shares) * sum(share * share for share in shares))


def test_changing_one_flow_does_not_iterate_over_all_flows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # when 1,000 flows were activated again, each activation iterated over all flows
    fair = new_set("sfq", dict.fromkeys(range(1_000), 3))
    rebuilt: list[int] = []
    monkeypatch.setattr(fair_set, "heapify", lambda heap: rebuilt.append(len(heap)))
    for flow in range(1_000):
        fair.set_weight(flow, 3)
    fair.add(1_000, 3)
    fair.remove(1_000)
    assert rebuilt == []
    fair.set_weight(1, 2)  # this changes the unit
    assert rebuilt == [1_000]


def test_a_flow_that_is_added_again_gets_a_new_place() -> None:
    fair = new_set("sfq", {1: 1, 2: 1})
    fair.remove(1)
    fair.add(1, 1)
    fair.activate(1)
    assert serve(fair, 4) == [2, 1, 2, 1]


@engines
def test_shares_follow_the_weights_at_every_message(engine: str) -> None:  # F2, F3, F8, P1, P11
    messages = serve(new_set(engine, WEIGHTS), 100 * ROUND)
    served = dict.fromkeys(WEIGHTS, 0)
    for count, flow in enumerate(messages, 1):
        served[flow] += 1
        for each, weight in WEIGHTS.items():
            # One quantum and one cost, or two messages.
            bound = weight + 1 if engine == "dwrr" else 2
            assert abs(served[each] - count * weight / ROUND) <= bound
        if count >= 11_000 and count % ROUND == 0:
            for each, weight in WEIGHTS.items():
                assert abs(served[each] / (count * weight / ROUND) - 1) <= 0.005
            assert jain([served[each] / weight for each, weight in WEIGHTS.items()]) >= 0.99999


@engines
def test_a_weight_of_ten_gets_ten_times_as_much(engine: str) -> None:  # F9
    messages = serve(new_set(engine, {1: 10, 2: 1}), 11_000)
    assert messages.count(1) / messages.count(2) == pytest.approx(10, abs=0.05)


@engines
def test_multiplying_all_weights_changes_nothing(engine: str) -> None:  # F20, P5
    once = serve(new_set(engine, WEIGHTS), 3 * ROUND)
    thousandfold = {flow: weight * 1_000 for flow, weight in WEIGHTS.items()}
    if engine == "sfq":
        assert serve(new_set(engine, thousandfold), 3 * ROUND) == once
    else:  # rounds are longer, but the shares are equal
        messages = serve(new_set(engine, thousandfold), 1_000 * ROUND)
        assert all(messages.count(flow) == 1_000 * weight for flow, weight in WEIGHTS.items())


@engines
def test_an_idle_flow_changes_nothing(engine: str) -> None:  # P6
    fair = new_set(engine, WEIGHTS)
    before = serve(fair, 77)
    fair.add(99, 7)
    middle = serve(fair, 500)
    fair.remove(99)
    after = serve(fair, 500)
    assert before + middle + after == serve(new_set(engine, WEIGHTS), 1_077)


@engines
def test_the_share_of_an_idle_flow_goes_to_the_others(engine: str) -> None:  # F18
    fair = new_set(engine, WEIGHTS)
    fair.deactivate(9)
    messages = serve(fair, 180 * 10)
    for flow in range(9):
        assert messages.count(flow) == pytest.approx(10 * WEIGHTS[flow], abs=WEIGHTS[flow] + 1)
    assert 9 not in messages


@engines
def test_a_flow_that_was_idle_gets_no_burst(engine: str) -> None:  # F6, P4
    fair = new_set(engine, {1: 1, 2: 1})
    serve(fair, 20)
    fair.deactivate(2)
    serve(fair, 10_000)
    fair.activate(2)
    messages = serve(fair, 100)
    assert messages[:10].count(2) <= 6
    assert messages.count(2) == pytest.approx(50, abs=2)


@engines
def test_a_flow_that_no_request_asks_for_saves_no_share(engine: str) -> None:
    """A member that asked for only one topic does not save up the other topic's share."""
    fair = new_set(engine, {1: 1, 2: 1})
    serve(fair, 1_000, {1: 1})
    assert serve(fair, 20).count(2) <= 12


@engines
def test_an_expensive_message_is_served_in_few_steps(engine: str) -> None:  # F13
    fair = new_set(engine, {1: 1, 2: 1})
    looks = 0

    def cost(flow: int) -> int:
        nonlocal looks
        looks += 1
        return 1_000_000

    assert fair.select(cost) is not None
    assert looks <= 6


def test_a_deficit_stays_between_zero_and_the_largest_cost() -> None:  # F4, F5
    fair = new_set("dwrr", {1: 3, 2: 50})
    source = random.Random(4)
    costs = {1: 7, 2: 20}
    for _ in range(2_000):
        flow = fair.select(costs.__getitem__)
        assert flow is not None
        fair.charge(flow, costs[flow])
        costs[flow] = source.randrange(1, 60)
        assert all(0 <= fair.standing(each) < 60 + WEIGHTS[9] + 10 for each in (1, 2))


def test_a_visit_continues_without_a_second_quantum() -> None:  # F4
    fair = new_set("dwrr", {1: 4, 2: 4})
    assert [serve(fair, 1)[0] for _ in range(8)] == [1, 1, 1, 1, 2, 2, 2, 2]


def test_an_empty_flow_loses_its_deficit() -> None:  # F6
    fair = new_set("dwrr", {1: 4, 2: 4})
    serve(fair, 1)
    assert fair.standing(1) == 3
    fair.deactivate(1)
    assert fair.standing(1) == 0


@engines
def test_weight_zero_is_served_only_when_no_other_flow_has_messages(engine: str) -> None:
    fair = new_set(engine, {1: 5, 2: 0, 3: 0})
    assert set(serve(fair, 100)) == {1}
    assert serve(fair, 10, {2: 1, 3: 1}).count(2) == 5
    fair.set_weight(2, 5)
    assert serve(fair, 100).count(2) == pytest.approx(50, abs=5)
    fair.set_weight(1, 0)
    assert set(serve(fair, 50)) == {2}


@engines
def test_a_new_weight_applies_within_a_round(engine: str) -> None:  # P10
    fair = new_set(engine, {1: 10, 2: 10})
    serve(fair, 1_005)
    fair.set_weight(2, 90)
    serve(fair, 100)
    assert serve(fair, 1_000).count(2) == pytest.approx(900, abs=2)


@engines
def test_a_later_correction_changes_the_shares(engine: str) -> None:
    fair = new_set(engine, {1: 1, 2: 1})
    serve(fair, 100)
    fair.correct(1, 50)
    assert serve(fair, 50, {1: 1, 2: 1}).count(2) >= 49
    fair.correct(3, 5)  # a flow that no longer exists
    assert fair.charged[1] == fair.served[1] + 50


@engines
def test_no_flow_is_chosen_when_none_has_messages(engine: str) -> None:
    assert new_set(engine, WEIGHTS).select(lambda flow: None) is None
    assert new_set(engine, WEIGHTS, is_active=False).select(lambda flow: 1) is None


weights = st.dictionaries(st.integers(0, 9), st.integers(1, 50), min_size=1, max_size=6)


@engines
@settings(max_examples=60, deadline=None)
@given(weights=weights, seed=st.integers(0, 2**32))
def test_shares_are_right_at_every_prefix_and_no_flow_starves(
    engine: str, weights: dict[int, int], seed: int
) -> None:  # P1, P7, P8
    source = random.Random(seed)
    fair, total = new_set(engine, weights), sum(weights.values())
    costs = {flow: source.randrange(1, 30) for flow in weights}
    charged, last = dict.fromkeys(weights, 0), dict.fromkeys(weights, 0)
    longest = total * 31 * 2 + 60
    for _ in range(600):
        flow = fair.select(costs.__getitem__)
        assert flow is not None
        fair.charge(flow, costs[flow])
        charged[flow] += costs[flow]
        costs[flow] = source.randrange(1, 30)
        served = sum(charged.values())
        last[flow] = served
        for each, weight in weights.items():
            ideal = served * weight / total
            bound = weight + 30 * 2 if engine == "dwrr" else 30 * (2 + len(weights))
            assert abs(charged[each] - ideal) <= bound * (1 + weight / total * len(weights))
            assert served - last[each] <= longest
    assert charged == fair.charged


@engines
@settings(max_examples=40, deadline=None)
@given(weights=weights, data=st.data())
def test_the_choice_does_not_depend_on_the_sizes_of_requests(
    engine: str, weights: dict[int, int], data: st.DataObject
) -> None:  # F15, F21, P2
    whole = serve(new_set(engine, weights), 300)
    fair = new_set(engine, weights)
    messages: list[int] = []
    while len(messages) < 300:
        messages += serve(fair, data.draw(st.sampled_from([1, 7, 32, 100])))
        for _ in range(data.draw(st.integers(0, 2))):  # selected, but not served
            fair.select(lambda flow: 1)
    assert messages[:300] == whole


@engines
@settings(max_examples=40, deadline=None)
@given(steps=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 5)), max_size=200))
def test_every_backlog_is_served_completely(engine: str, steps: list[tuple[int, int]]) -> None:
    """P3, P9, P12: a flow is chosen while any flow has messages, and only such a flow is chosen."""
    fair = new_set(engine, {0: 1, 1: 2, 2: 3, 3: 0, 4: 40}, is_active=False)
    backlog = dict.fromkeys(range(5), 0)
    for flow, count in [*steps, *[(0, 0)] * 1_100]:
        if count:
            backlog[flow] += count
            fair.activate(flow)
            continue
        chosen = fair.select(lambda flow: 1 + flow if backlog[flow] else None)
        if chosen is None:
            assert not any(backlog.values())
            continue
        assert backlog[chosen]
        fair.charge(chosen, 1 + chosen)
        backlog[chosen] -= 1
        if not backlog[chosen]:
            fair.deactivate(chosen)
    assert not any(backlog.values())


def test_time_is_charged_by_its_average_and_corrected_later() -> None:  # F7
    costs = Costs("time")
    lease = Lease(Head(0), "a", 1, 31_000, 1_000, 1, charge=costs.at_delivery(1, Head(0)))
    assert lease.charge == 10  # one millisecond, in tenths
    assert costs.difference(1, lease, 1_100, None) == 990
    assert costs.at_delivery(1, Head(0)) == 1_000
    assert costs.difference(1, lease, 1_100, 40) == 390  # the time that the member reports
    assert costs.at_delivery(1, Head(0)) == 925
    assert costs.difference(1, lease, 99_000, None) == 299_990  # the lease is the upper limit
    assert Costs("bytes").at_delivery(1, Head(0, 100)) == 164
    assert Costs("count").difference(1, lease, 99_000, None) == 0


@engines
@settings(max_examples=200, deadline=None)
@given(
    weights=st.lists(st.integers(0, 20), min_size=1, max_size=6),
    costs=st.lists(st.integers(1, 30), min_size=6, max_size=6),
    rooms=st.lists(st.integers(1, 60), max_size=30),
    seed=st.integers(0, 2**32),
)
def test_turns_in_a_row_equal_choosing_for_each_message(
    engine: str, weights: list[int], costs: list[int], rooms: list[int], seed: int
) -> None:
    by_flow = dict(enumerate(weights))
    rows, singles = new_set(engine, by_flow), new_set(engine, by_flow)
    rng = random.Random(seed)
    for room in rooms:
        flow = rows.select(lambda flow: costs[flow])
        assert flow is not None
        count = min(room, rows.turns(flow, costs[flow]))
        rows.charge(flow, costs[flow], count)
        assert serve(singles, count, dict(enumerate(costs))) == [flow] * count
        if rng.random() < 0.2:
            other, difference = rng.randrange(len(weights)), rng.randrange(-9, 10)
            for fair in (rows, singles):
                fair.correct(other, difference)
        if rng.random() < 0.2:
            other = rng.randrange(len(weights))
            for fair in (rows, singles):
                fair.deactivate(other)
                fair.activate(other)
        assert (rows.served, rows.charged) == (singles.served, singles.charged)
        assert [*map(rows.standing, by_flow)] == [*map(singles.standing, by_flow)]


@engines
def test_a_lone_flow_has_all_turns(engine: str) -> None:
    fair = new_set(engine, {1: 1, 2: 5})
    assert fair.select(lambda flow: 1) == 1
    assert fair.turns(1, 1) == 1
    fair.deactivate(2)
    fair.charge(1, 1)
    assert fair.select(lambda flow: 1) == 1
    assert fair.turns(1, 1) >= 1_000
