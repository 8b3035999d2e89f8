"""Client: the methods of AsyncClient for callers without an event loop, against a real broker."""

import gc
import inspect
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import FrameType

import pytest

import holdfast
from holdfast.client.async_client import AsyncClient
from holdfast.client.consume.consumer import Consumer
from holdfast.client.errors import ClientClosed, ConnectionFailed, UnknownTopic
from holdfast.client.produce.producers import Producer
from holdfast.client.read.readers import Reader
from holdfast.client.sync_client import Client
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.broker_calls import Calls


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


def test_a_published_message_is_read(client: Client, topic: str) -> None:
    client.create_topic(topic, queues=2)
    placed = client.publish(topic, "hello", key="k", tag="t", properties={"a": "b"})
    (message,) = client.pull(topic, placed.queue, placed.offset, follow=False)
    assert (message.body, message.key, message.tag) == (b"hello", "k", "t")
    assert message.properties == {"a": "b"}
    assert message.message_id == placed.message_id
    assert client.message(placed.message_id) == message


def test_topics_are_created_changed_listed_and_deleted(client: Client, topic: str) -> None:
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


def test_splits_cover_the_requested_range(client: Client, topic: str) -> None:
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


def test_info_has_the_version_of_the_broker(client: Client) -> None:
    assert client.info()["version"] == holdfast.__version__


def test_an_offset_consumer_stores_its_progress(client: Client, topic: str) -> None:
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
        # The interrupt must come while the reader waits.
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
    frame: FrameType | None = sys._current_frames()[thread.ident or 0]
    while frame is not None and frame.f_code.co_filename != inspect.getsourcefile(Reader):
        frame = frame.f_back
    return frame is not None


def pulls_held(broker: RunningBroker) -> float:
    return Calls(broker.url).metric("holdfast_long_poll_parked")


@contextmanager
def running(*works: Callable[[], None]) -> Iterator[None]:
    """Run each of `works` in a thread during the block."""
    threads = [threading.Thread(target=work) for work in works]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        for thread in threads:
            thread.join()


def test_a_reader_may_outlive_its_client(shared_broker: RunningBroker, topic: str) -> None:
    with shared_broker.client() as client:
        client.publish(topic, b"x")
        messages = iter(client.pull(topic))
        next(messages)
    del messages  # an exception here would be reported by pytest as unraisable


def test_an_unreachable_broker_raises_after_the_timeout() -> None:
    with (
        Client("http://127.0.0.1:1", timeout_ms=200) as client,
        pytest.raises(ConnectionFailed, match=r"http://127\.0\.0\.1:1"),
    ):
        client.topics()


def test_a_client_that_was_never_used_starts_no_thread() -> None:
    before = set(threading.enumerate())
    with Client("http://127.0.0.1:1"):
        assert set(threading.enumerate()) <= before


@pytest.fixture(scope="module")
def own_broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningBroker]:
    """A broker whose only clients are those of the running test."""
    with RunningBroker(tmp_path_factory.mktemp("own") / "holdfast", TEST_ARGUMENTS) as broker:
        yield broker


def one_shot_calls(client: Client, topic: str) -> dict[str, Callable[[], object]]:
    """Return a call of each method that sends requests and returns the result."""
    client.create_topic(topic, queues=1)
    client.create_topic(f"{topic}-dead", queues=1)
    client.create_group(topic, topic, dead_letter_topic=f"{topic}-dead")
    message_id = client.publish(topic, b"x", key="k").message_id
    return {
        "create_topic": lambda: client.create_topic(topic),
        "change_topic": lambda: client.change_topic(topic, retention_ms=None),
        "topics": client.topics,
        "describe_topic": lambda: client.describe_topic(topic),
        "publish": lambda: client.publish(topic, b"y"),
        "pull_once": lambda: client.pull_once(topic, 0, 0),
        "offset_at": lambda: client.offset_at(topic, 0, 0),
        "message": lambda: client.message(message_id),
        "search": lambda: client.search(topic, "k"),
        "splits": lambda: client.splits(topic),
        "groups": client.groups,
        "describe_group": lambda: client.describe_group(topic),
        "create_group": lambda: client.create_group(topic, lease_ms=60_000),
        "receive": lambda: client.receive(topic, "member", max_messages=1),
        "extend": lambda: client.extend(topic, ["none"]),
        "ack": lambda: client.ack(topic, ["none"]),
        "nack": lambda: client.nack(topic, ["none"]),
        "release": lambda: client.release(topic, ["none"]),
        "reject": lambda: client.reject(topic, ["none"]),
        "redrive": lambda: client.redrive(topic),
        "leave_group": lambda: client.leave_group(topic, "member"),
        "seek_group": lambda: client.seek_group(topic, "earliest"),
        "stored_offsets": lambda: client.stored_offsets(topic, topic),
        "store_offsets": lambda: client.store_offsets(f"{topic}-offsets", topic, {0: 0}),
        "reset_offsets": lambda: client.reset_offsets(f"{topic}-offsets", topic),
        "info": client.info,
        "ready": lambda: client.ready(wait_ms=1),
        "status": client.status,
        "overview": client.overview,
        "metrics": client.metrics,
        "delete_group": lambda: client.delete_group(topic),
        "delete_topic": lambda: client.delete_topic(topic),
    }


def test_each_request_runs_in_the_callers_thread_on_one_connection(
    own_broker: RunningBroker, topic: str
) -> None:
    before = set(threading.enumerate())
    with own_broker.client() as client:
        calls = one_shot_calls(client, topic)
        others = {"pull", "pull_batches", "consume", "consume_by_offsets", "producer", "close"}
        others |= {"session", "iter_arrow", "read_arrow"}
        assert calls.keys() | others == public_methods(Client).keys()
        for name, call in calls.items():
            call()
            assert set(threading.enumerate()) <= before, name
            assert connections(client) == 1, name


