"""A broker that is killed repeatedly under load loses nothing that was acknowledged. TEST_KILLS
sets the number of kills in the fault tier (default 5; twenty and more by hand)."""

import os
import random
import shutil
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import pytest

from holdfast.client import Client
from holdfast.client.errors import ClientClosed
from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import fetch, wait_until
from tests.support.event_loop.gate import Gate
from tests.support.histories.history import History, Record, check_history
from tests.support.histories.workload_clients import LoadTopic, Publisher
from tests.support.storage.sound import assert_sound

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
                enough = acknowledged + PUBLISHERS
                _wait(publishers, lambda enough=enough: len(history.acks) > enough)  # type: ignore[misc]
            gate.end()
            for publisher in publishers:
                publisher.join(30)
                assert publisher.error is None, publisher.error
            final = list(_everything(client))
            _wait([watcher], lambda: len(history.seen) >= len(final))
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


def _wait(threads: Sequence[Publisher | Watcher], condition: Callable[[], bool]) -> None:
    """Wait until `condition` holds, or raise the error of a thread."""

    def holds() -> bool:
        for thread in threads:
            if thread.error is not None:
                raise thread.error
        return condition()

    wait_until(holds, "more is acknowledged or received")


def _replies(url: str) -> list[bytes]:
    """Return the API's replies about the whole topic, byte for byte."""
    paths = [f"/v1/topics/{TOPIC}", f"/v1/topics/{TOPIC}/splits?max_bytes=65536"]
    for queue in range(QUEUES):
        base = f"/v1/topics/{TOPIC}/queues/{queue}"
        paths += [
            f"{base}/messages?offset=0&max_messages=10000&max_bytes=16777216",
            f"{base}/offset?timestamp_ms=0",
        ]
    paths.append(f"/v1/topics/{TOPIC}/messages/search?key=key-publisher-0-0")
    answers = [fetch(url + path, timeout_s=20) for path in paths]
    assert {answer.status for answer in answers} == {200}, answers
    return [answer.raw for answer in answers]
