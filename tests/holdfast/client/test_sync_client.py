"""Client: the methods of AsyncClient for callers without an event loop, against a real broker."""

import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

import pytest

import holdfast
from holdfast.client.async_client import AsyncClient
from holdfast.client.errors import ClientClosed, ConnectionFailed, UnknownTopic
from holdfast.client.read.readers import Reader
from holdfast.client.sync_client import Client
from holdfast.testing import RunningBroker
from tests.support.broker_calls import Calls


@pytest.fixture
def client(shared_broker: RunningBroker) -> Iterator[Client]:
    with shared_broker.client() as client:
        yield client


def public_methods(kind: type) -> dict[str, inspect.Signature]:
    return {
        name: inspect.signature(method)
        for name, method in inspect.getmembers(kind, inspect.isfunction)
        if not name.startswith("_")
    }


def test_both_clients_have_the_same_methods_with_the_same_parameters() -> None:
    ours, theirs = public_methods(Client), public_methods(AsyncClient)
    assert ours.keys() == theirs.keys()
    for name, signature in ours.items():
        assert signature.parameters == theirs[name].parameters, name
        assert getattr(Client, name).__doc__


def test_the_package_has_the_clients_names() -> None:
    assert holdfast.Client is Client
    assert holdfast.AsyncClient is AsyncClient
    assert issubclass(holdfast.errors.UnknownTopic, holdfast.HoldfastError)
    for name in holdfast.__all__:
        assert getattr(holdfast, name) is not None
    with pytest.raises(AttributeError, match="no attribute 'Nothing'"):
        holdfast.Nothing  # noqa: B018


def test_a_message_goes_there_and_back(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=2)
    placed = client.publish(topic, "hello", key="k", tag="t", properties={"a": "b"})
    (message,) = client.pull(topic, placed.queue, placed.offset, follow=False)
    assert (message.body, message.key, message.tag) == (b"hello", "k", "t")
    assert message.properties == {"a": "b"}
    assert message.message_id == placed.message_id
    assert client.message(placed.message_id) == message


def test_topics_are_made_changed_listed_and_deleted(client: Client, topic: str) -> None:
    made = client.create_topic(topic, queues=2, durability="written", retention_ms=60_000)
    assert made["queue_count"] == 2
    assert made["config"]["durability"] == "written"
    assert client.create_topic(topic)["topic_id"] == made["topic_id"]
    with pytest.raises(holdfast.errors.TopicConflict) as conflict:
        client.create_topic(topic, queues=3)
    assert (conflict.value.field, conflict.value.existing) == ("queues", 2)
    changed = client.change_topic(topic, queues=4, retention_ms=None)
    assert (changed["queue_count"], changed["config"]["retention_ms"]) == (4, None)
    assert topic in [each["topic"] for each in client.topics()]
    client.delete_topic(topic)
    with pytest.raises(UnknownTopic):
        client.describe_topic(topic)


def test_all_pages_of_a_listing_are_fetched(client: Client, topic: str) -> None:
    names = {f"{topic}-{number:03}" for number in range(120)}
    for name in names:
        client.create_topic(name, queues=1)
    assert names <= {each["topic"] for each in client.topics()}
    for name in names:
        client.delete_topic(name)


def test_group_offsets_are_stored_swapped_and_reset(client: Client, topic: str) -> None:
    group = f"group-{topic}"
    client.create_topic(topic, queues=2)
    for _ in range(3):
        client.publish(topic, b"x", queue=0)
    with pytest.raises(holdfast.errors.UnknownGroup):
        client.stored_offsets(group, topic)
    first = client.store_offsets(group, topic, {0: 2})
    assert first.offsets == {0: 2}
    assert client.store_offsets(group, topic, {1: 0}, if_match=first.etag).offsets == {0: 2, 1: 0}
    with pytest.raises(holdfast.errors.OffsetsChanged):
        client.store_offsets(group, topic, {0: 3}, if_match=first.etag)
    assert client.describe_group(group)["lag_messages"] == 1
    assert group in [each["group"] for each in client.groups()]
    plan = client.reset_offsets(group, topic, "latest", dry_run=True)
    assert (plan["before"]["0"], plan["after"]["0"]) == (2, 3)
    assert client.stored_offsets(group, topic).offsets[0] == 2
    client.reset_offsets(group, topic, 0, queues=[0])
    assert client.stored_offsets(group, topic).offsets == {0: 0, 1: 0}


def test_splits_cover_the_range_that_is_asked_for(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=2)
    for number in range(10):
        client.publish(topic, b"x", queue=number % 2)
    everything = client.splits(topic)
    assert {(s["queue"], s["start_offset"], s["end_offset"]) for s in everything} == {
        (0, 0, 5),
        (1, 0, 5),
    }
    some = client.splits(topic, start={0: 2, 1: 5}, end={0: 4}, max_bytes=1)
    assert [(s["queue"], s["start_offset"], s["end_offset"]) for s in some] == [
        (0, 2, 3),
        (0, 3, 4),
    ]


