"""Which offsets a stream reads, micro-batch by micro-batch, without Spark."""

import logging
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field

import pytest

from holdfast.spark.errors import (
    BrokerRefused,
    DataLost,
    GoneFromStream,
    SparkError,
    TopicRecreated,
)
from holdfast.spark.options.stream import (
    NO_LIMITS,
    StreamOptions,
    TriggerLimits,
    parse_stream_options,
)
from holdfast.spark.read.reading import open_catalog
from holdfast.spark.stream.driver import StreamDriver
from holdfast.spark.stream.offsets import StreamOffsets
from tests.support.servers.fake_broker import FakeBroker, FakeTopic


@dataclass
class Clock:
    """A clock that only sleeps advance."""

    now_s: float = 100.0
    slept_s: list[float] = field(default_factory=list)

    def __call__(self) -> float:
        return self.now_s

    def sleep(self, pause_s: float) -> None:
        self.slept_s.append(pause_s)
        self.now_s += pause_s


class Streamed:
    """A stream as Spark runs it, with a checkpoint in memory."""

    def __init__(
        self, options: StreamOptions, opened: ExitStack, checkpoint: StreamOffsets | None = None
    ) -> None:
        self.clock = Clock()
        self.limits = options.limits
        catalog = opened.enter_context(open_catalog(options.read))
        self.driver = StreamDriver(catalog, options, clock=self.clock, sleep=self.clock.sleep)
        self._checkpoint = checkpoint

    @property
    def offsets(self) -> StreamOffsets:
        if self._checkpoint is None:
            self._checkpoint = self.driver.initial()
        return self._checkpoint

    def ask(self, limits: TriggerLimits | None = None) -> StreamOffsets:
        return self.driver.latest(self.offsets, self.limits if limits is None else limits)

    def batch(self, limits: TriggerLimits | None = None) -> dict[tuple[str, int], tuple[int, int]]:
        """Return the range of each queue in the next micro-batch."""
        start, end = self.offsets, self.ask(limits)
        self._checkpoint = end
        return self.reads(start, end)

    def reads(
        self, start: StreamOffsets, end: StreamOffsets
    ) -> dict[tuple[str, int], tuple[int, int]]:
        parts = [part for parts in self.driver.plan(start, end) for part in parts]
        return {(part.topic, part.queue): (part.start, part.end) for part in parts}

    def counts(self) -> dict[tuple[str, int], int]:
        return {key: end - start for key, (start, end) in self.batch().items()}


@dataclass
class Streams:
    """Opens streams of the broker; by default of the topic "orders", from its beginning."""

    broker: FakeBroker
    topic: FakeTopic
    opened: ExitStack

    def __call__(self, checkpoint: StreamOffsets | None = None, /, **given: str) -> Streamed:
        if not {"subscribePattern", "assign", "subscribe"} & given.keys():
            given["topic"] = "orders"
        if "startingTimestamp" not in given:
            given.setdefault("startingOffsets", "earliest")
        options = {"url": self.broker.url, **given}
        return Streamed(parse_stream_options(options), self.opened, checkpoint)


@pytest.fixture
def stream(broker: FakeBroker) -> Iterator[Streams]:
    """The topic "orders" has two queues, each with ten blocks of ten messages."""
    topic = broker.topic("orders", queues=2)
    for queue in range(2):
        for _ in range(9):
            topic.publish(queue, [b"x"] * 10)
    topic.publish(0, [b"x"] * 10)
    topic.publish(1, [b"x"] * 10, store_timestamp_us=1_800_000_000_000_000)
    with ExitStack() as opened:
        yield Streams(broker, topic, opened)


def test_a_stream_reads_existing_and_then_new_messages(stream: Streams) -> None:
    orders = stream()
    assert orders.batch() == {("orders", 0): (0, 100), ("orders", 1): (0, 100)}
    assert orders.batch() == {}
    stream.topic.publish(1, [b"y"] * 3)
    assert orders.batch() == {("orders", 1): (100, 103)}


def test_a_stream_at_latest_reads_only_new_messages(stream: Streams) -> None:
    orders = stream(startingOffsets="latest")
    assert orders.batch() == {}
    stream.topic.publish(0, [b"y"])
    assert orders.batch() == {("orders", 0): (100, 101)}


def test_the_start_of_a_stream_never_changes(stream: Streams) -> None:
    orders = stream(startingOffsets="latest")
    first = orders.driver.initial()
    stream.topic.publish(0, [b"y"])
    assert orders.driver.initial() == first


