"""Partitions written to a real broker, without Spark."""

import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from holdfast.client import Message
from holdfast.spark.errors import BrokerRefused, ReplayDiffers, UnwritableRow, WriteRefused
from holdfast.spark.options.write import parse_write_options
from holdfast.spark.write.columns import choose_columns, choose_sort_columns
from holdfast.spark.write.producer_identity import Producer, WriterRun
from holdfast.spark.write.publisher import WriteCounts
from holdfast.spark.write.task import write_partition
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.spark.broker.test_access import make_token
from tests.support.damage.dropping_proxy import dropping_proxy

TIME = pa.timestamp("us", tz="UTC")
MAP = pa.map_(pa.string(), pa.string())
KINDS: dict[str, tuple[str, pa.DataType]] = {
    "body": ("binary", pa.binary()),
    "key": ("string", pa.string()),
    "tag": ("string", pa.string()),
    "properties": ("map<string,string>", MAP),
    "topic": ("string", pa.string()),
    "queue": ("int", pa.int32()),
    "priority": ("int", pa.int32()),
    "born_timestamp": ("timestamp", TIME),
    "expires_timestamp": ("timestamp", TIME),
}


def arrow(columns: dict[str, list[Any]]) -> pa.RecordBatch:
    arrays = [pa.array(values, KINDS[name][1]) for name, values in columns.items()]
    return pa.RecordBatch.from_arrays(arrays, names=list(columns))


def write(
    url: str,
    batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch],
    *,
    names: Sequence[str] = ("body", "key"),
    writer: WriterRun | None = WriterRun("job", 0),  # noqa: B008  frozen
    partition: int = 0,
    **options: str,
) -> WriteCounts:
    given = parse_write_options({"url": url, **options}, streaming=False)
    schema = [(name, KINDS[name][0]) for name in names]
    columns = choose_columns(schema, topic_given="topic" in options)
    sort_by = choose_sort_columns(schema, given.sort_by)
    producer = Producer(writer, partition)
    return write_partition(iter(batches), given, columns, producer, sort_by=sort_by)


def stored(running: RunningBroker, topic: str) -> dict[int, list[Message]]:
    """Return each queue's messages."""
    with running.client() as client:
        count = client.describe_topic(topic)["queue_count"]
        return {queue: list(client.pull(topic, queue, 0, follow=False)) for queue in range(count)}


def bodies(running: RunningBroker, topic: str) -> dict[int, list[bytes]]:
    return {queue: [m.body for m in found] for queue, found in stored(running, topic).items()}


def numbered(count: int, *, cut: int = 50) -> list[pa.RecordBatch]:
    batch = arrow(
        {
            "body": [b"%d" % number for number in range(count)],
            "key": [f"k{number % 11}" for number in range(count)],
        }
    )
    return [batch.slice(at, cut) for at in range(0, count, cut)]


@dataclass
class Target:
    """A topic of three queues on a real broker, only for this test."""

    broker: RunningBroker
    topic: str

    def write(
        self, batches: Sequence[pa.RecordBatch] | Iterator[pa.RecordBatch], **given: Any
    ) -> WriteCounts:
        return write(self.broker.url, batches, topic=self.topic, **given)

    def bodies(self) -> dict[int, list[bytes]]:
        return bodies(self.broker, self.topic)

    def assert_each_once(self, count: int) -> None:
        """Check that each number is there once, and in order per key."""
        found = self.bodies()
        assert sorted(int(body) for queue in found.values() for body in queue) == [*range(count)]
        for queue in found.values():
            for key in range(11):
                of_key = [int(body) for body in queue if int(body) % 11 == key]
                assert of_key in ([], list(range(key, count, 11)))


@pytest.fixture
def target(running: RunningBroker, topic: str) -> Target:
    return Target(running, topic)


def test_every_column_is_stored(target: Target, running: RunningBroker, topic: str) -> None:
    columns: dict[str, list[Any]] = {
        "body": [b"one", b"", b"\xff\x00"],
        "key": ["k1", None, "ключ"],
        "tag": [None, "red", "blue"],
        "properties": [[("a", "1"), ("b", "")], None, []],
        "queue": [None, 2, 0],
        "born_timestamp": [1_700_000_000_000_000, None, 1_700_000_000_001_000],
        "expires_timestamp": [None, 4_000_000_000_000_000, None],
    }
    counts = target.write([arrow(columns)], names=list(columns))
    assert (counts.rows, counts.duplicates) == (3, 0)
    with running.client() as client:
        publish = client.publish(topic, b"same key", key="k1")
    found = {m.body: m for queue in stored(target.broker, target.topic).values() for m in queue}
    one, empty, raw = found[b"one"], found[b""], found[b"\xff\x00"]
    assert (one.key, one.tag, one.properties) == ("k1", None, {"a": "1", "b": ""})
    assert one.queue == publish.queue
    assert one.born_timestamp_ms == 1_700_000_000_000
    assert (empty.key, empty.tag, empty.properties, empty.queue) == (None, "red", {}, 2)
    assert (raw.key, raw.tag, raw.queue) == ("ключ", "blue", 0)


