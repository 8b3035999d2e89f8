"""A broker over a damaged log reports the damage, and serves all other messages on every path. It
runs in its own process, which a wrong access to a damaged file could end (SIGBUS)."""

import os
import shutil
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import pytest

from holdfast.client import Client
from holdfast.client.errors import RecordCorrupt
from holdfast.commitlog.format.batch import iter_batches
from holdfast.commitlog.format.batch_header import MAGIC, BatchHeader
from holdfast.running_broker import RunningBroker
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.errors import DataLost
from holdfast.spark.options.location import Address
from holdfast.spark.options.offsets import QueueRange
from holdfast.spark.options.read import parse_options
from holdfast.spark.read.fetch import read_range
from tests.support.clients.broker_calls import Calls, wait_until
from tests.support.storage.small_log import flip_bit

pytestmark = pytest.mark.fault

MIB = 1024 * 1024
COUNT = 60
ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "0"),
    *("--commitlog-min-free-bytes", "0"),
)


T = TypeVar("T")
PULL = "/v1/topics/t/queues/0/messages"


def body_of(offset: int) -> bytes:
    return b"message %06d " % offset * 4000


def some(cases: Iterable[T], count: int) -> list[T]:
    """Return the first `count` cases; with TEST_ALL_DAMAGE=1 all of them."""
    return list(cases)[: None if os.environ.get("TEST_ALL_DAMAGE") else count]


@dataclass
class Log:
    """A stopped broker with COUNT messages in one queue: a block per message, several segments."""

    broker: RunningBroker
    topic_id: int

    @property
    def directory(self) -> Path:
        return self.broker.data_dir

    def segments(self) -> list[Path]:
        """Return the segments that have messages of the topic, oldest first."""
        found = sorted((self.directory / "commitlog").iterdir())
        return [path for path in found if self.blocks(path)]

    def blocks(self, path: Path) -> list[tuple[int, BatchHeader]]:
        """Return the topic's blocks in a segment: position in the file, header."""
        image, at, found = path.read_bytes(), 0, []
        while (at := image.find(MAGIC, at)) >= 0:
            header = BatchHeader.decode(image, at)
            if header.topic_id == self.topic_id:
                found.append((at, header))
            at += header.total_size
        return found


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, int]:
    """Make the data directory once; each test damages a copy."""
    folder = tmp_path_factory.mktemp("made") / "data"
    with RunningBroker(folder, ARGUMENTS) as broker, broker.client() as client:
        client.create_topic("t", queues=1)
        for offset in range(COUNT):
            client.publish("t", body_of(offset), queue=0, key=f"k{offset}")
        topic_id = client.describe_topic("t")["topic_id"]
    return folder, topic_id


@pytest.fixture
def log(made: tuple[Path, int], tmp_path: Path) -> Iterator[Log]:
    shutil.copytree(made[0], tmp_path / "data")
    log = Log(RunningBroker(tmp_path / "data", ARGUMENTS), made[1])
    yield log
    log.broker.stop()  # a test may have replaced the broker


def ask(broker: RunningBroker, path: str, **headers: str) -> tuple[int, Any, Any]:
    """Return status, headers and body of a GET: JSON decoded, any other body as bytes."""
    answer = Calls(broker.url)("GET", path, **headers)
    media = answer.headers["Content-Type"]
    is_json = "json" in media and "ndjson" not in media
    return answer.status, answer.headers, answer.json if is_json else answer.raw


def degraded(broker: RunningBroker) -> list[dict[str, str]]:
    status, _, reply = ask(broker, "/readyz")
    assert status == 200
    found: list[dict[str, str]] = reply["degraded"]
    return found


def metric(broker: RunningBroker, name: str) -> float:
    _, _, page = ask(broker, "/metrics")
    lines = [line.split() for line in page.decode().splitlines() if line.startswith(name)]
    return sum(float(words[-1]) for words in lines)