@pytest.mark.parametrize(
    ("options", "reads"),
    [
        ({"startingOffsets": '{"0": 30, "1": -1}'}, {("orders", 0): (30, 100)}),
        ({"startingOffsets": "group:billing"}, {("orders", 0): (7, 100), ("orders", 1): (0, 100)}),
        ({"startingTimestamp": "1750000000000"}, {("orders", 1): (90, 100)}),
        ({"assign": '{"orders": [1]}'}, {("orders", 1): (0, 100)}),
        ({"startingOffsets": '{"1": 95}', "assign": '{"orders": [1]}'}, {("orders", 1): (95, 100)}),
    ],
)
def test_starts(stream: Streams, options: dict[str, str], reads: object) -> None:
    stream.broker.groups["billing"] = {"orders": ({0: 7}, 1)}
    assert stream(**options).batch() == reads


def test_a_batch_is_replayed_from_its_offsets(stream: Streams) -> None:
    orders = stream(maxOffsetsPerTrigger="30")
    start, end = orders.offsets, orders.ask()
    first = orders.reads(start, end)
    stream.topic.publish(0, [b"y"] * 50)
    again = stream(maxOffsetsPerTrigger="7")
    assert again.reads(start, end) == first


def test_a_new_queue_is_read_from_its_beginning(stream: Streams) -> None:
    orders = stream(startingOffsets="latest")
    assert orders.batch() == {}
    stream.topic.queues.append(type(stream.topic.queues[0])())
    before = orders.offsets
    assert orders.ask() is before  # the new queue is empty: nothing to plan
    stream.topic.publish(2, [b"y"] * 5)
    assert orders.batch() == {("orders", 2): (0, 5)}


def test_topics_by_pattern_are_found_while_running(stream: Streams) -> None:
    logs = stream(subscribePattern="log-.*", startingOffsets="latest")
    assert logs.batch() == {}
    for name in ("log-a", "log-b", "other"):
        stream.broker.topic(name).publish(0, [b"x"] * 3)
    assert logs.batch() == {("log-a", 0): (0, 3), ("log-b", 0): (0, 3)}


def test_several_topics(stream: Streams) -> None:
    stream.broker.topic("bills").publish(0, [b"x"] * 10)
    both = stream(subscribe="orders,bills", maxOffsetsPerTrigger="21")
    assert sum(end - start for start, end in both.batch().values()) == 21
    assert sum(end - start for start, end in both.batch(NO_LIMITS).values()) == 189


def test_a_topic_that_never_was_is_refused(stream: Streams) -> None:
    with pytest.raises(BrokerRefused, match="there is no topic 'bills'"):
        stream(subscribe="orders,bills").batch()
    checkpoint = stream().offsets
    with pytest.raises(BrokerRefused, match="there is no topic 'bills'"):
        stream(checkpoint, subscribe="orders,bills").batch()


# -- limits ------------------------------------------------------------------------------------


def test_a_limit_in_messages_is_shared_out_and_cuts_inside_blocks(stream: Streams) -> None:
    stream.topic.publish(1, [b"y"] * 200)
    orders = stream(maxOffsetsPerTrigger="43")
    assert orders.counts() == {("orders", 0): 11, ("orders", 1): 32}
    seen = 43
    while counts := orders.counts():
        assert sum(counts.values()) <= 43
        seen += sum(counts.values())
    assert seen == 400


