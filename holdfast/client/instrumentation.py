"""What a client reports to an instrumentation, such as `holdfast.client.opentelemetry`. Pure.

Give the client an Instrumentation: `AsyncClient(url, instrumentation=...)`. A client without an
instrumentation runs none of the code that reports.
"""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from holdfast.client.read.message import Message
    from holdfast.client.read.results import PublishResult
    from holdfast.client.values import Status, Verb

Properties = Mapping[str, str]
"""The properties of a message."""


class Instrumentation(Protocol):
    """Observes clients. One instrumentation may observe any number of clients, in any threads."""

    def observe(self, host: str, port: int) -> "Observer":
        """Return the observer of a new client. The client sends its requests to `host` and
        `port`."""


class Sending(Protocol):
    """A message that is being published."""

    @property
    def properties(self) -> Properties | None:
        """The properties to publish instead of the message's own."""

    def record_result(self, result: "PublishResult") -> None:
        """Record that the message is stored."""


class Observer(Protocol):
    """Observes the operations of one client. Any thread may call it.

    The methods except `begin_settling` return a context manager, and the operation runs in its
    `with` block. If an exception leaves the block, the operation has failed. The client enters and
    leaves the block in the context (contextvars) of the program that calls the client, except for
    `send_batches`. No method may block or raise an exception: the operation would fail.
    """

    def create(
        self, topic: str, properties: Properties | None
    ) -> AbstractContextManager[Properties | None]:
        """A producer adds a message to a batch. The value of the `with` block replaces the
        message's properties."""

    def send(self, topic: str, properties: Properties | None) -> AbstractContextManager[Sending]:
        """`publish` sends one message."""

    def send_batches(
        self, topic: str, count: int, properties: Sequence[Properties]
    ) -> AbstractContextManager[None]:
        """A producer sends `count` messages in one request, with all its repetitions.
        `properties` are those of the messages that have properties."""

    def receive(
        self, topics: Sequence[str], *, group: str | None = None, is_single: bool = False
    ) -> AbstractContextManager[Callable[[Sequence["Message"]], None]]:
        """The program asks for messages: of these topics, or of an unknown topic of the group if
        `topics` is empty. With `is_single` it gets one message, otherwise a list. The block calls
        the value with the messages; it does not call the value if a consumer has ended."""

    def process(self, message: "Message", group: str) -> AbstractContextManager[None]:
        """The program processes a message of a group: a handler, or a block `with delivery`."""

    def settle(self, verb: "Verb", group: str, count: int) -> AbstractContextManager[None]:
        """The program settles `count` receipts with one request."""

    def begin_settling(
        self, verb: "Verb", group: str, message: "Message"
    ) -> "Callable[[Status | BaseException], None]":
        """The program, or the consumer, settles one delivery. The consumer calls the returned
        function on its event loop, with the broker's reply or with the error that prevents it."""
