"""Plans hold leases, and tasks extend them; without lease support nothing fails."""

import logging
import threading
from dataclasses import replace

import pytest

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.broker.lease_renewer import PlanLeaseRenewer, renewal_delay_s
from holdfast.spark.errors import BrokerRefused, TopicRecreated
from holdfast.spark.options.location import Address
from holdfast.spark.options.offsets import PlanLease, QueueRange
from holdfast.spark.options.read import DEFAULT_LEASE_MS, parse_options
from holdfast.spark.read.plan import bind_topics, plan_partitions
from holdfast.spark.read.reading import read_rows
from tests.support.servers.fake_broker import Answer, FakeBroker


def plan(broker: FakeBroker, topics: str = "orders", **given: str) -> list[QueueRange]:
    options = parse_options({"url": broker.url, "topic": topics, **given})
    with BrokerClient.open(options.address) as client:
        packs = plan_partitions(client, options, bind_topics(client, options))
    return [part for pack in packs for part in pack]


@pytest.fixture
def filled(broker: FakeBroker) -> FakeBroker:
    for name in ("orders", "refunds"):
        topic = broker.topic(name, queues=3)
        for queue in (0, 2):
            topic.publish(queue, [b"a", b"b"])
    return broker


def refuse(broker: FakeBroker, status: int, body: bytes) -> None:
    answer = Answer(status, {"Content-Type": "application/problem+json"}, body)
    broker.faults.append(lambda target: answer if "lease" in target else None)


@pytest.mark.parametrize(
    ("given", "lease_ms"), [({}, DEFAULT_LEASE_MS), ({"leaseMs": "5000"}, 5000)]
)
def test_a_plan_is_leased_and_every_part_has_all_leases(
    filled: FakeBroker, given: dict[str, str], lease_ms: int
) -> None:
    parts = plan(filled, "orders,refunds", **given)
    assert filled.leases == {"lease-0": lease_ms, "lease-1": lease_ms}
    for part in parts:
        assert part.lease is not None
        assert part.lease.ids == (("orders", "lease-0"), ("refunds", "lease-1"))
        assert part.lease.lease_ms == lease_ms
    assert {(part.topic, part.queue) for part in parts} == {
        (topic, queue) for topic in ("orders", "refunds") for queue in (0, 2)
    }


def test_lease_ms_0_requests_no_lease(filled: FakeBroker) -> None:
    parts = plan(filled, leaseMs="0")
    assert [part.lease for part in parts] == [None, None]
    assert not any("lease" in request or "only_named" in request for request in filled.requests)


@pytest.mark.parametrize(
    ("status", "problem"),
    [
        (429, b'{"type": "/problems/too-many-read-leases", "status": 429}'),
        (400, b'{"type": "/problems/invalid-parameter", "parameter": "only_named"}'),
        (400, b'{"type": "/problems/invalid-parameter", "parameter": "lease_ms"}'),
    ],
)
def test_a_broker_without_leases_is_read_without_leases(
    filled: FakeBroker, caplog: pytest.LogCaptureFixture, status: int, problem: bytes
) -> None:
    refuse(filled, status, problem)
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        parts = plan(filled)
    assert [(part.queue, part.lease) for part in parts] == [(0, None), (2, None)]
    assert "without a lease" in caplog.text


def test_a_lease_longer_than_the_limit_is_an_error(filled: FakeBroker) -> None:
    refuse(filled, 400, b'{"type": "/problems/limit-exceeded", "detail": "use 3600000 at most"}')
    with pytest.raises(Exception, match="3600000 at most"):
        plan(filled, leaseMs="9999999999")


@pytest.mark.parametrize("fails_at", ["/v1/topics/refunds/splits", "start=100:0"])
def test_a_failed_plan_leaves_no_lease(broker: FakeBroker, fails_at: str) -> None:
    """The plan covers two topics, each with two requests: a request names at most 100 queues."""
    for name in ("orders", "refunds"):
        topic = broker.topic(name, queues=103)
        for queue in range(103):
            topic.publish(queue, [b"a"])
    broker.fail_once(400, match=fails_at)
    with pytest.raises(BrokerRefused, match="400"):
        plan(broker, "orders,refunds")
    assert broker.leases_given > 0
    assert broker.leases == {}
    plan(broker, "orders,refunds")
    assert len(broker.leases) == 4


