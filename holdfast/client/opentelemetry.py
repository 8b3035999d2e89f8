"""Spans of a client's operations for OpenTelemetry, and the trace context in messages.

Needs opentelemetry-api (the extra `opentelemetry`); the import raises PackageMissing without it.
The names follow the semantic conventions for messaging, version 1.44.0 (docs/opentelemetry.md).
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import islice
from time import time_ns

from holdfast import __version__
from holdfast.client.errors import ApiError, PackageMissing
from holdfast.client.instrumentation import Properties
from holdfast.client.read.message import Message
from holdfast.client.read.results import PublishResult
from holdfast.client.values import Status, Verb

try:
    from opentelemetry import trace
    from opentelemetry.context import Context
    from opentelemetry.propagators.textmap import TextMapPropagator
    from opentelemetry.trace import Link, Span, SpanContext, SpanKind, StatusCode, TracerProvider
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    from opentelemetry.util.types import AttributeValue
except ModuleNotFoundError as error:
    if (error.name or "").partition(".")[0] != "opentelemetry":
        raise
    raise PackageMissing("opentelemetry-api", "opentelemetry") from error

__all__ = ["OpenTelemetry"]

SCHEMA_URL = "https://opentelemetry.io/schemas/1.44.0"
SYSTEM = "holdfast"

#: A span has at most this many links; SDKs keep no more of them by default.
MAX_LINKS = 128

_Attributes = dict[str, AttributeValue]


class OpenTelemetry:
    """An instrumentation for `Client(url, instrumentation=...)` and `AsyncClient`. Any number of
    clients and threads may share it.

    The spans go to `tracer_provider` (default: the global one). `propagator` writes the trace
    context into the properties of messages and reads it; the default writes `traceparent` and
    `tracestate` of the W3C Trace Context. With `create_spans=False` a producer makes no span per
    message: a message then carries the context of the span that is current at `send`, or none if
    there is no span.
    """

    def __init__(
        self,
        tracer_provider: TracerProvider | None = None,
        *,
        propagator: TextMapPropagator | None = None,
        create_spans: bool = True,
    ) -> None:
        self._tracer = trace.get_tracer(
            "holdfast", __version__, tracer_provider, schema_url=SCHEMA_URL
        )
        self._propagator = propagator or TraceContextTextMapPropagator()
        self._create_spans = create_spans

    def observe(self, host: str, port: int) -> "_ClientSpans":
        """Return the observer of one client. The client calls this."""
        server: _Attributes = {"server.address": host, "server.port": port}
        return _ClientSpans(self._tracer, self._propagator, server, self._create_spans)

    def process(self, message: Message, group: str | None = None) -> "_Processing":
        """Return a context manager for the processing of a message: its block has the span
        `process TOPIC`, as a block `with delivery` has. For messages of readers, such as `pull`,
        and of `receive`."""
        spans = _ClientSpans(self._tracer, self._propagator, {}, self._create_spans)
        return spans.process(message, group)

    def creation_context(self, message: Message) -> SpanContext | None:
        """Return the context of the span that created the message; None if it carries none."""
        return _read_context(self._propagator, message.properties)


class _ClientSpans:
    """The spans of one client. See holdfast.client.instrumentation.Observer."""

    def __init__(
        self,
        tracer: trace.Tracer,
        propagator: TextMapPropagator,
        server: _Attributes,
        create_spans: bool,
    ) -> None:
        self._tracer = tracer
        self._propagator = propagator
        self._server = server
        self._create_spans = create_spans

    @contextmanager
    def create(self, topic: str, properties: Properties | None) -> Iterator[Properties | None]:
        if self._has_context(properties):
            yield properties
        elif not self._create_spans:
            yield self._add_context(properties, None)
        else:
            span = self._start("create", "create", SpanKind.PRODUCER, topic)
            with _ending(span):
                yield self._add_context(properties, span)

    @contextmanager
    def send(self, topic: str, properties: Properties | None) -> Iterator["_Sending"]:
        if self._has_context(properties):
            links = self._make_links([properties or {}])
            span = self._start("send", "send", SpanKind.CLIENT, topic, links=links)
        else:
            span = self._start("send", "send", SpanKind.PRODUCER, topic)
            properties = self._add_context(properties, span)
        with _ending(span):
            yield _Sending(span, properties)

    @contextmanager
    def send_batches(
        self, topic: str, count: int, properties: Sequence[Properties]
    ) -> Iterator[None]:
        links = self._make_links(properties)
        # The request is sent in the context of whichever message filled its batch, or began it.
        # That context is no parent of the other messages.
        parent = Context()
        if count == 1 and links:
            parent = _as_parent(links[0].context)
        attributes: _Attributes = {"messaging.batch.message_count": count}
        with _ending(
            self._start("send", "send", SpanKind.CLIENT, topic, attributes, links, parent)
        ):
            yield

    @contextmanager
    def receive(
        self, topics: Sequence[str], *, group: str | None = None, is_single: bool = False
    ) -> Iterator[Callable[[Sequence[Message]], None]]:
        started_ns = time_ns()
        received: list[Sequence[Message]] = []
        try:
            yield received.append
        except Exception as error:
            topic = topics[0] if len(topics) == 1 else None
            span = self._start(
                "receive", "receive", SpanKind.CLIENT, topic, _of_group(group), at_ns=started_ns
            )
            _end_failed(span, error)
            raise
        if not received:
            return
        # The span begins here, because its name and its links depend on the messages.
        messages = received[0]
        found = {message.topic for message in messages} or set(topics)
        attributes = _of_group(group)
        if is_single:
            attributes |= _of_message(messages[0])
        else:
            attributes["messaging.batch.message_count"] = len(messages)
        self._start(
            "receive",
            "receive",
            SpanKind.CLIENT,
            found.pop() if len(found) == 1 else None,
            attributes,
            self._link_messages(messages, with_ids=not is_single),
            at_ns=started_ns,
        ).end()

    def process(self, message: Message, group: str | None) -> "_Processing":
        attributes = _of_group(group) | _of_message(message)
        links = self._link_messages((message,))
        parent = None
        if links and not trace.get_current_span().get_span_context().is_valid:
            parent = _as_parent(links[0].context)
        return _Processing(
            lambda: self._start(
                "process", "process", SpanKind.CONSUMER, message.topic, attributes, links, parent
            )
        )

    @contextmanager
    def settle(self, verb: Verb, group: str, count: int) -> Iterator[None]:
        attributes = _of_group(group) | {"messaging.batch.message_count": count}
        with _ending(self._start(verb, "settle", SpanKind.CLIENT, None, attributes)):
            yield

    def begin_settling(
        self, verb: Verb, group: str, message: Message
    ) -> Callable[[Status | BaseException], None]:
        attributes = _of_group(group) | _of_message(message)
        links = self._link_messages((message,))
        span = self._start(verb, "settle", SpanKind.CLIENT, message.topic, attributes, links)

        def end(result: Status | BaseException) -> None:
            if isinstance(result, BaseException):
                _end_failed(span, result)
                return
            if result != "done":
                span.set_attribute("error.type", result)
                span.set_status(StatusCode.ERROR, f"the receipt is {result}")
            span.end()

        return end

    def _start(
        self,
        name: str,
        operation: str,
        kind: SpanKind,
        topic: str | None,
        attributes: Mapping[str, AttributeValue] | None = None,
        links: Sequence[Link] = (),
        parent: Context | None = None,
        at_ns: int | None = None,
    ) -> Span:
        """Start a span. Its parent is the current span, unless `parent` is another context."""
        every: _Attributes = {
            "messaging.system": SYSTEM,
            "messaging.operation.name": name,
            "messaging.operation.type": operation,
            **self._server,
            **(attributes or {}),
        }
        if topic is not None:
            every["messaging.destination.name"] = topic
            name = f"{name} {topic}"
        return self._tracer.start_span(name, parent, kind, every, links, at_ns)

    # -- the context in messages -------------------------------------------------------------

    def _has_context(self, properties: Properties | None) -> bool:
        """Return whether the program has given the message a context of its own."""
        return bool(properties) and not self._propagator.fields.isdisjoint(properties or ())

    def _add_context(self, properties: Properties | None, span: Span | None) -> Properties | None:
        """Return the properties with the context of `span`, or of the current span."""
        carrier = dict(properties or {})
        self._propagator.inject(carrier, None if span is None else trace.set_span_in_context(span))
        return carrier or None

    def _make_links(self, properties: Iterable[Properties]) -> list[Link]:
        """Return a link for each different context in the properties, MAX_LINKS at most."""
        found: dict[tuple[int, int], Link] = {}
        for each in properties:
            context = _read_context(self._propagator, each)
            if context is not None:
                found.setdefault((context.trace_id, context.span_id), Link(context))
                if len(found) == MAX_LINKS:
                    break
        return list(found.values())

    def _link_messages(self, messages: Sequence[Message], with_ids: bool = False) -> list[Link]:
        """Return a link for each message that carries a context, MAX_LINKS at most. With
        `with_ids`, the links have the ids of the messages."""
        links = []
        for message in islice(messages, MAX_LINKS):
            context = _read_context(self._propagator, message.properties)
            if context is not None:
                links.append(Link(context, _of_message(message) if with_ids else None))
        return links


class _Sending:
    """See holdfast.client.instrumentation.Sending."""

    def __init__(self, span: Span, properties: Properties | None) -> None:
        self._span = span
        self.properties = properties

    def record_result(self, result: PublishResult) -> None:
        self._span.set_attribute("messaging.message.id", result.message_id)
        self._span.set_attribute("messaging.destination.partition.id", str(result.queue))


class _Processing:
    """A `with` block whose span is the current span of the block."""

    def __init__(self, start: Callable[[], Span]) -> None:
        self._start = start

    def __enter__(self) -> None:
        self._span = self._start()
        self._use = trace.use_span(
            self._span, record_exception=False, set_status_on_exception=False
        )
        self._use.__enter__()

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        self._use.__exit__(None, None, None)
        if error is None:
            self._span.end()
        else:
            _end_failed(self._span, error)


@contextmanager
def _ending(span: Span) -> Iterator[None]:
    """End the span at the end of the block, with the error if there is one."""
    try:
        yield
    except BaseException as error:
        _end_failed(span, error)
        raise
    span.end()


def _end_failed(span: Span, error: BaseException) -> None:
    span.set_attribute("error.type", _error_type(error))
    span.set_status(StatusCode.ERROR, str(error))
    span.end()


def _error_type(error: BaseException) -> str:
    """Return the broker's code of a refusal, such as `unknown-topic`, or the name of the class."""
    if isinstance(error, ApiError):
        return error.type
    kind = type(error)
    return kind.__name__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__name__}"


def _of_group(group: str | None) -> _Attributes:
    return {} if group is None else {"messaging.consumer.group.name": group}


def _of_message(message: Message) -> _Attributes:
    return {
        "messaging.message.id": message.message_id,
        "messaging.destination.partition.id": str(message.queue),
    }


def _read_context(propagator: TextMapPropagator, properties: Properties) -> SpanContext | None:
    """Return the context that properties carry; None if they carry none, or an invalid one."""
    if not properties:
        return None
    context = trace.get_current_span(propagator.extract(properties, Context())).get_span_context()
    return context if context.is_valid else None


def _as_parent(context: SpanContext) -> Context:
    return trace.set_span_in_context(trace.NonRecordingSpan(context), Context())
