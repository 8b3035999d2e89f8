"""The spans of both clients and the trace context in messages, through a real broker."""

import asyncio
import importlib.metadata
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("opentelemetry.sdk", reason="no SDK (pip install 'holdfast[dev]')")

from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan, SpanLimits, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.semconv._incubating.attributes import messaging_attributes
from opentelemetry.semconv.attributes import error_attributes, server_attributes
from opentelemetry.semconv.schemas import Schemas
from opentelemetry.trace import SpanKind, StatusCode

import holdfast
from holdfast.client.async_client import AsyncClient
from holdfast.client.consume.delivery import Delivery
from holdfast.client.errors import ConnectionFailed, ExclusiveHeld, UnknownTopic, Unroutable
from holdfast.client.opentelemetry import MAX_LINKS, SCHEMA_URL, OpenTelemetry
from holdfast.client.sync_client import Client
from holdfast.testing import RunningBroker

PAGE = Path(__file__).resolve().parents[3] / "docs" / "opentelemetry.md"
OWN_CONTEXT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"


class Spans:
    """What a tracer provider has exported."""

    def __init__(self) -> None:
        self._exporter = InMemorySpanExporter()
        self.provider = TracerProvider(span_limits=SpanLimits(max_links=2 * MAX_LINKS))
        self.provider.add_span_processor(SimpleSpanProcessor(self._exporter))
        self.tracer = self.provider.get_tracer("test")

    def named(self, name: str) -> list[ReadableSpan]:
        return [span for span in self._exporter.get_finished_spans() if span.name == name]

    def names(self) -> set[str]:
        return {span.name for span in self._exporter.get_finished_spans()}

    def one(self, name: str) -> ReadableSpan:
        (found,) = self.named(name)
        return found


@pytest.fixture
def spans() -> Spans:
    return Spans()


@pytest.fixture
def tracing(spans: Spans) -> OpenTelemetry:
    return OpenTelemetry(spans.provider)


@pytest.fixture
def client(shared_broker: RunningBroker, tracing: OpenTelemetry) -> Iterator[Client]:
    with Client(shared_broker.url, instrumentation=tracing) as client:
        yield client