def test_the_broker_tells_its_version(client: Client) -> None:
    assert client.info()["version"] == holdfast.__version__


def test_a_consumer_stores_how_far_it_came(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=1)
    with client.producer(topic) as producer:
        for number in range(10):
            producer.send(b"%d" % number)
    with client.consume_by_offsets(topic, "g", commit_interval_ms=10**9) as consumer:
        for message in consumer:
            if message.offset == 4:
                consumer.commit()
            if message.offset == 7:
                break
    assert client.stored_offsets("g", topic).offsets == {0: 7}
    with client.consume_by_offsets(topic, "g", follow=False) as consumer:
        assert [message.offset for message in consumer] == [7, 8, 9]


def test_leaving_a_loop_ends_the_reading(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=1)
    for _ in range(3):
        client.publish(topic, b"x")
    messages = client.pull(topic, 0)
    for message in messages:
        if message.offset == 1:
            break
    assert list(messages) == []
    with client.pull(topic, 0) as messages:
        assert [next(messages).offset for _ in range(3)] == [0, 1, 2]
    with pytest.raises(StopIteration):
        next(messages)


def test_a_reader_that_waits_can_be_closed_by_another_thread(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=1)
    messages = client.pull(topic, 0)
    found: list[object] = []
    reading = threading.Thread(target=lambda: found.extend(messages))
    reading.start()
    messages.close()
    reading.join(20)
    assert not reading.is_alive()
    assert found == []


def test_an_interrupt_ends_a_wait_and_loses_nothing(
    shared_broker: RunningBroker, client: Client, topic: str
) -> None:
    main = threading.main_thread()

    def interrupt() -> None:
        # Before the loop has started, an interrupt would not reach it.
        while not (is_in_a_reader(main) and pulls_held(shared_broker)):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    client.create_topic(topic, queues=1)
    with client.pull(topic, 0) as messages:
        with pytest.raises(KeyboardInterrupt), running(interrupt):
            next(messages)
        client.publish(topic, b"after")
        assert next(messages).body == b"after"
        with pytest.raises(KeyboardInterrupt), running(interrupt):
            for _ in messages:
                pass
        assert list(messages) == []


def is_in_a_reader(thread: threading.Thread) -> bool:
    """Return whether a thread is asking a reader for more messages now."""
    inside = (Reader.__next__.__code__, Reader._ranges.__code__)
    frame: FrameType | None = sys._current_frames()[thread.ident or 0]
    while frame is not None and frame.f_code not in inside:
        frame = frame.f_back
    return frame is not None


def pulls_held(broker: RunningBroker) -> float:
    return Calls(broker.url).metric("holdfast_long_poll_parked")


@contextmanager
def running(work: Callable[[], None]) -> Iterator[None]:
    """Run `work` in a thread during the block."""
    thread = threading.Thread(target=work)
    thread.start()
    try:
        yield
    finally:
        thread.join()


def test_closing_the_client_ends_a_reader_that_waits(
    shared_broker: RunningBroker, topic: str
) -> None:
    client = shared_broker.client()
    client.create_topic(topic, queues=1)
    raised: list[Exception] = []

    def read() -> None:
        try:
            list(client.pull(topic, 0))
        except ClientClosed as error:
            raised.append(error)

    reading = threading.Thread(target=read)
    reading.start()
    client.close()
    client.close()
    reading.join(20)
    assert len(raised) == 1
    with pytest.raises(ClientClosed):
        client.topics()


def test_a_reader_may_be_left_behind_by_its_client(
    shared_broker: RunningBroker, topic: str
) -> None:
    with shared_broker.client() as client:
        client.publish(topic, b"x")
        messages = iter(client.pull(topic))
        next(messages)
    del messages  # an exception here would be reported by pytest as unraisable


def test_an_unreachable_broker_is_told_after_the_timeout() -> None:
    with (
        Client("http://127.0.0.1:1", timeout_ms=200) as client,
        pytest.raises(ConnectionFailed, match=r"http://127\.0\.0\.1:1"),
    ):
        client.topics()


def test_a_client_that_was_never_used_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with Client("http://127.0.0.1:1"):
        assert set(threading.enumerate()) <= before


def test_a_client_that_was_forgotten_stops_its_thread(shared_broker: RunningBroker) -> None:
    before = set(threading.enumerate())
    client = shared_broker.client()
    client.topics()
    begun = set(threading.enumerate()) - before
    (thread,) = [each for each in begun if each.name == "holdfast-client"]
    del client
    assert not thread.is_alive()
