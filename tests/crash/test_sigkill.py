"""Nothing acknowledged is lost: a real broker under load is killed with SIGKILL repeatedly.

TEST_KILLS sets the number of kills in the fault tier (default 5; twenty and more by hand).
"""

import http.client
import os
import random
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from holdfast.client import Client
from holdfast.client.errors import ClientClosed
from holdfast.running_broker import RunningBroker
from tests.support.gate import Gate
from tests.support.history import History, Record, check_history
from tests.support.sound import assert_sound
from tests.support.workload_clients import LoadTopic, Publisher

pytestmark = [pytest.mark.crash, pytest.mark.timeout(600)]

KILLS = int(os.environ.get("TEST_KILLS", "5"))
SEED = int(os.environ.get("TEST_SEED", "20150519"))
PUBLISHERS = 8
QUEUES = 4
TOPIC = "crash"


class Watcher(threading.Thread):
    """A consumer that follows the topic and records the messages that it receives."""

    def __init__(self, client: Client, history: History) -> None:
        super().__init__(name="watcher", daemon=True)
        self._client = client
        self._history = history
        self.error: Exception | None = None

    def run(self) -> None:
        try:
            for message in self._client.pull(TOPIC, start="earliest"):
                self._history.record_consumed(
                    Record(message.queue, message.offset, message.key, message.body)
                )
        except Exception as error:
            self.error = error


def _everything(client: Client) -> Iterator[Record]:
    for queue in range(QUEUES):
        for message in client.pull(TOPIC, queue=queue, offset=0, follow=False):
            yield Record(queue, message.offset, message.key, message.body)


@pytest.mark.parametrize("kills", [1, pytest.param(KILLS, marks=pytest.mark.fault, id="many")])
def test_sigkills_under_load_lose_nothing_that_was_acknowledged(tmp_path: Path, kills: int) -> None:
    random_ms = random.Random(SEED)
    print(f"seed {SEED}, {kills} kills")
    topic = LoadTopic(TOPIC, QUEUES)
    history = topic.history
    gate = Gate()
    broker = RunningBroker(tmp_path / "data", ("--commitlog-segment-bytes", "1MiB"))
    broker.start()
    try:
        with Client(broker.url) as client:
            client.create_topic(TOPIC, queues=QUEUES)
            publishers = [
                Publisher(f"publisher-{n}", broker.url, gate, topic) for n in range(PUBLISHERS)
            ]
            watcher = Watcher(client, history)
            for thread in (*publishers, watcher):
                thread.start()
            for _ in range(kills):
                acknowledged = len(history.acks)
                time.sleep(random_ms.uniform(0.05, 1.0))  # let the load run until a random kill
                broker.kill()
                assert_sound(broker.data_dir)
                broker.start()
                _wait_for_more(history, acknowledged, publishers)
            gate.end()
            for publisher in publishers:
                publisher.join(30)
                assert publisher.error is None, publisher.error
            final = list(_everything(client))
            _wait_until_seen(history, watcher, len(final))
        watcher.join(10)
        assert isinstance(watcher.error, ClientClosed), watcher.error
        check_history(history, final)
        assert {found.body for found in final} >= set(history.acks)
        replies = _replies(broker.url)
        broker.kill()
        shutil.rmtree(broker.data_dir / "consumequeue")
        broker.start()
        assert _replies(broker.url) == replies
        print(f"{len(history.acks)} acknowledged, {len(final)} stored, {len(history.seen)} seen")
    finally:
        broker.stop()
    assert_sound(broker.data_dir)


def _wait_for_more(history: History, before: int, publishers: list[Publisher]) -> None:
    deadline = time.monotonic() + 30
    while len(history.acks) <= before + PUBLISHERS:
        for publisher in publishers:
            if publisher.error is not None:
                raise publisher.error
        assert time.monotonic() < deadline, "nothing is acknowledged after the restart"
        time.sleep(0.01)


def _wait_until_seen(history: History, watcher: Watcher, count: int) -> None:
    """Wait for the consumer. It retries without a broker, with pauses of up to 5 s."""
    deadline = time.monotonic() + 30
    while len(history.seen) < count:
        assert watcher.error is None, watcher.error
        assert time.monotonic() < deadline, f"the consumer has {len(history.seen)} of {count}"
        time.sleep(0.01)


def _replies(url: str) -> list[bytes]:
    """Return the API's replies about the whole topic, byte for byte."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname or "", parts.port, timeout=20)
    replies = []
    paths = [f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}/splits?max_bytes=65536"]
    for queue in range(QUEUES):
        base = f"/v1/topics/{TOPIC}/queues/{queue}"
        paths += [
            f"{base}/messages?offset=0&max_messages=10000&max_bytes=16777216",
            f"{base}/offset?timestamp_ms=0",
        ]
    paths.append(f"/v1/topics/{TOPIC}/messages/search?key=key-publisher-0-0")
    for path in paths:
        connection.request("GET", path)
        response = connection.getresponse()
        replies.append(response.read())
        assert response.status == 200, (path, replies[-1])
    connection.close()
    return replies
