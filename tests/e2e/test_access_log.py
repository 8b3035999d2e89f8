"""A real access log through the command line and through curl: every count, line and byte."""

import json
import shutil
import subprocess
import sys
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from holdfast.testing import RunningBroker
from tests.support.storage.access_log import KEY_COUNT, PATH, STATUSES, key_and_tag, read_lines

QUEUES = 4


@pytest.fixture(scope="module")
def lines() -> list[bytes]:
    return read_lines()


def holdfast(broker: RunningBroker, *arguments: str) -> bytes:
    """Run the command line and return what it printed."""
    command = [sys.executable, "-m", "holdfast", *arguments, "--url", broker.url]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout


def curl(url: str, *arguments: str) -> bytes:
    if shutil.which("curl") is None:
        pytest.skip("curl is not installed (package curl)")
    command = ["curl", "--noproxy", "*", "--silent", "--show-error", "--fail", *arguments, url]
    return subprocess.run(command, stdout=subprocess.PIPE, check=True, timeout=60).stdout


def check_topic(broker: RunningBroker, topic: str, lines: list[bytes]) -> None:
    """Check that each line is there once, with its key and tag, in file order per key."""
    tags: Counter[str | None] = Counter()
    by_key: dict[str | None, list[bytes]] = defaultdict(list)
    queues_of: dict[str | None, set[int]] = defaultdict(set)
    with broker.client() as client:
        for queue in range(QUEUES):
            for message in client.pull(topic, queue=queue, offset=0, follow=False):
                tags[message.tag] += 1
                by_key[message.key].append(message.body)
                queues_of[message.key].add(queue)
    expected: dict[str | None, list[bytes]] = defaultdict(list)
    for line in lines:
        expected[key_and_tag(line)[0]].append(line)
    assert tags == STATUSES
    assert len(by_key) == KEY_COUNT
    assert by_key == expected
    assert all(len(queues) == 1 for queues in queues_of.values())


def test_the_command_line_publishes_the_log_keyed_and_tagged(
    broker: RunningBroker, lines: list[bytes]
) -> None:
    holdfast(broker, "topic", "create", "by-cli", "--queues", str(QUEUES))
    summary = json.loads(
        holdfast(
            broker,
            *("publish", "by-cli", str(PATH)),
            *("--key-regex", r"^(\S+)", "--tag-regex", r'" (\d{3}) '),
        )
    )
    assert summary["messages"] == len(lines) == 10_000
    assert summary["durable"] is True
    check_topic(broker, "by-cli", lines)
    errors = holdfast(broker, "pull", "by-cli", "--from", "earliest", "--tag", "404,500")
    assert Counter(json.loads(line)["tag"] for line in errors.splitlines()) == {
        "404": 213,
        "500": 3,
    }


def test_curl_alone_publishes_and_reads_the_log(
    broker: RunningBroker, lines: list[bytes], tmp_path: Path
) -> None:
    base = f"{broker.url}/v1/topics/by-curl"
    curl(base, "-X", "PUT", "-d", json.dumps({"queues": QUEUES}))
    body = tmp_path / "messages.ndjson"
    with body.open("w") as file:
        for line in lines:
            key, tag = key_and_tag(line)
            json.dump({"body": line.decode(), "key": key, "tag": tag}, file)
            file.write("\n")
    reply = json.loads(
        curl(
            f"{base}/messages",
            *("-H", "Content-Type: application/x-ndjson", "--data-binary", f"@{body}"),
        )
    )
    assert len(reply["results"]) == 10_000
    assert reply["durable"] is True
    check_topic(broker, "by-curl", lines)
    read: list[bytes] = []
    offset = 0
    while True:
        page = json.loads(curl(f"{base}/queues/0/messages?offset={offset}&max_messages=1000"))
        if not page["messages"]:
            break
        read += [message["body"].encode() for message in page["messages"]]
        offset = page["next_offset"]
    again = curl(f"{base}/queues/0/messages?offset=0&max_messages=10000&max_bytes=16777216")
    assert [m["body"].encode() for m in json.loads(again)["messages"]] == read
    assert set(read) <= set(lines)


def test_reading_a_range_twice_returns_the_same_bytes(
    broker: RunningBroker, lines: list[bytes]
) -> None:
    with broker.client() as client:
        client.create_topic("twice", queues=1)
        with client.producer("twice", queue=0) as producer:
            for line in lines:
                producer.send(line)
    url = f"{broker.url}/v1/topics/twice/queues/0/messages?offset=2500&max_messages=3000"
    for accept in ("application/json", "application/msgpack", "application/vnd.holdfast.batch"):
        first = curl(f"{url}&max_bytes=16777216", "-H", f"Accept: {accept}")
        assert curl(f"{url}&max_bytes=16777216", "-H", f"Accept: {accept}") == first
        assert len(first) > 100_000
