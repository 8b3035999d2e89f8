import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

import msgpack
import pyarrow as pa
import pytest

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.block_merge import merge_blocks
from holdfast.spark.broker import block_receiver
from holdfast.spark.broker.client import BrokerClient, PullOutcome
from holdfast.spark.errors import BrokerRefused, DataLost, ReplyMismatch, TopicRecreated
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.fetch import read_range, unpack_messages
from tests.spark.stored import join_batches, store
from tests.support.servers.fake_broker import BATCH_TYPE, Answer, FakeBroker, FakeTopic
from tests.support.storage.batches import Columns, stamped

TAGS = ["200", "404", None]


@pytest.fixture(autouse=True, params=["large", "small"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set whether blocks count as large; replies with large blocks are gathered."""
    if request.param == "large":
        monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    return str(request.param)


@dataclass
class Orders:
    """A topic with one queue of 30 blocks of 10 messages; a body is its offset."""

    broker: FakeBroker
    client: BrokerClient
    topic: FakeTopic

    def batches(self, start: int, end: int, **given: str) -> Iterator[pa.RecordBatch]:
        options = parse_options({"url": "http://unused", "topic": "orders", **given})
        part = QueueRange("orders", self.topic.topic_id, 0, start, end)
        return read_range(self.client, part, options)

    def read(self, start: int, end: int, **given: str) -> list[int]:
        """Return the offsets of the rows."""
        batches = list(self.batches(start, end, **given))
        assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
        rows = [row for batch in batches for row in batch.to_pylist()]
        assert all(row["body"] == b"%d" % row["offset"] for row in rows)
        return [row["offset"] for row in rows]


@pytest.fixture(autouse=True)
def orders(broker: FakeBroker, client: BrokerClient) -> Orders:
    topic = broker.topic("orders")
    for base in range(0, 300, 10):
        offsets = range(base, base + 10)
        tags = [TAGS[offset % 3] for offset in offsets]
        topic.publish(0, [b"%d" % offset for offset in offsets], tags=tags)
    return Orders(broker, client, topic)


@pytest.mark.parametrize(("start", "end"), [(0, 300), (0, 1), (5, 15), (299, 300), (37, 251)])
@pytest.mark.parametrize("fetch_bytes", ["1", "100", "8m"])
def test_exactly_the_range_is_read(orders: Orders, start: int, end: int, fetch_bytes: str) -> None:
    assert orders.read(start, end, fetchMaxBytes=fetch_bytes) == list(range(start, end))


def test_reading_again_gives_the_same_bytes(orders: Orders) -> None:
    first, second = ([batch.serialize() for batch in orders.batches(5, 95)] for _ in range(2))
    assert first == second


def test_whole_blocks_are_used_to_their_end(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker's limit of 15 ends in the middle of a block, which it sends whole.
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 15)
    assert orders.read(0, 60) == list(range(60))
    pulls = [request for request in orders.broker.requests if "/messages" in request]
    assert [pull.split("offset=")[1].split("&")[0] for pull in pulls] == ["0", "20", "40"]


@pytest.mark.parametrize(
    ("max_rows", "expected"), [(59, [40, 40, 20]), (60, [60, 40]), (61, [60, 40])]
)
def test_replies_of_large_blocks_become_one_record_batch(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, kind: str, max_rows: int, expected: list[int]
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 20)
    monkeypatch.setattr("holdfast.spark.read.fetch.MAX_ROWS", max_rows)
    batches = list(orders.batches(0, 100))
    assert [len(batch) for batch in batches] == (expected if kind == "large" else [20] * 5)
    rows = [row["offset"] for batch in batches for row in batch.to_pylist()]
    assert rows == [*range(100)]


def test_no_more_messages_are_requested_than_the_range_has(orders: Orders) -> None:
    orders.read(5, 8)
    assert "offset=5&max_messages=3&" in orders.broker.requests[-1]


def test_a_reply_that_breaks_off_is_requested_again(
    orders: Orders, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 20)

    def break_off(target: str) -> Answer:
        answer = orders.broker.answer("GET", target, {"Accept": BATCH_TYPE}, b"")
        fields = {**answer.headers, "Content-Length": str(len(answer.body))}
        return Answer(200, fields, answer.body[:-30])

    orders.broker.answer_once(break_off, match="offset=40&")
    assert orders.read(0, 100) == [*range(100)]
    assert orders.broker.faults == []


@pytest.mark.parametrize("given", [{"tag": "404"}, {"tag": "200,404"}, {"tag": "none"}])
def test_tags_choose_rows(orders: Orders, given: dict[str, str]) -> None:
    wanted = given["tag"].split(",")
    expected = [offset for offset in range(7, 222) if TAGS[offset % 3] in wanted]
    assert orders.read(7, 222, **given) == expected
    assert orders.read(7, 222, columns="offset,body", **given) == expected


def test_blocks_without_the_tag_are_not_missed(orders: Orders) -> None:
    for tag in ("500", "200", "500", "200"):
        base = orders.topic.queues[0].max_offset
        orders.topic.publish(0, [b"%d" % base], tags=[tag])
    assert orders.read(0, 304, tag="500") == [300, 302]


def test_a_filter_is_left_to_the_broker(orders: Orders) -> None:
    # This fake broker ignores the expression; with a tag, it sends the matching messages.
    rows = orders.read(7, 222, filter="a = 'b'", tag="404", fetchMaxBytes="200")
    assert rows == [offset for offset in range(7, 222) if offset % 3 == 1]
    assert all("filter=a+%3D+%27b%27" in request for request in orders.broker.requests)


def test_reading_continues_after_the_broker_returns(orders: Orders) -> None:
    orders.broker.fail_once(503, match="offset=100&")
    assert orders.read(0, 300, fetchMaxBytes="1") == list(range(300))


def test_the_next_pull_starts_before_the_rows_are_used(orders: Orders) -> None:
    asked = threading.Event()

    def notice(target: str) -> None:
        if "offset=10&" in target:
            asked.set()

    orders.broker.faults.append(notice)
    rows = orders.batches(0, 30, fetchMaxBytes="1")
    next(rows)
    assert asked.wait(10)
    rows.close()  # type: ignore[attr-defined]


def test_a_trimmed_range_is_lost_data_or_skipped_and_logged(
    orders: Orders, caplog: pytest.LogCaptureFixture
) -> None:
    orders.topic.queues[0].min_offset = 50
    with pytest.raises(DataLost, match="from offset 20 to 50"):
        orders.read(20, 100)
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        assert orders.read(20, 100, failOnDataLoss="false") == list(range(50, 100))
        assert "skipped 30 messages" in caplog.text
        assert orders.read(20, 40, failOnDataLoss="false") == []
        assert "skipped 20 messages" in caplog.text


def test_a_damaged_range_is_lost_data(orders: Orders, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 10)
    problem = b'{"type": "/problems/corrupt-record", "next_offset": 40}'
    answer = Answer(500, {"Content-Type": "application/problem+json"}, problem)
    orders.broker.faults.append(lambda target: answer if "offset=20&" in target else None)
    with pytest.raises(DataLost, match=r"from offset 20 to 40 \(damaged"):
        orders.read(0, 100)
    assert orders.read(0, 100, failOnDataLoss="false") == [*range(20), *range(40, 100)]


@pytest.mark.parametrize("tag", [{}, {"tag": "200"}])
def test_ranges_that_the_broker_skips_are_lost_data(
    orders: Orders, monkeypatch: pytest.MonkeyPatch, tag: dict[str, str]
) -> None:
    """An operator accepted the loss: the broker no longer refuses, but reports the lost ranges."""
    blocks = [bytes(block.block) for block in orders.topic.queues[0].blocks]
    body = b"".join([*blocks[:2], *blocks[4:6]])

    def pull(*where: object, **bounds: object) -> PullOutcome[bytes]:
        return PullOutcome(body, 60, ((20, 40),))

    monkeypatch.setattr(orders.client, "pull_blocks", pull)
    with pytest.raises(DataLost, match="from offset 20 to 40"):
        orders.read(0, 60, **tag)
    rows = orders.read(0, 60, failOnDataLoss="false", **tag)
    expected = [*range(20), *range(40, 60)]
    assert rows == [at for at in expected if not tag or at % 3 == 0]


def test_a_queue_that_lost_its_tail_is_lost_data(orders: Orders) -> None:
    del orders.topic.queues[0].blocks[5:]
    for start in (0, 50, 60):
        with pytest.raises(DataLost, match="the queue ends before"):
            orders.read(start, 100)
        assert orders.read(start, 100, failOnDataLoss="false") == list(range(start, 50))


def test_a_topic_recreated_is_refused(orders: Orders) -> None:
    orders.broker.topic("orders").publish(0, [b"0"])
    with pytest.raises(TopicRecreated):
        orders.read(0, 1, failOnDataLoss="false")


def test_any_other_refusal_is_raised(orders: Orders) -> None:
    orders.broker.fail_once(500)
    with pytest.raises(BrokerRefused):
        orders.read(0, 1, failOnDataLoss="false")


def test_damaged_bytes_are_refused(orders: Orders, kind: str) -> None:
    def flip(target: str) -> Answer:
        answer = orders.broker.answer("GET", target, {"Accept": BATCH_TYPE}, b"")
        body = bytearray(answer.body)
        body[200] ^= 1
        return Answer(answer.status, answer.headers, bytes(body))

    orders.broker.answer_once(flip)
    with pytest.raises(CorruptBatch, match="payload-crc" if kind == "small" else "unreadable"):
        orders.read(0, 10)


BLOCK = Columns([b"x"] * 10)


@pytest.mark.parametrize(
    "blocks",
    [
        store([BLOCK], topic_id=2, queue=0),
        store([BLOCK], topic_id=1, queue=1),
        store([BLOCK], 5, topic_id=1, queue=0),
        store([BLOCK, BLOCK], topic_id=1, queue=0)[::-1],
        store([BLOCK] * 3, topic_id=1, queue=0)[::2],
        store([BLOCK], topic_id=1, queue=0) * 2,
    ],
    ids=["another topic", "another queue", "too far on", "out of order", "a gap", "twice"],
)
def test_blocks_that_do_not_belong_are_refused(orders: Orders, blocks: list[Batch]) -> None:
    headers = {"Holdfast-Next-Offset": "30", "Holdfast-Topic-Id": "1"}
    orders.broker.faults.append(lambda _: Answer(200, headers, join_batches(blocks)))
    assert orders.topic.topic_id == 1
    with pytest.raises(ReplyMismatch, match="sent other blocks"):
        orders.read(0, 30)


@pytest.mark.parametrize("body", [b"", b"\xc1", msgpack.packb([1]), msgpack.packb({})])
def test_invalid_replies_are_refused(body: bytes) -> None:
    with pytest.raises(ReplyMismatch):
        unpack_messages(body)


def test_blocks_that_the_broker_merged_give_the_same_rows(orders: Orders) -> None:
    def rows() -> list[dict[str, object]]:
        return [row for batch in orders.batches(5, 295) for row in batch.to_pylist()]

    held = orders.topic.queues[0]
    held.blocks = [
        stamped(
            bytes(each.block),
            physical_offset=0,
            base_offset=each.header.base_offset,
            topic_id=each.header.topic_id,
            store_timestamp_us=each.header.store_timestamp_us + number * 1000,
        )
        for number, each in enumerate(held.blocks)
    ]
    plain = rows()
    assert len({row["store_timestamp"] for row in plain}) == 30
    merged = [
        merge_blocks(BatchRun(join_batches(held.blocks[first : first + 10])))
        for first in range(0, 30, 10)
    ]
    held.blocks = [Batch.decode(block, rebuilt=True) for block in merged if block is not None]
    assert len(held.blocks) == 3
    assert rows() == plain
