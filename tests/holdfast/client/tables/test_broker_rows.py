"""What BrokerRows asks the broker, and what it does when the topic changes meanwhile."""

from typing import cast

import pytest

from holdfast.client.errors import OffsetBeyondEnd, TopicRecreated
from holdfast.client.read.facts import QueueBounds, TopicFacts, TopicLimits
from holdfast.client.read.options import PullOptions, Start
from holdfast.client.read.pull import Fetched
from holdfast.client.tables import broker_rows
from holdfast.client.tables.broker_rows import BrokerRows
from holdfast.client.tables.ranges import Bound, TableRange
from holdfast.client.transport.requests import Transport


class Broker:
    """Answers each pull with at most 30 offsets, without messages."""

    def __init__(self, ends: dict[int, int]) -> None:
        self.ends = ends
        self.topic_id = 1
        self.pulled: list[tuple[int, int, int]] = []
        self.interrupts = 0

    async def fetch_facts(self) -> TopicFacts:
        queues = [QueueBounds(queue, 0, end) for queue, end in self.ends.items()]
        return TopicFacts(1, len(queues), queues, TopicLimits(1))

    async def find_offset(self, queue: int, timestamp_ms: int) -> tuple[int, int | None]:
        if self.interrupts:
            self.interrupts -= 1
            raise KeyboardInterrupt
        return timestamp_ms, timestamp_ms

    async def pull(self, queue: int, start: Start, options: PullOptions, wait_ms: int) -> Fetched:
        assert start.offset is not None
        assert wait_ms == 0
        self.pulled.append((queue, start.offset, options.max_messages))
        end = min(self.ends[queue], start.offset + 30)
        return Fetched([], {queue: end}, self.ends, self.topic_id, ())

    def rows(self, start: Bound | None = None, end: Bound | None = None) -> BrokerRows:
        wanted = TableRange("orders", None, start or Bound(), end or Bound())
        return BrokerRows(cast(Transport, self), wanted, PullOptions(max_messages=100))


@pytest.fixture
def broker(monkeypatch: pytest.MonkeyPatch) -> Broker:
    found = Broker({1: 40, 0: 70, 2: 0})
    monkeypatch.setattr(broker_rows, "TopicRequests", lambda *_: found)
    return found


async def read_all(rows: BrokerRows) -> None:
    while await rows.fetch() is not None:
        pass


async def test_queues_are_pulled_in_order_without_asking_for_more_than_the_range(
    broker: Broker,
) -> None:
    await read_all(broker.rows())
    assert broker.pulled == [(0, 0, 70), (0, 30, 40), (0, 60, 10), (1, 0, 40), (1, 30, 10)]
    broker.pulled.clear()
    await read_all(broker.rows(Bound(timestamp_ms=20), Bound({0: 45, 1: 20})))
    assert broker.pulled == [(0, 20, 25)]


async def test_a_topic_that_was_created_again_is_not_read_on(broker: Broker) -> None:
    rows = broker.rows()
    await rows.fetch()
    broker.topic_id = 2
    with pytest.raises(TopicRecreated, match="read it again"):
        await rows.fetch()


async def test_messages_that_were_lost_meanwhile_are_missed(broker: Broker) -> None:
    rows = broker.rows()
    await rows.fetch()
    broker.ends[0] = 30
    with pytest.raises(OffsetBeyondEnd, match="ends at offset 30"):
        await rows.fetch()


async def test_an_interrupted_start_begins_again(broker: Broker) -> None:
    broker.interrupts = 1
    rows = broker.rows(Bound(timestamp_ms=60), Bound({1: 0}))
    with pytest.raises(KeyboardInterrupt):
        await rows.fetch()
    await read_all(rows)
    assert broker.pulled == [(0, 60, 10)]