@pytest.mark.parametrize("rows", ["1000", "7"])
def test_a_second_attempt_stores_nothing_twice(target: Target, rows: str) -> None:
    """Also if it sent more than the broker remembers and Spark cuts the batches differently."""
    first = target.write(numbered(400), maxBatchRows=rows)
    second = target.write(numbered(400, cut=33), maxBatchRows=rows)
    assert (first.duplicates, first.rows, second.rows) == (0, 400, 400)
    assert second.duplicates == second.batches == first.batches
    target.assert_each_once(400)


def test_an_attempt_completes_an_interrupted_one(target: Target) -> None:
    class Cut(Exception):
        pass

    def until(count: int) -> Iterator[pa.RecordBatch]:
        yield from numbered(count, cut=10)
        raise Cut

    for count in (30, 170, 90, 250):
        with pytest.raises(Cut):
            target.write(until(count), maxBatchRows="8")
    target.write(numbered(400), maxBatchRows="8")
    target.assert_each_once(400)


def test_an_attempt_whose_rows_ended_too_early_is_completed(target: Target) -> None:
    """Spark ends the rows like this when an earlier step of the task fails."""
    for count in (33, 35, 34, 190, 71, 333):
        with suppress(ReplayDiffers):  # not raised if the last batch is too old to compare
            target.write(numbered(count), maxBatchRows="8")
    for _ in range(2):
        target.write(numbered(400), maxBatchRows="8")
    target.assert_each_once(400)


def test_attempts_at_once_store_each_row_once(target: Target) -> None:
    errors: list[Exception] = []

    def attempt(cut: int) -> None:
        try:
            target.write(numbered(600, cut=cut), maxBatchRows="10")
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=attempt, args=(cut,)) for cut in (7, 50, 600)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors
    target.assert_each_once(600)


def test_lost_replies_are_requested_again(
    target: Target, running: RunningBroker, topic: str
) -> None:
    with dropping_proxy(running.url, lambda number: number % 3 == 0) as proxy:
        counts = write(proxy.url, numbered(300), topic=topic, maxBatchRows="20")
    assert counts.duplicates > 0
    assert proxy.publishes > 15
    target.assert_each_once(300)


def test_rows_without_key_or_queue_are_spread_by_windows(target: Target) -> None:
    batch = arrow({"body": [b"%d" % number for number in range(90)]})
    for _ in range(2):
        target.write([batch], names=["body"], maxBatchRows="10")
    found = target.bodies()
    assert [len(queue) for queue in found.values()] == [30, 30, 30]
    assert sorted(int(body) for queue in found.values() for body in queue) == list(range(90))


def test_rows_that_name_their_topic(target: Target, running: RunningBroker, topic: str) -> None:
    other = f"{topic}.other"
    batch = arrow(
        {"body": [b"a", b"b", b"c", b"d"], "topic": [topic, other, topic, other], "queue": [1] * 4}
    )
    names = ["body", "topic", "queue"]
    with pytest.raises(BrokerRefused, match="unknown-topic"):
        write(running.url, [batch], names=names)
    for _ in range(2):
        write(running.url, [batch], names=names, createTopic="true")
    assert target.bodies()[1] == [b"a", b"c"]
    assert bodies(running, other)[1] == [b"b", b"d"]
    write(running.url, [batch], names=names, topic=other, writer=WriterRun("job", 1))
    assert bodies(running, other)[1] == [b"b", b"d", b"a", b"b", b"c", b"d"]


def test_priorities_choose_levels(running: RunningBroker, topic: str) -> None:
    name = f"{topic}.levels"
    with running.client() as client:
        client.create_topic(name, queues=2, priority_levels=2)
        expected = client.publish(name, b"", key="a").queue
    batch = arrow({"body": [b"low", b"high"], "key": ["a", "a"], "priority": [None, 9]})
    write(running.url, [batch], names=["body", "key", "priority"], topic=name)
    found = bodies(running, name)
    assert found[expected] == [b"", b"low"]
    assert found[expected + 1] == [b"high"]