def test_a_limit_in_bytes_takes_whole_blocks(stream: Streams) -> None:
    size = stream.topic.queues[0].blocks[0].header.total_size
    orders = stream(maxBytesPerTrigger=str(4 * size + size // 2))
    assert orders.counts() == {("orders", 0): 20, ("orders", 1): 20}
    tiny = stream(maxBytesPerTrigger="1")
    taken = [tiny.counts() for _ in range(4)]
    assert taken == [{("orders", queue): 10} for queue in (0, 1, 0, 1)]


def test_a_limit_at_the_end_of_a_block_is_kept(stream: Streams) -> None:
    mixed = stream.broker.topic("mixed")
    mixed.publish(0, [b"x"])
    mixed.publish(0, [b"x" * 5_000])
    size = mixed.queues[0].blocks[0].header.total_size
    orders = stream(subscribe="mixed", maxBytesPerTrigger=str(size))
    assert [orders.counts() for _ in range(2)] == [{("mixed", 0): 1}] * 2


def test_of_two_limits_the_smaller_holds(stream: Streams) -> None:
    size = stream.topic.queues[0].blocks[0].header.total_size
    by_count = stream(maxOffsetsPerTrigger="7", maxBytesPerTrigger="1m")
    assert sum(by_count.counts().values()) == 7
    by_bytes = stream(maxOffsetsPerTrigger="100", maxBytesPerTrigger=str(2 * size))
    assert sum(by_bytes.counts().values()) == 20


def test_a_trigger_without_limits_takes_everything(stream: Streams) -> None:
    orders = stream(maxOffsetsPerTrigger="7", minOffsetsPerTrigger="2")
    assert orders.batch(NO_LIMITS) == {("orders", 0): (0, 100), ("orders", 1): (0, 100)}


def test_few_messages_are_waited_for_but_not_for_ever(stream: Streams) -> None:
    orders = stream(minOffsetsPerTrigger="10", maxTriggerDelay="60s", idleWaitMs="0")
    assert orders.batch()  # the first micro-batch never waits
    stream.topic.publish(0, [b"y"] * 9)
    assert orders.batch() == {}
    stream.topic.publish(1, [b"y"])
    assert orders.batch() == {("orders", 0): (100, 109), ("orders", 1): (100, 101)}
    stream.topic.publish(0, [b"y"])
    orders.clock.now_s += 59.9
    assert orders.batch() == {}
    orders.clock.now_s += 0.2
    assert orders.batch() == {("orders", 0): (109, 110)}


# -- streams that end --------------------------------------------------------------------------


def test_a_pinned_stream_ends_with_the_existing_messages(stream: Streams) -> None:
    orders = stream(maxOffsetsPerTrigger="150", minOffsetsPerTrigger="100")
    orders.driver.pin()
    stream.topic.publish(0, [b"late"] * 99)
    stream.topic.queues.append(type(stream.topic.queues[0])())
    stream.topic.publish(2, [b"late"])
    counts = [sum(orders.counts().values()) for _ in range(3)]
    assert counts == [150, 50, 0]
    assert orders.batch() == {}
    assert orders.clock.slept_s == []


def test_a_pinned_stream_ends_if_its_topic_is_recreated(stream: Streams) -> None:
    orders = stream(maxOffsetsPerTrigger="150", failOnDataLoss="false")
    orders.driver.pin()
    assert sum(orders.counts().values()) == 150
    stream.broker.topic("orders").publish(0, [b"other"])
    assert orders.batch() == {}
    assert orders.ask() is orders.offsets


def test_a_pinned_stream_fails_if_its_topic_is_deleted(stream: Streams) -> None:
    checkpoint = stream().offsets
    del stream.broker.topics["orders"]
    orders = stream(checkpoint)
    orders.driver.pin()
    with pytest.raises(GoneFromStream, match="topic 'orders' is in the stream's checkpoint"):
        orders.batch()


# -- loss --------------------------------------------------------------------------------------


def trim(broker: FakeBroker) -> None:
    broker.topics["orders"].queues[1].min_offset = 130
    broker.topics["orders"].publish(1, [b"y"] * 50)


def shorten(broker: FakeBroker) -> None:
    del broker.topics["orders"].queues[1].blocks[5:]


def recreate(broker: FakeBroker) -> None:
    broker.topic("orders").publish(0, [b"other"] * 5)


def delete(broker: FakeBroker) -> None:
    del broker.topics["orders"]


@pytest.mark.parametrize(
    ("lose", "error", "says", "goes_on_with"),
    [
        (trim, DataLost, r"queue 1 .* 100 to 130 \(trimmed", {("orders", 1): (130, 150)}),
        (shorten, DataLost, r"queue 1 .* 50 to 100 \(the queue ends before", {}),
        (recreate, TopicRecreated, "deleted and created again", {("orders", 0): (0, 5)}),
        (delete, GoneFromStream, "topic 'orders' is in the stream's checkpoint, but does not", {}),
    ],
)
def test_lost_data_fails_the_stream_or_is_logged(
    stream: Streams,
    caplog: pytest.LogCaptureFixture,
    lose: Callable[[FakeBroker], None],
    error: type[SparkError],
    says: str,
    goes_on_with: object,
) -> None:
    strict, lenient = stream(), stream(failOnDataLoss="false")
    assert strict.batch() == lenient.batch()
    lose(stream.broker)
    with pytest.raises(error, match=says):
        strict.batch()
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        assert lenient.batch() == goes_on_with
        assert lenient.batch() == {}
    assert [r for r in caplog.records if "continues without lost messages" in r.getMessage()]


def test_a_queue_that_lost_its_end_is_read_on_from_there(stream: Streams) -> None:
    lenient = stream(failOnDataLoss="false")
    lenient.batch()
    shorten(stream.broker)
    lenient.batch()
    stream.topic.publish(1, [b"y"] * 3)
    assert lenient.batch() == {("orders", 1): (50, 53)}


def test_a_queue_that_is_no_longer_assigned_is_an_error(stream: Streams) -> None:
    both = stream()
    both.batch()
    with pytest.raises(GoneFromStream, match="queue 1 of topic 'orders'"):
        stream(both.offsets, assign='{"orders": [0]}').batch()
    one = stream(both.offsets, assign='{"orders": [0]}', failOnDataLoss="false")
    stream.topic.publish(1, [b"y"])
    assert one.batch() == {}


@pytest.mark.parametrize("lose", [recreate, delete])
def test_a_batch_of_a_lost_topic_is_not_replayed(
    stream: Streams, lose: Callable[[FakeBroker], None]
) -> None:
    orders = stream()
    start, end = orders.offsets, orders.ask()
    lose(stream.broker)
    with pytest.raises((TopicRecreated, GoneFromStream)):
        stream().driver.plan(start, end)
    assert stream(failOnDataLoss="false").reads(start, end) == {}


def test_a_repeated_micro_batch_reads_a_topic_that_is_no_longer_assigned(stream: Streams) -> None:
    stream.broker.topic("refunds").publish(0, [b"r"] * 5)
    before = stream(assign='{"orders": [0], "refunds": [0]}')
    start, end = before.offsets, before.ask()
    after = stream(end, assign='{"orders": [0]}')
    assert after.reads(start, end) == before.reads(start, end)
    with pytest.raises(GoneFromStream, match="'refunds'"):
        after.ask()


def test_topics_that_lose_data_during_planning_are_described_again(stream: Streams) -> None:
    lenient = stream(failOnDataLoss="false", maxBytesPerTrigger="1m")
    stream.broker.answer_once(
        lambda _: setattr(stream.topic.queues[0], "min_offset", 60), match="/splits"
    )
    assert lenient.batch() == {("orders", 0): (60, 100), ("orders", 1): (0, 100)}


# -- waiting -----------------------------------------------------------------------------------


def polls(broker: FakeBroker) -> int:
    return sum("/messages?offsets" in each for each in broker.requests)


def test_the_second_call_in_a_row_waits_at_the_broker(stream: Streams) -> None:
    orders = stream(idleWaitMs="10000")
    orders.batch()
    assert orders.batch() == {}
    assert polls(stream.broker) == 0

    stream.broker.answer_once(lambda _: stream.topic.publish(1, [b"y"]), match="/messages?offsets")
    assert orders.batch() == {("orders", 1): (100, 101)}
    asked = "offsets=0:100,1:100&wait_ms=10000&max_messages=1&max_bytes=1"
    assert f"GET /v1/topics/orders/messages?{asked}" in stream.broker.requests


def test_an_idle_stream_sends_few_requests(stream: Streams) -> None:
    orders = stream(startingOffsets="latest", idleWaitMs="1")
    orders.batch()
    asked = len(stream.broker.requests)
    for turns in range(1, 6):
        orders.clock.now_s += 0.001
        assert orders.batch() == {}
        assert polls(stream.broker) == turns
    assert len(stream.broker.requests) - asked <= 3 * 5


def test_a_call_after_a_pause_returns_at_once(stream: Streams) -> None:
    orders = stream(startingOffsets="latest")
    assert orders.batch() == {}
    orders.clock.now_s += 0.5  # the query runs a micro-batch of another source
    assert orders.batch() == {}
    assert polls(stream.broker) == 0


@pytest.mark.parametrize(("topics", "pauses_s"), [(3, [0.2] * 5), (20, [0.4, 0.4, 0.2])])
def test_several_topics_are_polled_and_many_topics_less_often(
    stream: Streams, topics: int, pauses_s: list[float]
) -> None:
    for number in range(topics):
        stream.broker.topic(f"t{number}")
    several = stream(subscribePattern="t.*")
    assert several.batch() == {}
    assert several.batch() == {}
    assert several.clock.slept_s == pytest.approx(pauses_s)
    assert polls(stream.broker) == 0


def test_a_broker_that_does_not_hold_is_polled(stream: Streams) -> None:
    orders = stream(startingOffsets="latest")
    assert orders.batch() == {}
    stream.broker.fail_once(429, match="/messages?offsets")
    assert orders.batch() == {}
    assert orders.clock.slept_s == pytest.approx([0.2] * 5)
