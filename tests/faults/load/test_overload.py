"""Refused clients learn the limit and when to retry, until every message is stored once."""

import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import Calls
from tests.support.damage import slow_broker

pytestmark = [pytest.mark.fault, pytest.mark.timeout(120)]

_BODY = "x" * 400_000
#: A sync may take longer than a publish waits by default.
_LIMIT = (
    *("--commitlog-max-in-flight-bytes", "1MiB"),
    *("--commitlog-sync-timeout-ms", "60000"),
)


def _broker(tmp_path: Path, sync_s: float) -> RunningBroker:
    program = (sys.executable, slow_broker.__file__, str(sync_s), "sleep")
    return RunningBroker(tmp_path / "data", _LIMIT, program=program)


def test_what_waits_for_slow_syncs_is_bounded_and_the_rest_told_to_come_back(
    tmp_path: Path,
) -> None:
    # All twelve requests must arrive during the first sync, even on a machine that stalls.
    with _broker(tmp_path, 4.0) as broker:
        calls = Calls(broker.url)
        for topic, durability in (("t", "fsync"), ("w", "written")):
            made = calls("PUT", f"/v1/topics/{topic}", {"queues": 1, "durability": durability})
            assert made.status == 201
        with ThreadPoolExecutor(12) as pool:
            answers = list(pool.map(lambda _: Calls(broker.url).publish("t", _BODY), range(12)))
        assert {answer.status for answer in answers} == {200, 503}
        for answer in answers:
            if answer.status == 503:
                assert answer.problem == "overloaded"
                assert answer.json["limit_name"] == "max_in_flight_bytes"
                assert answer.retry_after_s == 1
        stored = sum(answer.status == 200 for answer in answers)
        assert len(calls.bodies("t")) == stored
        assert calls.publish("t", _BODY).status == 200
        assert calls.metric("holdfast_in_flight_bytes") == 0


def test_clients_come_back_until_everything_is_stored_once(tmp_path: Path) -> None:
    with _broker(tmp_path, 0.1) as broker, broker.client() as client:
        client.create_topic("t", queues=1)

        def publish(number: int) -> None:
            with client.producer("t", queue=0, batch_bytes=300_000) as producer:
                for index in range(4):
                    producer.send(f"{number}-{index}-{_BODY}".encode())

        with ThreadPoolExecutor(6) as pool:
            list(pool.map(publish, range(6)))
        found = [body.rpartition("-")[0] for body in Calls(broker.url).bodies("t")]
        assert sorted(found) == [f"{number}-{index}" for number in range(6) for index in range(4)]
        for number in range(6):
            of_one = [each for each in found if each.startswith(f"{number}-")]
            assert of_one == sorted(of_one), "out of order"