def test_a_reader_needs_no_thread_and_keeps_its_connection_for_requests(
    own_broker: RunningBroker, topic: str
) -> None:
    before = set(threading.enumerate())
    with own_broker.client() as client:
        client.publish(topic, b"x", queue=0)
        assert [message.body for message in client.pull(topic, follow=False)] == [b"x"]
        assert [len(batch) for batch in client.pull_batches(topic, 0, follow=False)] == [1]
        assert set(threading.enumerate()) <= before
        assert connections(client) == 1


def connections(client: Client) -> int:
    """Return how many connections the broker has, including that of this request."""
    (line,) = [x for x in client.metrics().splitlines() if x.startswith("holdfast_http_conn")]
    return int(float(line.split()[-1]))


def test_each_thread_that_shares_a_client_has_its_own_connection(
    own_broker: RunningBroker, topic: str
) -> None:
    count = 4
    barrier = threading.Barrier(count)
    placed: list[list[int]] = [[] for _ in range(count)]
    with own_broker.client() as client:
        client.create_topic(topic, queues=count)

        def publish(number: int) -> None:
            barrier.wait(30)
            for _ in range(25):
                result = client.publish(topic, b"%d" % number, queue=number)
                placed[number].append(result.offset)

        with running(*(partial(publish, number) for number in range(count))):
            pass
        assert placed == [list(range(25))] * count
        assert connections(client) <= count


def test_after_an_interrupted_request_the_client_is_usable(
    own_broker: RunningBroker, topic: str
) -> None:
    def interrupt() -> None:
        while not pulls_held(own_broker):
            time.sleep(0.005)
        os.kill(os.getpid(), signal.SIGINT)

    with own_broker.client() as client:
        client.publish(topic, b"x", queue=0)
        with pytest.raises(KeyboardInterrupt), running(interrupt):
            client.pull_once(topic, 0, 1, wait_ms=60_000)
        assert [message.body for message in client.pull_once(topic, 0, 0).messages] == [b"x"]


@pytest.mark.parametrize("kind", ["reader", "request"])
def test_closing_the_client_ends_a_wait_in_another_thread(
    own_broker: RunningBroker, topic: str, kind: str
) -> None:
    client = own_broker.client()
    client.create_topic(topic, queues=1)
    raised: list[Exception] = []

    def wait() -> None:
        try:
            if kind == "reader":
                list(client.pull(topic, 0))
            else:
                client.pull_once(topic, 0, 0, wait_ms=60_000)
        except ClientClosed as error:
            raised.append(error)

    with running(wait):
        while not pulls_held(own_broker):
            time.sleep(0.005)
        client.close()
        client.close()
    assert len(raised) == 1
    with pytest.raises(ClientClosed):
        client.topics()


def test_only_producers_and_consumers_of_leases_start_the_loop_thread(
    own_broker: RunningBroker, topic: str
) -> None:
    def names() -> set[str]:
        return {each.name for each in set(threading.enumerate()) - before}

    before = set(threading.enumerate())
    with own_broker.client() as client:
        with client.producer(topic) as producer:
            producer.send(b"x")
            assert names() == {"holdfast-client"}
        with client.consume(topic, topic, follow=False) as consumer:
            assert [delivery.body for delivery in consumer] == [b"x"]
            assert names() == {"holdfast-client"}
    assert names() == set()


@pytest.mark.parametrize("end", ["close the consumer", "close the client", "forget the consumer"])
def test_the_offset_thread_ends_with_its_consumer(
    own_broker: RunningBroker, topic: str, end: str
) -> None:
    before = set(threading.enumerate())
    with own_broker.client() as client:
        client.publish(topic, b"x")
        consumer = client.consume_by_offsets(topic, topic, commit_interval_ms=3_600_000)
        next(consumer)
        (thread,) = set(threading.enumerate()) - before
        assert thread.name == "holdfast-offsets"
        if end == "close the consumer":
            consumer.close()
            assert not thread.is_alive()
        elif end == "close the client":
            client.close()
            assert not thread.is_alive()
            with pytest.raises(ClientClosed):
                consumer.close()
        del consumer
        thread.join(30)
        assert not thread.is_alive()


def test_offsets_are_stored_while_the_caller_works(own_broker: RunningBroker, topic: str) -> None:
    with own_broker.client() as client:
        for _ in range(2):
            client.publish(topic, b"x", queue=0)
        client.store_offsets(topic, topic, {0: 0})
        with client.consume_by_offsets(topic, topic, commit_interval_ms=1) as consumer:
            next(consumer)
            next(consumer)
            deadline_s = time.monotonic() + 30
            while client.stored_offsets(topic, topic).offsets[0] != 1:
                assert time.monotonic() < deadline_s
                time.sleep(0.001)


@pytest.mark.parametrize("kind", ["producer", "consumer"])
def test_a_garbage_collected_client_stops_its_thread(
    shared_broker: RunningBroker, topic: str, kind: str
) -> None:
    before = set(threading.enumerate())
    client = shared_broker.client()
    client.publish(topic, b"x")
    user: Producer | Consumer
    if kind == "producer":
        user = client.producer(topic)
        user.start()
        user.send(b"y").result()
    else:
        user = client.consume(topic, topic)
        next(user)
    (thread,) = set(threading.enumerate()) - before
    assert thread.name == "holdfast-client"
    del client, user
    deadline_s = time.monotonic() + 30
    while thread.is_alive():  # the linger timer of a batch may still have the producer
        assert time.monotonic() < deadline_s
        gc.collect()  # a producer and its batches refer to each other
        time.sleep(0.001)
