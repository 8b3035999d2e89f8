"""Messages that a group has given: with the receipt that settles each, and, from a consumer, with
what to say of it. What is said goes out in batches by itself; nobody has to wait for it."""

import asyncio
from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Literal, NamedTuple, Protocol, Self

from holdfast.client.message import LoneMessage, Message

Verb = Literal["ack", "nack", "release", "extend", "reject"]
Status = Literal["done", "stale", "invalid"]


class ReceivedMessage(Message, frozen=True, gc=False, eq=False):
    """A message of a group. `receipt` is what it is settled with, None where there is nothing to
    settle; `attempt` counts its deliveries; `redelivered`: a member may have had it before."""

    receipt: str | None
    attempt: int
    redelivered: bool


class ReceiveResult(NamedTuple):
    """The reply to one receive. `available`: how many more could be had then, at most. Not
    `active`: another member has the group to itself, and this one waits for its turn."""

    messages: list[ReceivedMessage]
    available: int
    active: bool


class Delivered(LoneMessage, frozen=True, kw_only=True):
    """A message in the reply to a receive, in msgpack."""

    receipt: str | None = None
    attempt: int = 1
    redelivered: bool = False

    def as_received(self) -> ReceivedMessage:
        """Return it as a ReceivedMessage."""
        return ReceivedMessage(self.body, self, 0, self.receipt, self.attempt, self.redelivered)


class Settling:
    """What became of a delivery that was settled: `await` it, or `result()` in another thread.

    Neither has to be done. "done": it is durable. "stale": the lease had ended before, and the
    message is another member's, or settled. Raises the error with which the consumer failed.
    """

    __slots__ = ("_consumer", "_error", "_status", "_waiters")

    def __init__(self, consumer: "Settles | None", status: Status | None = None) -> None:
        self._consumer = consumer
        self._status = status
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def done(self) -> bool:
        """Return whether the broker has answered, or the consumer has failed."""
        return self._status is not None or self._error is not None

    def __await__(self) -> Generator[Any, None, Status]:
        return self._wait().__await__()

    def result(self, timeout_s: float | None = None) -> Status:
        """Wait, in a thread that is not the consumer's loop. Raises TimeoutError."""
        if self._status is not None:
            return self._status
        assert self._consumer is not None
        waiting = asyncio.run_coroutine_threadsafe(self._wait(), self._consumer.loop)
        return waiting.result(timeout_s)

    async def _wait(self) -> Status:
        if not self.done():
            assert self._consumer is not None
            self._consumer.flush_soon()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._error is not None:
            raise self._error
        assert self._status is not None
        return self._status

    def settled(self, status: Status) -> None:
        """The broker has answered. On the loop."""
        self._status = status
        self._wake()

    def failed(self, error: Exception) -> None:
        """The broker will not answer. On the loop."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class Settles(Protocol):
    """Who takes what is said of deliveries: the consumer that they came from."""

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which it lives."""
        ...

    def settle(self, delivery: "Delivery", verb: Verb, delay_ms: int | None = None) -> Settling:
        """Note what is said of a delivery. From any thread."""
        ...

    def extend(self, delivery: "Delivery", lease_ms: int | None) -> Settling:
        """Ask for more time for a delivery. From any thread."""
        ...

    def flush_soon(self) -> None:
        """Send what was said without further waiting. On the loop."""
        ...


@dataclass(slots=True, eq=False)
class Lease:
    """A consumer's record of one delivery. Times are the loop's, in seconds."""

    consumer: Settles
    #: When to ask for more time.
    extend_at_s: float
    #: When it was handed out; None: not yet.
    taken_at_s: float | None = None
    #: What was said of it, and the answer to come.
    settling: Settling | None = None
    #: A handler has it: it is out of hand when that returns, whatever was said before.
    is_handled: bool = False
    #: The broker has said that the message is this member's no more.
    is_lost: bool = False


class Delivery(ReceivedMessage, frozen=True, gc=True, eq=False):
    """A message that a consumer was given, and the place to say what became of it.

    What is said first counts; it is sent soon, and from any thread. The lease is extended until
    then. As a context manager (`with delivery:`) it is acknowledged at the end of the block, and
    after an exception given back as failed, unless something was said inside.
    """

    _lease: Lease

    @property
    def is_settled(self) -> bool:
        """Whether something was said of it."""
        return self._lease.settling is not None

    @property
    def is_lost(self) -> bool:
        """Whether its lease is known to have ended before anything was said: another member may
        have the message now, and what is said will be "stale"."""
        return self._lease.is_lost

    def ack(self) -> Settling:
        """Say that it is done with."""
        return self._lease.consumer.settle(self, "ack")

    def nack(self, delay_ms: int | None = None) -> Settling:
        """Say that it failed: it comes again after `delay_ms`, or as the group's back-off says,
        until it has failed too often and becomes a dead letter."""
        return self._lease.consumer.settle(self, "nack", delay_ms)

    def release(self) -> Settling:
        """Give it back untouched: it comes again at once, and that is no failure."""
        return self._lease.consumer.settle(self, "release")

    def reject(self) -> Settling:
        """Say that no one can do it: it becomes a dead letter at once."""
        return self._lease.consumer.settle(self, "reject")

    def extend(self, lease_ms: int | None = None) -> Settling:
        """Ask for so much time from now on. That is done by itself, in good time, as long as the
        process lives; this is for who knows that he needs long, or that the process may stall."""
        return self._lease.consumer.extend(self, lease_ms)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self.is_settled:
            return
        if error is None:
            self.ack()
        elif isinstance(error, Exception):
            self.nack()
        else:  # cancelled or interrupted: not the message's fault
            self.release()