def expect_lost(log: Log, start: int, end: int, reason: str | None = None) -> None:
    """Check on every path that a broker lost the messages from `start` to before `end` alone."""
    broker = log.broker
    whole = "max_messages=10000&max_bytes=16777216"
    kept = [offset for offset in range(COUNT) if not start <= offset < end]
    # By offset, in every format: only stored messages, and the damage at its place.
    for accept in (
        "application/json",
        "application/msgpack",
        "application/x-ndjson",
        "application/vnd.holdfast.batch",
    ):
        for at in {start, (start + end) // 2, end - 1}:
            status, _, problem = ask(broker, f"{PULL}?offset={at}&{whole}", Accept=accept)
            assert (status, problem["type"]) == (500, "/problems/corrupt-record")
            assert problem["next_offset"] == end
            assert reason is None or problem["reason"] == reason
        _, fields, _ = ask(broker, f"{PULL}?offset=0&{whole}&skip_corrupt=true", Accept=accept)
        assert fields["Holdfast-Skipped"] == f"0:{start}:{end}"
        assert fields["Holdfast-Next-Offset"] == str(COUNT)
    _, _, blocks = ask(
        broker,
        f"{PULL}?offset=0&{whole}&skip_corrupt=true",
        Accept="application/vnd.holdfast.batch",
    )
    assert [(b.header.base_offset, b.body(0)) for b in iter_batches(blocks)] == [
        (offset, body_of(offset)) for offset in kept
    ]
    # A poll over queues.
    _, _, polled = ask(broker, f"/v1/topics/t/messages?offsets=0:{start}&{whole}")
    assert polled["queues"][0]["problem"]["next_offset"] == end
    _, _, polled = ask(broker, f"/v1/topics/t/messages?offsets=0:0&{whole}&skip_corrupt=true")
    assert [each["offset"] for each in polled["messages"]] == kept
    (skipped,) = polled["skipped"]
    assert (skipped["start_offset"], skipped["end_offset"]) == (start, end)
    # A held pull with a filter, and a pull that does not wait.
    status, fields, _ = ask(
        broker, f"{PULL}?offset={start}&tag=none&skip_corrupt=true&wait_ms=50&{whole}"
    )
    assert (status, fields["Holdfast-Next-Offset"]) == (200, str(COUNT))
    # Look-ups by id, by key, by time.
    for offset in (start, end - 1):
        message_id = f"{log.topic_id:08X}{0:08X}{offset:016X}"
        status, _, problem = ask(broker, f"/v1/messages/{message_id}")
        assert (status, problem["type"]) == (500, "/problems/corrupt-record")
        _, _, found = ask(broker, f"/v1/topics/t/messages/search?key=k{offset}")
        assert found["messages"] == []
    for offset in (kept[0], kept[-1]):
        message_id = f"{log.topic_id:08X}{0:08X}{offset:016X}"
        _, _, message = ask(broker, f"/v1/messages/{message_id}")
        assert message["body"].encode() == body_of(offset)
        _, _, found = ask(broker, f"/v1/topics/t/messages/search?key=k{offset}")
        assert [each["offset"] for each in found["messages"]] == [offset]
        _, _, at_time = ask(
            broker, f"/v1/topics/t/queues/0/offset?timestamp_ms={message['store_timestamp_ms']}"
        )
        assert at_time["offset"] <= offset
    # Reading with the client and with Spark.
    with broker.client() as client:
        with pytest.raises(RecordCorrupt) as caught:
            list(client.pull("t", 0, 0, follow=False))
        assert caught.value.next_offset == end
        messages = list(client.pull("t", 0, 0, follow=False, skip_corrupt=True))
        assert [(each.offset, each.body) for each in messages] == [
            (offset, body_of(offset)) for offset in kept
        ]
        group = f"group-{os.urandom(4).hex()}"
        with client.consume_by_offsets("t", group, follow=False, skip_corrupt=True) as consumer:
            assert [each.offset for each in consumer] == kept
        assert client.stored_offsets(group, "t").offsets == {0: COUNT}
    assert spark_offsets(log, failOnDataLoss="false") == kept
    with pytest.raises(DataLost):
        spark_offsets(log)
    # The damage is reported and counted.
    assert any(f"from offset {start} to {end}" in each["detail"] for each in degraded(broker))
    assert metric(broker, "holdfast_degraded") >= 1


def spark_offsets(log: Log, **options: str) -> list[int]:
    wanted = parse_options({"url": log.broker.url, "topic": "t", **options})
    with BrokerClient.open(Address(log.broker.url)) as client:
        batches = read_range(client, QueueRange("t", log.topic_id, 0, 0, COUNT), wanted)
        return [row["offset"] for batch in batches for row in batch.to_pylist()]


def expect_lost_now_and_later(log: Log, start: int, end: int, reason: str | None = None) -> None:
    """Check the loss at a first and a second start, then without the index and publishing."""
    log.broker.start()
    expect_lost(log, start, end, reason)
    first = degraded(log.broker)
    log.broker.restart()
    remembered = [each["detail"] for each in degraded(log.broker)]
    assert {each["detail"] for each in first if "queue 0" in each["detail"]} <= set(remembered)
    log.broker.stop()
    shutil.rmtree(log.directory / "consumequeue")
    log.broker.start()
    expect_lost(log, start, end)
    with log.broker.client() as client:
        assert client.publish("t", b"goes on", queue=0).offset == COUNT
    size = log.broker.log_path.stat().st_size
    for _ in range(200):
        assert ask(log.broker, f"{PULL}?offset={start}")[0] == 500
    assert log.broker.log_path.stat().st_size - size < 4000, "damage floods the log"


#: Where in a block a bit is flipped, from the start of the block.
REGIONS = {"magic": 0, "body": 300, "size": 8, "header crc": 12, "payload crc": 16, "offset": 41}


@pytest.mark.parametrize("region", some(REGIONS, 2))
def test_a_flipped_bit_in_a_sealed_segment_costs_its_block_alone(log: Log, region: str) -> None:
    path = log.segments()[1]
    blocks = log.blocks(path)
    at, header = blocks[len(blocks) // 2]
    before = path.read_bytes()
    flip_bit(path, at + REGIONS[region], 3)
    damaged = path.read_bytes()
    assert damaged != before
    expect_lost_now_and_later(log, header.base_offset, header.end_offset)
    assert path.read_bytes() == damaged


def test_several_damaged_blocks_are_one_loss(log: Log) -> None:
    path = log.segments()[1]
    lost = log.blocks(path)[3:7]
    for number, (at, header) in enumerate(lost):
        flip_bit(path, at if number % 2 else at + header.total_size - 40)
    expect_lost_now_and_later(log, lost[0][1].base_offset, lost[-1][1].end_offset)


def test_a_flipped_bit_below_the_durable_mark_is_not_cut(log: Log) -> None:
    path = log.segments()[-1]
    blocks = log.blocks(path)
    at, header = blocks[len(blocks) // 2]
    flip_bit(path, at + 300)
    damaged = path.read_bytes()
    shutil.rmtree(log.directory / "consumequeue")
    log.broker.start()
    expect_lost(log, header.base_offset, header.end_offset, "payload-crc")
    assert path.read_bytes()[: len(damaged.rstrip(b"\0"))] == damaged.rstrip(b"\0")


#: Indexes of segments: in the middle, the first and the last one.
MIDDLE, FIRST, LAST = 1, 0, -1
GONE = [(which, left) for left in (None, 0, 100) for which in (MIDDLE, FIRST, LAST)]


@pytest.mark.parametrize(("which", "left"), some(GONE, 3))
def test_a_segment_that_is_gone_is_one_loss(log: Log, which: int, left: int | None) -> None:
    path = log.segments()[which]
    blocks = log.blocks(path)
    if left is None:
        path.unlink()
    else:
        os.truncate(path, left)
    expect_lost_now_and_later(log, blocks[0][1].base_offset, blocks[-1][1].end_offset)


def test_all_segments_gone_is_one_loss(log: Log) -> None:
    for path in (log.directory / "commitlog").iterdir():
        path.unlink()
    log.broker.start()
    for _ in range(2):
        status, _, problem = ask(log.broker, f"{PULL}?offset=0")
        assert (status, problem["next_offset"]) == (500, COUNT)
        log.broker.restart()
    with log.broker.client() as client:
        assert client.publish("t", b"goes on", queue=0).offset == COUNT


@pytest.mark.parametrize("which", some([LAST, MIDDLE], 1))
def test_a_segment_that_is_cut_short_loses_its_end(log: Log, which: int) -> None:
    path = log.segments()[which]
    blocks = log.blocks(path)
    at, header = blocks[4]
    os.truncate(path, at + 1000)
    expect_lost_now_and_later(log, header.base_offset, blocks[-1][1].end_offset)


def test_a_segment_that_is_cut_short_in_use_harms_no_broker(log: Log) -> None:
    log.broker.start()
    path = log.segments()[MIDDLE]
    blocks = log.blocks(path)
    at, header = blocks[4]
    os.truncate(path, at + 1000)
    expect_lost(log, header.base_offset, blocks[-1][1].end_offset)


def test_a_segment_that_was_put_back_is_whole_again(log: Log) -> None:
    path = log.segments()[MIDDLE]
    image = path.read_bytes()
    path.unlink()
    log.broker.start()
    assert degraded(log.broker)
    log.broker.stop()
    path.write_bytes(image)
    log.broker.start()
    assert degraded(log.broker) == []
    with log.broker.client() as client:
        bodies = [message.body for message in client.pull("t", 0, 0, follow=False)]
    assert bodies == [body_of(offset) for offset in range(COUNT)]


def everything(client: Client) -> list[tuple[int, bytes, str | None]]:
    return [
        (message.offset, message.body, message.key)
        for message in client.pull("t", 0, 0, follow=False)
    ]


@pytest.mark.timeout(900)  # with TEST_ALL_DAMAGE=1; each page needs a start
@pytest.mark.parametrize("sealed", [True, False], ids=["sealed", "in use"])
def test_a_flipped_bit_in_any_page_of_the_index_changes_no_answer(log: Log, sealed: bool) -> None:
    data = log.directory / "consumequeue" / "data.mdb"
    image = data.read_bytes()
    log.broker.start()
    with log.broker.client() as client:
        truth = everything(client)
    log.broker.stop()
    assert len(truth) == COUNT
    for page in some(range(0, len(image), 4096)[::-1], 3):
        if page >= len(image):
            continue  # the index was rebuilt, and is smaller
        data.write_bytes(image)
        seal = log.directory / "consumequeue" / "seal"
        if not sealed:
            seal.unlink(missing_ok=True)
        flip_bit(data, page + 37, 1)
        log.broker.start()
        with log.broker.client() as client:
            assert everything(client) == truth
        assert log.broker.stop() == 0
        image = data.read_bytes()


def test_a_deleted_index_is_rebuilt_to_the_same_answers(log: Log) -> None:
    shutil.rmtree(log.directory / "consumequeue")
    log.broker.start()
    assert degraded(log.broker) == []
    with log.broker.client() as client:
        assert [offset for offset, *_ in everything(client)] == list(range(COUNT))


def test_an_index_of_an_older_log_is_brought_up_to_date(log: Log, tmp_path: Path) -> None:
    """The index is behind by more than a segment: all later messages are indexed again."""
    kept = tmp_path / "older"
    shutil.copytree(log.directory / "consumequeue", kept)
    log.broker.start()
    with log.broker.client() as client:
        for offset in range(COUNT, COUNT + 40):
            client.publish("t", body_of(offset), queue=0, key=f"k{offset}")
    log.broker.stop()
    shutil.rmtree(log.directory / "consumequeue")
    kept.rename(log.directory / "consumequeue")
    log.broker.start()
    assert degraded(log.broker) == []
    with log.broker.client() as client:
        assert [(at, body) for at, body, _ in everything(client)] == [
            (offset, body_of(offset)) for offset in range(COUNT + 40)
        ]


def test_a_scrub_finds_rot_before_any_reader(log: Log) -> None:
    log.broker = RunningBroker(
        log.directory, (*ARGUMENTS, "--commitlog-scrub-bytes-per-s", "100000000")
    )
    log.broker.start()
    path = log.segments()[MIDDLE]
    at, header = log.blocks(path)[2]
    log.broker.stop()
    flip_bit(path, at + 300)
    log.broker.start()
    wait_until(lambda: metric(log.broker, "holdfast_scrub_passes_total") > 0, "the scrub")
    (fault,) = degraded(log.broker)
    assert fault["reason"] == "payload-crc"
    assert f"from offset {header.base_offset} to {header.end_offset}" in fault["detail"]
    assert metric(log.broker, "holdfast_corrupt_records_total") == 1
    expect_lost(log, header.base_offset, header.end_offset)
