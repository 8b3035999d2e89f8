"""Which queues a topic's reader asks, and how long it waits there, against a simple broker."""

from collections.abc import Mapping
from typing import cast

import pytest

from holdfast.client.read import sources
from holdfast.client.read.facts import QueueBounds, TopicFacts, TopicLimits
from holdfast.client.read.pull import (
    Fetched,
    PullOptions,
    Start,
)
from holdfast.client.read.sources import (
    AT_END_PER_POLL,
    MAX_QUEUES_PER_POLL,
    SHORT_WAIT_MS,
    TopicSource,
)
from holdfast.client.transport.requests import Transport


class Broker:
    """Knows the ends of queues, and advances a poll's offsets as far as the poll's limit allows."""

    def __init__(self, ends: Mapping[int, int]) -> None:
        self.ends = dict(ends)
        self.asked: list[tuple[list[int], int]] = []
        self.pauses: list[float] = []
        self.is_stuck = False

    async def fetch_facts(self) -> TopicFacts:
        queues = [QueueBounds(queue, 0, end) for queue, end in self.ends.items()]
        return TopicFacts(1, len(queues), queues, TopicLimits(1))

    async def poll(self, offsets: Mapping[int, int], options: PullOptions, wait_ms: int) -> Fetched:
        self.asked.append((list(offsets), wait_ms))
        left, next_offsets = 0 if self.is_stuck else options.max_messages, {}
        for queue, offset in offsets.items():
            taken = min(left, self.ends[queue] - offset)
            next_offsets[queue], left = offset + taken, left - taken
        return Fetched([], next_offsets, {queue: self.ends[queue] for queue in offsets}, 1, ())

    def now_s(self) -> float:
        return 0.0

    async def pause(self, seconds: float) -> None:
        self.pauses.append(seconds)

    def source(self, start: str = "earliest", *, follow: bool = True) -> TopicSource:
        options = PullOptions(max_messages=100, wait_ms=20_000)
        return TopicSource(cast(Transport, self), "orders", Start(start=start), options, follow)


@pytest.fixture
def found(monkeypatch: pytest.MonkeyPatch) -> Broker:
    """A broker of 300 queues with 50 messages each."""
    found = Broker(dict.fromkeys(range(300), 50))
    monkeypatch.setattr(sources, "TopicRequests", lambda *_: found)
    return found


async def test_a_poll_asks_for_as_many_queues_as_fill_its_reply(found: Broker) -> None:
    source = found.source(follow=False)
    while await source.fetch() is not None:
        pass
    assert found.asked == [([queue, queue + 1], 0) for queue in range(0, 300, 2)]


async def test_each_queue_is_polled_while_one_has_a_large_backlog(found: Broker) -> None:
    found.ends = {queue: 1_000_000 if queue == 7 else 0 for queue in range(1000)}
    source = found.source()
    for _ in range(70):
        await source.fetch()
    assert {queue for asked, _ in found.asked for queue in asked} == set(range(1000))
    assert {wait_ms for _, wait_ms in found.asked} == {0}
    assert found.pauses == []


async def test_at_the_end_of_all_queues_a_poll_waits_for_all(found: Broker) -> None:
    source = found.source("latest")
    await source.fetch()
    found.ends[250] += 300
    for _ in range(4):
        await source.fetch()
    asked = [(set(asked), wait_ms) for asked, wait_ms in found.asked]
    every = (set(range(300)), 20_000)
    # the first poll reports more messages than the second one returns
    assert asked[:2] == [every, every]
    assert [(250 in queues, len(queues), wait_ms) for queues, wait_ms in asked[2:4]] == [
        (True, 1 + AT_END_PER_POLL, 0),
        (True, 1 + AT_END_PER_POLL, 0),
    ]
    assert asked[4:] == [every]


async def test_queues_that_do_not_fit_into_one_poll_are_polled_in_turn(found: Broker) -> None:
    count = 2 * MAX_QUEUES_PER_POLL
    found.ends = dict.fromkeys(range(count), 0)
    source = found.source()
    for _ in range(2):
        await source.fetch()
    (first, first_wait_ms), (second, second_wait_ms) = found.asked
    assert sorted(first + second) == list(range(count))
    assert (first_wait_ms, second_wait_ms) == (SHORT_WAIT_MS, SHORT_WAIT_MS)


async def test_empty_replies_in_spite_of_a_backlog_are_followed_by_pauses(found: Broker) -> None:
    found.is_stuck = True
    source = found.source()
    for _ in range(3):
        await source.fetch()
    assert found.pauses == [sources.EMPTY_PULL_S] * 3