def test_other_rows_are_refused_and_nothing_of_them_is_stored(target: Target, topic: str) -> None:
    target.write(numbered(300), maxBatchRows="10")
    batch = numbered(300, cut=300)[0]
    swapped = batch.take(pa.array([*range(100), 101, 100, *range(102, 300)]))
    target.write([swapped], maxBatchRows="10", writer=WriterRun("other", 0))
    for rows in (batch.take(pa.array(range(299, -1, -1))), batch.slice(0, 20), batch.slice(11)):
        with pytest.raises(ReplayDiffers, match=f"of '{topic}'"):
            target.write([rows], maxBatchRows="10")
    assert sum(map(len, target.bodies().values())) == 600


def test_rows_in_any_order_are_the_same_once_they_are_sorted(target: Target) -> None:
    batch = numbered(200, cut=200)[0]
    for order in (range(200), range(199, -1, -1)):
        shuffled = batch.take(pa.array(order))
        parts = [shuffled.slice(0, 90), shuffled.slice(90)]
        target.write(parts, maxBatchRows="10", sortBy="Body")
    found = target.bodies()
    assert sorted(int(body) for queue in found.values() for body in queue) == list(range(200))
    assert all(queue == sorted(queue) for queue in found.values())
    assert target.write([], sortBy="body").rows == 0


def test_a_later_batch_is_new_and_an_earlier_one_is_fenced(target: Target) -> None:
    for epoch in (0, 5):
        target.write(numbered(20), writer=WriterRun("stream", epoch))
    with pytest.raises(WriteRefused, match=r"rows 0 to 19 of partition 0.*producer-fenced"):
        target.write(numbered(20), writer=WriterRun("stream", 4))
    assert sum(map(len, target.bodies().values())) == 40


def test_a_refused_write_names_its_rows(running: RunningBroker, topic: str) -> None:
    small = f"{topic}.small"
    with running.client() as client:
        client.create_topic(small, queues=1, max_message_bytes=1000)
    batch = arrow({"body": [b"x" * (1001 if number == 25 else 10) for number in range(40)]})
    with pytest.raises(WriteRefused, match=r"rows 20 to 29 of partition 4, for queue 0.*413") as no:
        write(running.url, [batch], names=["body"], topic=small, maxBatchRows="10", partition=4)
    assert (no.value.first_row, no.value.last_row) == (20, 29)
    assert len(bodies(running, small)[0]) == 20
    with pytest.raises(UnwritableRow, match=r"row 1 of partition 0: column 'queue' is 3"):
        write(
            running.url,
            [arrow({"body": [b"", b""], "queue": [0, 3]})],
            names=["body", "queue"],
            topic=topic,
        )


def test_a_broker_killed_in_the_middle_is_waited_for(
    target: Target, running: RunningBroker
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbered(300, cut=10)):
            if number == 5:
                running.kill()
                starting = threading.Thread(target=running.start)
                starting.start()
                yield batch
                starting.join()
            else:
                yield batch

    target.write(batches(), maxBatchRows="10")
    target.write(numbered(300), maxBatchRows="10")
    target.assert_each_once(300)


def test_a_topic_recreated_fails_the_attempt(
    target: Target, running: RunningBroker, topic: str
) -> None:
    def batches() -> Iterator[pa.RecordBatch]:
        for number, batch in enumerate(numbered(100, cut=10)):
            if number == 5:
                with running.client() as client:
                    client.delete_topic(topic)
                    client.create_topic(topic, queues=3)
            yield batch

    with pytest.raises(WriteRefused, match="topic-recreated"):
        target.write(batches(), maxBatchRows="10")


def test_a_token_that_may_only_publish_is_enough(tmp_path: Path) -> None:
    everything = make_token(tmp_path / "data", "all")
    token = make_token(tmp_path / "data", "publish:=orders")
    arguments = (*TEST_ARGUMENTS, "--access-authentication", "true")
    with RunningBroker(tmp_path / "data", arguments) as guarded:
        with guarded.client(token=everything) as client:
            client.create_topic("orders", queues=2)
        for _ in range(2):
            write(guarded.url, numbered(50), topic="orders", token=token, maxBatchRows="10")
        with guarded.client(token=everything) as client:
            found = [m for queue in (0, 1) for m in client.pull("orders", queue, 0, follow=False)]
        assert len(found) == 50
        with pytest.raises(BrokerRefused, match="401"):
            write(guarded.url, numbered(1), topic="orders")


@pytest.mark.parametrize("durability", ["fsync", "written"])
def test_the_durability_is_requested(running: RunningBroker, topic: str, durability: str) -> None:
    with dropping_proxy(running.url, lambda _: False) as proxy:
        write(proxy.url, numbered(20), topic=topic, durability=durability)
    assert proxy.targets[-1].endswith(f"/messages?durability={durability}")
