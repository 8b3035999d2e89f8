"""The scheduler of channels against a model: order, no overlap, turns in blocks."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from holdfast.client.channels.scheduler import BLOCK_COUNT, Scheduler

CHANNELS = st.integers(0, 3)


class SchedulerHistories(RuleBasedStateMachine):
    """T12, T13: `tokens` counts the threads that `add` and `finish` asked for."""

    def __init__(self) -> None:
        super().__init__()
        self.scheduler: Scheduler[int, int] = Scheduler()
        self.waiting: dict[int, list[int]] = {}
        self.running: dict[int, list[int]] = {}
        self.turns: list[int] = []
        self.tokens = 0
        self.next_item = 0

    @rule(channel=CHANNELS, count=st.sampled_from([0, 1, 3, BLOCK_COUNT, BLOCK_COUNT + 1, 700]))
    def add(self, channel: int, count: int) -> None:
        items = list(range(self.next_item, self.next_item + count))
        self.next_item += count
        dormant = not self.waiting.get(channel) and channel not in self.running
        assert self.scheduler.add(channel, items) is (dormant and count > 0)
        self.waiting.setdefault(channel, []).extend(items)
        if dormant and count:
            self.turns.append(channel)
            self.tokens += 1

    @precondition(lambda self: self.tokens)
    @rule()
    def take(self) -> None:
        self.tokens -= 1
        found = self.scheduler.take()
        if not self.turns:
            assert found is None  # the items of the token were dropped
            return
        channel = self.turns.pop(0)
        assert found == (channel, self.waiting[channel][:BLOCK_COUNT])
        assert channel not in self.running
        self.running[channel] = found[1]
        del self.waiting[channel][:BLOCK_COUNT]

    @rule(channel=CHANNELS)
    def finish(self, channel: int) -> None:
        if self.running.pop(channel, None) is None:
            return
        has_more = bool(self.waiting[channel])
        assert self.scheduler.finish(channel) is has_more
        if has_more:
            self.turns.append(channel)
            self.tokens += 1

    @rule(channel=CHANNELS, parity=st.sampled_from([0, 1, None]))
    def drop(self, channel: int, parity: int | None) -> None:
        def matches(item: int) -> bool:
            return parity is None or item % 2 == parity

        before = self.waiting.get(channel, [])
        assert self.scheduler.drop(channel, matches) == [each for each in before if matches(each)]
        self.waiting[channel] = [each for each in before if not matches(each)]
        if not self.waiting[channel] and channel in self.turns:
            self.turns.remove(channel)

    @invariant()
    def every_ready_channel_has_a_thread_to_come(self) -> None:
        assert self.tokens >= len(self.turns)
        for channel in range(4):
            waiting = self.waiting.get(channel, [])
            assert self.scheduler.count_waiting(channel) == len(waiting)
            assert bool(waiting) <= (channel in self.turns or channel in self.running)


SchedulerHistories.TestCase.settings = settings(max_examples=30, stateful_step_count=40)
test_histories = SchedulerHistories.TestCase