def test_spans_name_the_version_where_only_the_client_is_installed(
    shared_broker: RunningBroker, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    def find_no_distribution(name: str) -> None:
        raise importlib.metadata.PackageNotFoundError(name)

    with monkeypatch.context() as patched:
        patched.setattr(importlib.metadata, "distribution", find_no_distribution)
        tracing = OpenTelemetry(spans.provider)
    with Client(shared_broker.url, instrumentation=tracing) as client:
        client.publish("versions", b"x")
    scope = spans.one("send versions").instrumentation_scope
    assert scope is not None
    assert scope.version == holdfast.__version__


def attributes(span: ReadableSpan) -> dict[str, Any]:
    return dict(span.attributes or {})


def context(span: ReadableSpan) -> tuple[int, int]:
    assert span.context is not None
    return span.context.trace_id, span.context.span_id


def parent(span: ReadableSpan) -> tuple[int, int] | None:
    return None if span.parent is None else (span.parent.trace_id, span.parent.span_id)


def links(span: ReadableSpan) -> list[tuple[int, int]]:
    return [(link.context.trace_id, link.context.span_id) for link in span.links]


def server(broker: RunningBroker) -> dict[str, Any]:
    host, port = broker.url.removeprefix("http://").split(":")
    return {"server.address": host, "server.port": int(port)}


def base(broker: RunningBroker, name: str, kind: str, topic: str | None) -> dict[str, Any]:
    found = {
        "messaging.system": "holdfast",
        "messaging.operation.name": name,
        "messaging.operation.type": kind,
        **server(broker),
    }
    return found if topic is None else {**found, "messaging.destination.name": topic}


# -- publishing ------------------------------------------------------------------------------


def test_publish_has_a_send_span_whose_context_the_message_carries(
    client: Client, shared_broker: RunningBroker, spans: Spans, topic: str
) -> None:
    with spans.tracer.start_as_current_span("request") as request:
        placed = client.publish(topic, "a", properties={"table": "7"})
    sent = spans.one(f"send {topic}")
    assert attributes(sent) == {
        **base(shared_broker, "send", "send", topic),
        "messaging.message.id": placed.message_id,
        "messaging.destination.partition.id": str(placed.queue),
    }
    assert sent.kind is SpanKind.PRODUCER
    assert sent.parent == request.get_span_context()
    assert sent.status.status_code is StatusCode.UNSET
    properties = client.message(placed.message_id).properties
    assert properties.keys() == {"table", "traceparent"}
    trace_id, span_id = context(sent)
    assert properties["traceparent"].startswith(f"00-{trace_id:032x}-{span_id:016x}-")


async def test_publish_of_the_asyncio_client_has_the_span_of_its_own_caller(
    shared_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    async with AsyncClient(shared_broker.url, instrumentation=tracing) as client:

        async def request(name: str) -> str:
            with spans.tracer.start_as_current_span(name):
                return (await client.publish(topic, name)).message_id

        ids = await asyncio.gather(*(request(f"request-{n}") for n in range(5)))
    by_id = {
        attributes(span)["messaging.message.id"]: span for span in spans.named(f"send {topic}")
    }
    assert [parent(by_id[each]) for each in ids] == [
        context(spans.one(f"request-{n}")) for n in range(5)
    ]


def test_a_context_that_the_program_gave_is_kept_and_linked(
    client: Client, spans: Spans, topic: str
) -> None:
    own = {"traceparent": OWN_CONTEXT, "tracestate": "vendor=1"}
    placed = client.publish(topic, "a", properties=own)
    with client.producer(topic) as producer:
        later = producer.send("b", properties=own).result()
    assert client.message(placed.message_id).properties == own
    assert client.message(later.message_id).properties == own
    assert spans.names() == {f"send {topic}"}
    for sent in spans.named(f"send {topic}"):
        assert sent.kind is SpanKind.CLIENT
        assert links(sent) == [(0x0AF7651916CD43DD8448EB211C80319C, 0xB7AD6B7169203331)]


def test_a_tracestate_is_published_too(client: Client, topic: str) -> None:
    remote = trace.SpanContext(
        1, 2, True, trace.TraceFlags(1), trace.TraceState([("vendor", "a1")])
    )
    with trace.use_span(trace.NonRecordingSpan(remote)):
        placed = client.publish(topic, "a")
    assert client.message(placed.message_id).properties["tracestate"] == "vendor=a1"


def test_a_refused_publish_has_the_code_of_the_refusal(
    client: Client, spans: Spans, topic: str
) -> None:
    with pytest.raises(Unroutable):
        client.publish(topic, "a", mandatory=True)
    sent = spans.one(f"send {topic}")
    assert attributes(sent)["error.type"] == "unroutable"
    assert sent.status.status_code is StatusCode.ERROR


def test_a_publish_without_an_answer_has_the_class_of_the_error(
    tracing: OpenTelemetry, spans: Spans, topic: str, unused_port: int
) -> None:
    url = f"http://127.0.0.1:{unused_port}"
    with (
        Client(url, timeout_ms=1, instrumentation=tracing) as client,
        pytest.raises(Exception, match=str(unused_port)),
    ):
        client.publish(topic, "a")
    sent = attributes(spans.one(f"send {topic}"))
    assert sent["error.type"] == "holdfast.client.errors.ConnectionFailed"
    assert sent["server.port"] == unused_port


@pytest.fixture
def unused_port() -> int:
    import socket

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        port: int = taken.getsockname()[1]
        return port


# -- producers -------------------------------------------------------------------------------


def check_produced(
    broker: RunningBroker, spans: Spans, topic: str, contexts: list[tuple[int, int]]
) -> None:
    """Check the spans of messages that were sent in one request; these are the contexts that the
    messages carry."""
    created = spans.named(f"create {topic}")
    request = spans.one("request")
    assert [parent(span) for span in created] == [context(request)] * len(created)
    assert {span.kind for span in created} == {SpanKind.PRODUCER}
    assert attributes(created[0]) == base(broker, "create", "create", topic)
    assert contexts == [context(span) for span in created]
    sent = spans.one(f"send {topic}")
    assert attributes(sent) == {
        **base(broker, "send", "send", topic),
        "messaging.batch.message_count": len(created),
    }
    assert (sent.kind, sent.parent) == (SpanKind.CLIENT, None)
    assert links(sent) == contexts


def test_a_producer_has_a_span_for_each_message_and_one_for_the_request(
    client: Client, shared_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    client.create_topic(topic, queues=1)
    with (
        spans.tracer.start_as_current_span("request"),
        client.producer(topic, linger_ms=60_000) as producer,
    ):
        for n in range(3):
            producer.send(str(n), key="k")
    messages = list(client.pull(topic, follow=False))
    found = [tracing.creation_context(message) for message in messages]
    contexts = [(each.trace_id, each.span_id) for each in found if each is not None]
    check_produced(shared_broker, spans, topic, contexts)


async def test_a_producer_of_the_asyncio_client_has_the_same_spans(
    shared_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    async with AsyncClient(shared_broker.url, instrumentation=tracing) as client:
        await client.create_topic(topic, queues=1)
        with spans.tracer.start_as_current_span("request"):
            async with client.producer(topic, linger_ms=60_000) as producer:
                for n in range(3):
                    producer.send(str(n))
        messages = [message async for message in client.pull(topic, follow=False)]
    found = [tracing.creation_context(message) for message in messages]
    contexts = [(each.trace_id, each.span_id) for each in found if each is not None]
    check_produced(shared_broker, spans, topic, contexts)


def test_the_send_span_of_one_message_is_in_the_trace_of_the_message(
    client: Client, spans: Spans, topic: str
) -> None:
    with client.producer(topic) as producer:
        producer.send("a").result()
    assert parent(spans.one(f"send {topic}")) == context(spans.one(f"create {topic}"))


def test_without_create_spans_messages_carry_the_current_span(
    shared_broker: RunningBroker, spans: Spans, topic: str
) -> None:
    tracing = OpenTelemetry(spans.provider, create_spans=False)
    with Client(shared_broker.url, instrumentation=tracing) as client:
        client.create_topic(topic, queues=1)
        with client.producer(topic, linger_ms=60_000) as producer:
            with spans.tracer.start_as_current_span("request"):
                producer.send("a")
                producer.send("b")
            producer.send("c")
        contexts = [tracing.creation_context(each) for each in client.pull(topic, follow=False)]
    request = spans.one("request")
    assert [each and (each.trace_id, each.span_id) for each in contexts] == [
        context(request),
        context(request),
        None,
    ]
    sent = spans.one(f"send {topic}")
    assert links(sent) == [context(request)]
    assert attributes(sent)["messaging.batch.message_count"] == 3
    assert not spans.named(f"create {topic}")


def test_a_span_has_a_limited_number_of_links(client: Client, spans: Spans, topic: str) -> None:
    client.create_topic(topic, queues=1)
    with client.producer(topic, linger_ms=60_000) as producer:
        for _ in range(MAX_LINKS + 10):
            producer.send("a")
    assert len(links(spans.one(f"send {topic}"))) == MAX_LINKS


def test_a_failed_request_of_a_producer_has_the_code_of_the_refusal(
    client: Client, spans: Spans, topic: str
) -> None:
    client.create_topic(topic, queues=1)
    with client.producer(topic, mandatory=True) as producer, pytest.raises(Unroutable):
        producer.send("a").result()
    assert attributes(spans.one(f"send {topic}"))["error.type"] == "unroutable"
    assert "error.type" not in attributes(spans.one(f"create {topic}"))


def test_a_message_that_a_producer_refuses_has_a_failed_create_span(
    client: Client, spans: Spans, topic: str
) -> None:
    with client.producer(topic) as producer, pytest.raises(ValueError, match="empty"):
        producer.send("a", key="")
    assert attributes(spans.one(f"create {topic}"))["error.type"] == "ValueError"


# -- receiving by request --------------------------------------------------------------------


def test_receive_and_settle_requests_have_spans(
    client: Client, shared_broker: RunningBroker, spans: Spans, topic: str
) -> None:
    group = f"{topic}-group"
    client.create_group(group, topic, start="earliest")
    ids = [client.publish(topic, body).message_id for body in "ab"]
    received = client.receive(group, "me", wait_ms=10_000).messages
    assert client.ack(group, [each.receipt or "" for each in received]) == ["done"] * 2
    span = spans.one(f"receive {topic}")
    assert attributes(span) == {
        **base(shared_broker, "receive", "receive", topic),
        "messaging.consumer.group.name": group,
        "messaging.batch.message_count": 2,
    }
    assert span.kind is SpanKind.CLIENT
    sent = {
        attributes(each)["messaging.message.id"]: context(each)
        for each in spans.named(f"send {topic}")
    }
    linked = [str((link.attributes or {})["messaging.message.id"]) for link in span.links]
    assert links(span) == [sent[each] for each in linked]
    assert sorted(linked) == sorted(ids)
    acked = spans.one("ack")
    assert attributes(acked) == {
        **base(shared_broker, "ack", "settle", None),
        "messaging.consumer.group.name": group,
        "messaging.batch.message_count": 2,
    }
    assert acked.kind is SpanKind.CLIENT


def test_an_empty_receive_and_a_failed_receive_have_spans(
    client: Client, spans: Spans, topic: str
) -> None:
    group = f"{topic}-group"
    client.create_topic(topic)
    client.create_group(group, topic)
    assert not client.receive(group, "me", topics=[topic]).messages
    with pytest.raises(UnknownTopic):
        client.receive(group, "me", topics=["no-such-topic"])
    assert attributes(spans.one(f"receive {topic}"))["messaging.batch.message_count"] == 0
    failed = attributes(spans.one("receive no-such-topic"))
    assert failed["error.type"] == "unknown-topic"
    assert "messaging.batch.message_count" not in failed


def test_pull_once_has_a_receive_span(client: Client, spans: Spans, topic: str) -> None:
    placed = client.publish(topic, "a")
    client.pull_once(topic, placed.queue, placed.offset)
    span = spans.one(f"receive {topic}")
    assert links(span) == [context(spans.one(f"send {topic}"))]
    assert "messaging.consumer.group.name" not in attributes(span)


# -- consumers -------------------------------------------------------------------------------


def check_consumed(broker: RunningBroker, spans: Spans, topic: str, group: str) -> None:
    """Check the spans of one message that was taken from a consumer and processed in a block."""
    sent, received = spans.one(f"send {topic}"), spans.one(f"receive {topic}")
    of_message = {
        "messaging.consumer.group.name": group,
        "messaging.message.id": attributes(sent)["messaging.message.id"],
        "messaging.destination.partition.id": attributes(sent)[
            "messaging.destination.partition.id"
        ],
    }
    processed, acked = spans.one(f"process {topic}"), spans.one(f"ack {topic}")
    for span, name, operation in (
        (received, "receive", "receive"),
        (processed, "process", "process"),
        (acked, "ack", "settle"),
    ):
        assert attributes(span) == {**base(broker, name, operation, topic), **of_message}
        assert links(span) == [context(sent)]
        assert span.status.status_code is StatusCode.UNSET
    assert (received.kind, received.parent) == (SpanKind.CLIENT, None)
    # No span is current: the message's creation context is the parent.
    assert (processed.kind, parent(processed)) == (SpanKind.CONSUMER, context(sent))
    assert parent(spans.one("work")) == context(processed)
    assert (acked.kind, parent(acked)) == (SpanKind.CLIENT, context(processed))


def test_a_delivery_has_spans_for_its_receive_its_block_and_its_acknowledgement(
    client: Client, shared_broker: RunningBroker, spans: Spans, topic: str
) -> None:
    client.publish(topic, "a")
    with client.consume(topic, f"{topic}-group", start="earliest") as consumer:
        delivery = next(consumer)
        with delivery, spans.tracer.start_as_current_span("work"):
            pass
    check_consumed(shared_broker, spans, topic, f"{topic}-group")


async def test_a_delivery_of_the_asyncio_client_has_the_same_spans(
    shared_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    async with AsyncClient(shared_broker.url, instrumentation=tracing) as client:
        await client.publish(topic, "a")
        async with client.consume(topic, f"{topic}-group", start="earliest") as consumer:
            delivery = await consumer.next()
            assert delivery is not None
            with delivery, spans.tracer.start_as_current_span("work"):
                pass
    check_consumed(shared_broker, spans, topic, f"{topic}-group")


def test_the_current_span_is_the_parent_of_the_process_span(
    client: Client, spans: Spans, topic: str
) -> None:
    client.publish(topic, "a")
    with client.consume(topic, f"{topic}-group", start="earliest") as consumer:
        delivery = next(consumer)
        with spans.tracer.start_as_current_span("request"), delivery, delivery:
            pass  # the inner block of the same delivery is no processing of its own
    processed = spans.one(f"process {topic}")
    assert parent(processed) == context(spans.one("request"))
    assert links(processed) == [context(spans.one(f"send {topic}"))]


def test_handlers_run_in_the_process_spans_of_their_messages(
    client: Client, spans: Spans, topic: str
) -> None:
    ids = {client.publish(topic, str(n)).message_id for n in range(4)}

    def handle(delivery: Delivery) -> None:
        with spans.tracer.start_as_current_span("work", attributes={"id": delivery.message_id}):
            pass

    with client.consume(
        topic, f"{topic}-group", start="earliest", follow=False, concurrency=2, serial_by="nothing"
    ) as consumer:
        consumer.run(handle)
    processed = {
        attributes(span)["messaging.message.id"]: span for span in spans.named(f"process {topic}")
    }
    assert processed.keys() == ids
    for work in spans.named("work"):
        assert parent(work) == context(processed[attributes(work)["id"]])
    assert len(spans.named(f"ack {topic}")) == 4
    assert not spans.named(f"receive {topic}")  # the program has asked for none


async def test_a_failed_handler_has_the_class_of_its_error(
    shared_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    async with AsyncClient(shared_broker.url, instrumentation=tracing) as client:
        await client.publish(topic, "a")

        async def fail(delivery: Delivery) -> None:
            raise KeyError("oven")

        consumer = client.consume(topic, f"{topic}-group", start="earliest", follow=False)
        await consumer.run(fail)
    processed = spans.one(f"process {topic}")
    assert attributes(processed)["error.type"] == "KeyError"
    assert processed.status.status_code is StatusCode.ERROR
    nacked = spans.one(f"nack {topic}")
    assert parent(nacked) == context(processed)
    assert "error.type" not in attributes(nacked)


def test_a_stale_acknowledgement_is_an_error(client: Client, spans: Spans, topic: str) -> None:
    group = f"{topic}-group"
    client.publish(topic, "a")
    with client.consume(topic, group, start="earliest") as consumer:
        delivery = next(consumer)
        client.seek_group(group, "latest")
        assert delivery.ack().result(30) == "stale"
    acked = spans.one(f"ack {topic}")
    assert attributes(acked)["error.type"] == "stale"
    assert acked.status.status_code is StatusCode.ERROR


def test_an_acknowledgement_without_an_answer_has_the_class_of_the_error(
    holdfast_broker: RunningBroker, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    url = holdfast_broker.url
    with Client(url, timeout_ms=5000, instrumentation=tracing) as client:
        client.publish(topic, "a")
        consumer = client.consume(topic, f"{topic}-group", start="earliest", follow=False)
        delivery = next(consumer)
        holdfast_broker.kill()
        with pytest.raises(ConnectionFailed):
            delivery.ack().result(30)
        with suppress(ConnectionFailed):
            consumer.close()
    error = attributes(spans.one(f"ack {topic}"))["error.type"]
    assert error == "holdfast.client.errors.ConnectionFailed"


def test_a_consumer_that_ends_has_no_span_for_its_end(
    client: Client, spans: Spans, topic: str
) -> None:
    client.create_topic(topic)
    with client.consume(topic, f"{topic}-group", follow=False) as consumer:
        assert list(consumer) == []
    assert spans.names() == set()


def test_a_failed_consumer_has_a_failed_receive_span(
    client: Client, spans: Spans, topic: str
) -> None:
    client.create_topic(topic)
    group = f"{topic}-group"
    client.create_group(group, topic, mode="exclusive")
    client.receive(group, "first", topics=[topic])
    with client.consume(topic, group, member="second") as second, pytest.raises(ExclusiveHeld):
        next(second)
    first, failed = spans.named(f"receive {topic}")
    assert "error.type" not in attributes(first)
    assert attributes(failed)["error.type"] == "group-exclusive"


def test_messages_of_readers_can_be_processed_in_a_span(
    client: Client, tracing: OpenTelemetry, spans: Spans, topic: str
) -> None:
    client.publish(topic, "a")
    (message,) = client.pull(topic, follow=False)
    with pytest.raises(RuntimeError), tracing.process(message):
        raise RuntimeError("no")
    processed = spans.one(f"process {topic}")
    assert attributes(processed)["error.type"] == "RuntimeError"
    assert parent(processed) == context(spans.one(f"send {topic}"))


# -- conventions, and clients without an instrumentation -------------------------------------


def test_the_names_are_those_of_the_conventions(client: Client, spans: Spans, topic: str) -> None:
    assert SCHEMA_URL in {each.value for each in Schemas}
    client.publish(topic, "a")
    with client.consume(topic, f"{topic}-group", start="earliest") as consumer, next(consumer):
        pass
    with pytest.raises(Unroutable):
        client.publish(f"{topic}-2", "a", mandatory=True)
    known = {
        value
        for module in (messaging_attributes, error_attributes, server_attributes)
        for value in vars(module).values()
        if isinstance(value, str)
    }
    operations = {each.value for each in messaging_attributes.MessagingOperationTypeValues}
    for name in spans.names():
        for span in spans.named(name):
            assert attributes(span).keys() <= known
            assert attributes(span)["messaging.operation.type"] in operations
            assert span.instrumentation_scope is not None
            assert span.instrumentation_scope.schema_url == SCHEMA_URL


def test_a_client_without_an_instrumentation_publishes_no_context(
    shared_broker: RunningBroker, spans: Spans, topic: str
) -> None:
    with (
        shared_broker.client() as client,
        spans.tracer.start_as_current_span("request"),
        client.producer(topic) as producer,
    ):
        ids = [client.publish(topic, "a").message_id, producer.send("b").result().message_id]
        assert [client.message(each).properties for each in ids] == [{}, {}]
    assert spans.names() == {"request"}


WITHOUT_PACKAGE = """
import sys
sys.modules["opentelemetry"] = None
import holdfast
with holdfast.Client(sys.argv[1]) as client:
    client.publish(sys.argv[2], "a")
    with client.producer(sys.argv[2]) as producer:
        producer.send("b")
    group = sys.argv[2] + "-group"
    with client.consume(sys.argv[2], group, start="earliest", follow=False) as consumer:
        assert sorted(each.body for each in consumer) == [b"a", b"b"]
try:
    import holdfast.client.opentelemetry
except holdfast.errors.PackageMissing as error:
    print(error)
"""


def test_without_the_package_the_client_works_and_the_import_names_the_package(
    shared_broker: RunningBroker, topic: str
) -> None:
    found = subprocess.run(
        [sys.executable, "-c", WITHOUT_PACKAGE, shared_broker.url, topic],
        capture_output=True,
        text=True,
        check=True,
    )
    assert found.stdout == "opentelemetry-api is not installed; pip install opentelemetry-api\n"


def test_a_client_does_not_import_opentelemetry(shared_broker: RunningBroker, topic: str) -> None:
    code = WITHOUT_PACKAGE.replace('sys.modules["opentelemetry"] = None', "").partition("try:")[0]
    code += "assert not [each for each in sys.modules if 'opentelemetry' in each]"
    subprocess.run([sys.executable, "-c", code, shared_broker.url, topic], check=True)


def test_every_example_of_the_page_runs(
    holdfast_broker: RunningBroker, spans: Spans, monkeypatch: pytest.MonkeyPatch
) -> None:
    examples = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)
    assert len(examples) >= 2
    monkeypatch.setattr("opentelemetry.sdk.trace.TracerProvider", lambda: spans.provider)
    names: dict[str, Any] = {}
    for example in examples:
        code = example.replace("http://127.0.0.1:8711", holdfast_broker.url)
        exec(compile(code, str(PAGE), "exec"), names)
    assert {"send orders", "process orders", "ack orders"} <= spans.names()
