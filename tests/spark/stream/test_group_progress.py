import logging
from collections.abc import Iterator, Mapping

import pytest

from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.options.location import Address
from holdfast.spark.stream.group_progress import ProgressReporter
from holdfast.spark.stream.offsets import StreamOffsets, TopicOffsets
from tests.support.servers.fake_broker import HANG_UP, Answer, FakeBroker


@pytest.fixture
def reporter(broker: FakeBroker) -> Iterator[ProgressReporter]:
    broker.topic("orders", queues=2)
    with BrokerClient.open(Address(broker.url), retry_for_s=0) as client:
        yield ProgressReporter(client, "billing")


def progress(broker: FakeBroker, **offsets: Mapping[int, int]) -> StreamOffsets:
    """Return a stream's progress in the topics that exist now."""
    return {n: TopicOffsets(broker.topics[n].topic_id, queues) for n, queues in offsets.items()}


def stored(broker: FakeBroker) -> dict[int, int]:
    return broker.groups["billing"]["orders"][0]


def test_stored_progress_needs_no_request(broker: FakeBroker, reporter: ProgressReporter) -> None:
    reporter.store(progress(broker, orders={0: 5}))
    asked = len(broker.requests)
    reporter.store(progress(broker, orders={0: 5}))
    assert len(broker.requests) == asked


def test_a_topic_recreated_begins_again_in_the_group(
    broker: FakeBroker, reporter: ProgressReporter
) -> None:
    reporter.store(progress(broker, orders={0: 500}))
    broker.topic("orders", queues=2)
    broker.groups["billing"] = {"orders": ({}, 0)}
    reporter.store(progress(broker, orders={0: 5}))
    assert stored(broker) == {0: 5}


def test_progress_in_a_topic_that_was_recreated_is_not_stored(
    broker: FakeBroker, reporter: ProgressReporter, caplog: pytest.LogCaptureFixture
) -> None:
    """A restarted stream first stores the progress that its last run had not stored."""
    last_run = progress(broker, orders={0: 500})
    broker.topic("orders", queues=2)
    reporter.store(last_run)
    assert broker.groups == {}
    assert "deleted and created again" in caplog.text


def test_a_group_that_has_changed_is_read_again(
    broker: FakeBroker, reporter: ProgressReporter
) -> None:
    reporter.store(progress(broker, orders={0: 5}))
    broker.groups["billing"] = {"orders": ({0: 8, 1: 2}, 7)}
    reporter.store(progress(broker, orders={0: 6, 1: 4}))
    assert stored(broker) == {0: 8, 1: 4}


@pytest.mark.parametrize("answer", [HANG_UP, Answer(403, {}, b"")])
def test_a_failure_is_logged_and_repaired_later(
    broker: FakeBroker, reporter: ProgressReporter, answer: Answer, caplog: pytest.LogCaptureFixture
) -> None:
    broker.faults.append(lambda _: answer)
    with caplog.at_level(logging.WARNING, "holdfast.spark"):
        reporter.store(progress(broker, orders={0: 5}))
    assert "progress not stored in group 'billing'" in caplog.text
    broker.faults.clear()
    reporter.store(progress(broker, orders={0: 5}))
    assert stored(broker) == {0: 5}


def test_an_unavailable_broker_is_asked_once_for_all_topics(
    broker: FakeBroker, reporter: ProgressReporter
) -> None:
    broker.topic("refunds")
    broker.faults.append(lambda _: Answer(503, {}, b""))
    reporter.store(progress(broker, orders={0: 5}, refunds={0: 5}))
    assert [request for request in broker.requests if "refunds" in request] == []
    broker.faults.clear()
    reporter.store(progress(broker, orders={0: 5}, refunds={0: 6}))
    assert stored(broker) == {0: 5}
    assert broker.groups["billing"]["refunds"][0] == {0: 6}
