"""Random acts at both ends of a connection: see `world.py`."""

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tests.amqp.campaign import run
from tests.amqp.engine.world import CREDITS, LINKS, PIECES, SIZES, STATES, WINDOWS, EngineWorld


class EngineMachine(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.world = EngineWorld()

    links_ = st.integers(0, LINKS - 1)
    directions = st.integers(0, 1)

    @rule(
        index=links_,
        credit=st.sampled_from(CREDITS),
        drain=st.sampled_from([False, False, True]),
        echo=st.booleans(),
    )
    def grant(self, index: int, credit: int, drain: bool, echo: bool) -> None:
        self.world.grant(index, credit, drain, echo)

    @rule(
        index=links_,
        sizes=st.lists(st.sampled_from(SIZES), min_size=1, max_size=4),
        settled=st.booleans(),
    )
    def send(self, index: int, sizes: list[int], settled: bool) -> None:
        self.world.send(index, sizes, settled)

    @rule(index=links_)
    def give_back(self, index: int) -> None:
        self.world.give_back(index)

    @rule(index=links_, count=st.integers(1, 4), state=st.sampled_from(STATES))
    def settle(self, index: int, count: int, state: Any) -> None:
        self.world.settle(index, count, state)

    @rule(at_client=st.booleans(), size=st.sampled_from(WINDOWS))
    def change_window(self, at_client: bool, size: int) -> None:
        self.world.change_window(at_client, size)

    @rule(direction=directions, is_stalled=st.booleans())
    def stall(self, direction: int, is_stalled: bool) -> None:
        self.world.stall(direction, is_stalled)

    @rule(direction=directions, size=st.sampled_from(PIECES))
    def deliver(self, direction: int, size: int) -> None:
        self.world.deliver(direction, size)

    @invariant()
    def both_ends_are_as_specified(self) -> None:
        self.world.check()

    def teardown(self) -> None:
        self.world.finish()


EngineMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=50)
TestEngine = EngineMachine.TestCase


def test_a_short_campaign_agrees_with_the_specification() -> None:
    # A47, A51, A53
    run(3_000, seed=0)