def test_a_plan_of_a_recreated_topic_leaves_no_lease(filled: FakeBroker) -> None:
    options = parse_options({"url": filled.url, "topic": "orders"})
    with BrokerClient.open(options.address) as client:
        topics = bind_topics(client, options)
        filled.topic("orders", queues=3).publish(0, [b"a", b"b"])
        filled.topics["orders"].publish(2, [b"a", b"b"])
        with pytest.raises(TopicRecreated):
            plan_partitions(client, options, topics)
    assert filled.leases_given == 1
    assert filled.leases == {}


def test_leases_are_released_as_long_as_the_broker_answers(filled: FakeBroker) -> None:
    plan(filled, "orders,refunds")
    leases = [("orders", "lease-0"), ("orders", "unknown"), ("refunds", "lease-1")]
    with BrokerClient.open(Address(filled.url), retry_for_s=0) as client:
        filled.fail_once(503, match="lease-0")
        client.release_leases(leases)
        assert filled.leases.keys() == {"lease-0", "lease-1"}
        client.release_leases(leases)
    assert filled.leases == {}


@pytest.mark.parametrize(
    ("now_s", "due"), [(100, 5), (104.5, 0.5), (105, 0), (200, 0), (99.9, 0), (-5, 0)]
)
def test_leases_are_extended_when_half_of_them_is_over(now_s: float, due: float) -> None:
    assert renewal_delay_s(PlanLease((("t", "l"),), 10_000, 100), now_s) == pytest.approx(due)


def extended(filled: FakeBroker, count: int, match: str = "") -> threading.Event:
    """Return an event that is set after `count` requests to extend."""
    enough = threading.Event()
    seen = []

    def notice(target: str) -> None:
        if "read-leases" in target and match in target:
            seen.append(target)
            if len(seen) == count:
                enough.set()

    filled.faults.append(notice)
    return enough


def test_a_task_extends_the_leases_again_and_again(filled: FakeBroker) -> None:
    parts = plan(filled, "orders,refunds", leaseMs="40")
    first, second = extended(filled, 3, "lease-0"), extended(filled, 3, "refunds")
    with PlanLeaseRenewer(parts, Address(filled.url)):
        assert first.wait(10)
        assert second.wait(10)
    assert not [each for each in threading.enumerate() if each.name == "holdfast-lease"]


def test_a_read_extends_old_leases_at_once(filled: FakeBroker) -> None:
    options = parse_options({"url": filled.url, "topic": "orders", "columns": "offset"})
    parts = plan(filled)
    assert parts[0].lease is not None
    old = replace(parts[0].lease, taken_at_s=0.0)
    asked = extended(filled, 1)
    rows = read_rows([replace(part, lease=old) for part in parts], options)
    next(rows)
    assert asked.wait(10)
    assert sum(len(batch) for batch in rows) == 2


def test_a_missing_lease_is_dropped_and_the_others_are_extended(
    filled: FakeBroker, caplog: pytest.LogCaptureFixture
) -> None:
    parts = plan(filled, "orders,refunds", leaseMs="40")
    del filled.leases["lease-0"]
    enough = extended(filled, 3, "refunds")
    with (
        caplog.at_level(logging.WARNING, "holdfast.spark"),
        PlanLeaseRenewer(parts, Address(filled.url)),
    ):
        assert enough.wait(10)
    gone = [request for request in filled.requests if "read-leases/lease-0" in request]
    assert len(gone) == 1
    assert caplog.text.count("without a lease") == 1


def test_extending_is_retried_if_the_broker_does_not_answer(filled: FakeBroker) -> None:
    parts = plan(filled, leaseMs="40")
    for _ in range(2):
        filled.fail_once(503, match="read-leases")
    enough = extended(filled, 4)
    with PlanLeaseRenewer(parts, Address(filled.url)):
        assert enough.wait(10)
    assert "lease-0" in filled.leases
