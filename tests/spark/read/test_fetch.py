import logging
import threading
from typing import Any

import pyarrow as pa
import pytest

from holdfast.commitlog.errors import CorruptBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.spark.broker import block_receiver
from holdfast.spark.broker.client import BrokerClient, PullOutcome
from holdfast.spark.errors import BrokerRefused, DataLost, ReplyMismatch, TopicRecreated
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import ReadOptions, parse_options
from holdfast.spark.read.fetch import read_range
from tests.spark.stored import join_batches, store
from tests.support.batches import Columns
from tests.support.fake_broker import Answer, FakeBroker, FakeTopic

TAGS = ["200", "404", None]


@pytest.fixture(autouse=True, params=["large", "small"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Set whether blocks count as large; replies with large blocks are gathered."""
    if request.param == "large":
        monkeypatch.setattr(block_receiver, "LARGE_BLOCK_BYTES", 0)
    return str(request.param)


@pytest.fixture(autouse=True)
def topic(broker: FakeBroker) -> FakeTopic:
    """One queue of 30 blocks of 10 messages; a body is its offset."""
    topic = broker.topic("orders")
    for base in range(0, 300, 10):
        offsets = range(base, base + 10)
        topic.publish(
            0,
            [b"%d" % offset for offset in offsets],
            tags=[TAGS[offset % 3] for offset in offsets],
        )
    return topic


def options(**given: str) -> ReadOptions:
    return parse_options({"url": "http://unused", "topic": "orders", **given})


def part_of(topic: FakeTopic, start: int, end: int) -> QueueRange:
    return QueueRange("orders", topic.topic_id, 0, start, end)


def read(client: BrokerClient, part: QueueRange, **given: str) -> list[dict[str, Any]]:
    batches = list(read_range(client, part, options(**given)))
    assert all(isinstance(batch, pa.RecordBatch) for batch in batches)
    return [row for batch in batches for row in batch.to_pylist()]


def offsets(rows: list[dict[str, Any]]) -> list[int]:
    assert all(row["body"] == b"%d" % row["offset"] for row in rows)
    return [row["offset"] for row in rows]


@pytest.mark.parametrize(("start", "end"), [(0, 300), (0, 1), (5, 15), (299, 300), (37, 251)])
@pytest.mark.parametrize("fetch_bytes", ["1", "100", "8m"])
def test_exactly_the_range_is_read(
    topic: FakeTopic, client: BrokerClient, start: int, end: int, fetch_bytes: str
) -> None:
    rows = read(client, part_of(topic, start, end), fetchMaxBytes=fetch_bytes)
    assert offsets(rows) == list(range(start, end))


def test_reading_again_gives_the_same_bytes(topic: FakeTopic, client: BrokerClient) -> None:
    first, second = (
        [batch.serialize() for batch in read_range(client, part_of(topic, 5, 95), options())]
        for _ in range(2)
    )
    assert first == second


def test_whole_blocks_are_used_to_their_end(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The broker's limit of 15 ends in the middle of a block, which it sends whole.
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 15)
    assert offsets(read(client, part_of(topic, 0, 60))) == list(range(60))
    pulls = [request for request in broker.requests if "/messages" in request]
    assert [pull.split("offset=")[1].split("&")[0] for pull in pulls] == ["0", "20", "40"]


@pytest.mark.parametrize(
    ("max_rows", "expected"), [(59, [40, 40, 20]), (60, [60, 40]), (61, [60, 40])]
)
def test_replies_of_large_blocks_become_one_record_batch(
    topic: FakeTopic,
    client: BrokerClient,
    monkeypatch: pytest.MonkeyPatch,
    kind: str,
    max_rows: int,
    expected: list[int],
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 20)
    monkeypatch.setattr("holdfast.spark.read.fetch.MAX_ROWS", max_rows)
    batches = list(read_range(client, part_of(topic, 0, 100), options()))
    assert [len(batch) for batch in batches] == (expected if kind == "large" else [20] * 5)
    assert offsets([row for batch in batches for row in batch.to_pylist()]) == [*range(100)]


def test_no_more_messages_are_requested_than_the_range_has(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    read(client, part_of(topic, 5, 8))
    assert "offset=5&max_messages=3&" in broker.requests[-1]


def test_a_reply_that_breaks_off_is_requested_again(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 20)

    def break_off(target: str) -> Answer | None:
        if "offset=40&" not in target:
            return None
        broker.faults.remove(break_off)
        answer = broker.answer("GET", target, {"Accept": "application/vnd.holdfast.batch"}, b"")
        fields = {**answer.headers, "Content-Length": str(len(answer.body))}
        return Answer(200, fields, answer.body[:-30])

    broker.faults.append(break_off)
    assert offsets(read(client, part_of(topic, 0, 100))) == [*range(100)]
    assert broker.faults == []


@pytest.mark.parametrize("given", [{"tag": "404"}, {"tag": "200,404"}, {"tag": "none"}])
def test_tags_choose_rows(topic: FakeTopic, client: BrokerClient, given: dict[str, str]) -> None:
    wanted = given["tag"].split(",")
    expected = [offset for offset in range(7, 222) if TAGS[offset % 3] in wanted]
    assert offsets(read(client, part_of(topic, 7, 222), **given)) == expected
    assert offsets(read(client, part_of(topic, 7, 222), columns="offset,body", **given)) == expected


def test_blocks_without_the_tag_are_not_missed(topic: FakeTopic, client: BrokerClient) -> None:
    for tag in ("500", "200", "500", "200"):
        base = topic.queues[0].max_offset
        topic.publish(0, [b"%d" % base], tags=[tag])
    rows = read(client, part_of(topic, 0, 304), tag="500")
    assert offsets(rows) == [300, 302]


def test_a_filter_is_left_to_the_broker(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    # This fake broker ignores the expression; with a tag, it sends the matching messages.
    rows = read(client, part_of(topic, 7, 222), filter="a = 'b'", tag="404", fetchMaxBytes="200")
    assert offsets(rows) == [offset for offset in range(7, 222) if offset % 3 == 1]
    assert all("filter=a+%3D+%27b%27" in request for request in broker.requests)


def test_reading_continues_after_the_broker_returns(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    broker.fail_once(503, match="offset=100&")
    rows = read(client, part_of(topic, 0, 300), fetchMaxBytes="1")
    assert offsets(rows) == list(range(300))


def test_the_next_pull_starts_before_the_rows_are_used(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    asked = threading.Event()

    def notice(target: str) -> None:
        if "offset=10&" in target:
            asked.set()

    broker.faults.append(notice)
    rows = read_range(client, part_of(topic, 0, 30), options(fetchMaxBytes="1"))
    next(rows)
    assert asked.wait(10)
    rows.close()  # type: ignore[attr-defined]


def test_a_trimmed_range_is_lost_data_or_skipped_and_logged(
    topic: FakeTopic, client: BrokerClient, caplog: pytest.LogCaptureFixture
) -> None:
    topic.queues[0].min_offset = 50
    with pytest.raises(DataLost, match="from offset 20 to 50"):
        read(client, part_of(topic, 20, 100))
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        rows = read(client, part_of(topic, 20, 100), failOnDataLoss="false")
        assert offsets(rows) == list(range(50, 100))
        assert "skipped 30 messages" in caplog.text
        assert read(client, part_of(topic, 20, 40), failOnDataLoss="false") == []
        assert "skipped 20 messages" in caplog.text


def damaged(broker: FakeBroker, start: int, following: int) -> None:
    """Let the broker report damage from `start` to `following` for a pull at `start`."""

    def fault(target: str) -> Answer | None:
        if f"offset={start}&" not in target:
            return None
        problem = b'{"type": "/problems/corrupt-record", "next_offset": %d}' % following
        return Answer(500, {"Content-Type": "application/problem+json"}, problem)

    broker.faults.append(fault)


def test_a_damaged_range_is_lost_data(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("holdfast.spark.broker.client.MAX_MESSAGES", 10)
    damaged(broker, 20, 40)
    with pytest.raises(DataLost, match=r"from offset 20 to 40 \(damaged"):
        read(client, part_of(topic, 0, 100))
    rows = read(client, part_of(topic, 0, 100), failOnDataLoss="false")
    assert offsets(rows) == [*range(20), *range(40, 100)]


@pytest.mark.parametrize("tag", [{}, {"tag": "200"}])
def test_ranges_that_the_broker_skips_are_lost_data(
    topic: FakeTopic, client: BrokerClient, monkeypatch: pytest.MonkeyPatch, tag: dict[str, str]
) -> None:
    """An operator accepted the loss: the broker no longer refuses, but reports the lost ranges."""
    blocks = [bytes(block.block) for block in topic.queues[0].blocks]
    body = b"".join([*blocks[:2], *blocks[4:6]])

    def pull(*where: object, **bounds: object) -> PullOutcome[bytes]:
        return PullOutcome(body, 60, ((20, 40),))

    monkeypatch.setattr(client, "pull_blocks", pull)
    with pytest.raises(DataLost, match="from offset 20 to 40"):
        read(client, part_of(topic, 0, 60), **tag)
    rows = read(client, part_of(topic, 0, 60), failOnDataLoss="false", **tag)
    expected = [*range(20), *range(40, 60)]
    assert offsets(rows) == [at for at in expected if not tag or at % 3 == 0]


def test_a_queue_that_lost_its_tail_is_lost_data(topic: FakeTopic, client: BrokerClient) -> None:
    del topic.queues[0].blocks[5:]
    for start in (0, 50, 60):
        with pytest.raises(DataLost, match="the queue ends before"):
            read(client, part_of(topic, start, 100))
        rows = read(client, part_of(topic, start, 100), failOnDataLoss="false")
        assert offsets(rows) == list(range(start, 50))


def test_a_topic_recreated_is_refused(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    broker.topic("orders").publish(0, [b"0"])
    with pytest.raises(TopicRecreated):
        read(client, part_of(topic, 0, 1), failOnDataLoss="false")


def test_any_other_refusal_is_raised(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient
) -> None:
    broker.fail_once(500)
    with pytest.raises(BrokerRefused):
        read(client, part_of(topic, 0, 1), failOnDataLoss="false")


def test_damaged_bytes_are_refused(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient, kind: str
) -> None:
    def flip(target: str) -> Answer:
        broker.faults.remove(flip)
        answer = broker.answer("GET", target, {"Accept": "application/vnd.holdfast.batch"}, b"")
        body = bytearray(answer.body)
        body[200] ^= 1
        return Answer(answer.status, answer.headers, bytes(body))

    broker.faults.append(flip)
    with pytest.raises(CorruptBatch, match="payload-crc" if kind == "small" else "unreadable"):
        read(client, part_of(topic, 0, 10))


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
def test_blocks_that_do_not_belong_are_refused(
    broker: FakeBroker, topic: FakeTopic, client: BrokerClient, blocks: list[Batch]
) -> None:
    headers = {"Holdfast-Next-Offset": "30", "Holdfast-Topic-Id": "1"}
    broker.faults.append(lambda _: Answer(200, headers, join_batches(blocks)))
    assert topic.topic_id == 1
    with pytest.raises(ReplyMismatch, match="sent other blocks"):
        read(client, part_of(topic, 0, 30))
