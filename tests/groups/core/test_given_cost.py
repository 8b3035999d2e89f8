"""The cost that publishers give: its limits, and shares that are measured in it."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core.given_cost import LARGEST, UNITS, parse_cost
from tests.groups.queues import Stage


def test_a_cost_is_a_positive_number_up_to_a_limit() -> None:
    for text, cost in (
        *(("1", 1_000), ("7", 7_000), ("2.5", 2_500), ("0007", 7_000), ("0.001", 1), ("0.0001", 1)),
        *((str(LARGEST - 1), (LARGEST - 1) * UNITS), (str(LARGEST), LARGEST * UNITS)),
        *((str(LARGEST + 1), LARGEST * UNITS), ("9" * 5_000, LARGEST * UNITS)),
        *((each, UNITS) for each in ("", "0", "0.0", "-1", "+1", "1e3", "inf", "nan", ".5", "5.")),
        *((each, UNITS) for each in (" 5", "5\n", "1_000", "٣", "five")),
        (None, UNITS),
    ):
        assert parse_cost(text) == cost, text


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@settings(max_examples=20, deadline=None)
@given(
    weights=st.lists(st.integers(1, 40), min_size=2, max_size=5),
    costs=st.lists(st.integers(1, LARGEST * UNITS), min_size=1, max_size=9),
    most=st.integers(1, 40),
)
def test_shares_follow_the_given_costs(
    engine: str, weights: list[int], costs: list[int], most: int
) -> None:
    # F7, F13
    stage = Stage({}, engine=engine, cost="given", max_in_flight=10**6)
    flows = dict(enumerate(weights, 1))
    for flow, weight in flows.items():
        stage.group.add_topic(flow, weight=weight)
        stage.add_queue((flow, 0))
        for number in range(120):
            stage.publish(1, (flow, 0), cost=costs[(number + flow) % len(costs)])
    fair, largest = stage.group.fair, max(costs)
    while True:
        assert stage.take(max_messages=most)
        if max(fair.served.values()) >= 120:
            break  # from here on a topic has no messages
        shares = {flow: fair.charged[flow] / weight for flow, weight in flows.items()}
        for one, share in shares.items():
            for other, others_share in shares.items():
                bound = largest / flows[one] + largest / flows[other] + (engine == "dwrr")
                assert abs(share - others_share) <= bound * (1 + 1e-9)
