"""Messages that a group delivers. The receipt of a message is needed to settle it. A consumer
returns Deliveries, which have methods to settle them. The consumer sends these calls in batches."""

from collections.abc import Generator
from dataclasses import dataclass
from types import TracebackType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self

from holdfast.client.read.message import LoneMessage, Message
from holdfast.client.values import Status, Verb
from holdfast.commitlog.lazy_import import import_at_first_use

if TYPE_CHECKING:
    import asyncio
else:
    import_at_first_use(globals(), asyncio="asyncio")


class ReceivedMessage(Message, frozen=True, gc=False, eq=False):
    """A message of a group. `receipt` is needed to settle the message; it is None if the message
    needs no settling. `attempt` is the number of this delivery, from 1. `redelivered` is True if a
    member may have received the message before."""

    receipt: str | None
    attempt: int
    redelivered: bool

    def to_dict(self) -> dict[str, Any]:
        own = {name: getattr(self, name) for name in ("receipt", "attempt", "redelivered")}
        return {**Message.to_dict(self), **own}


class ReceiveResult(NamedTuple):
    """The reply to one receive. When the broker replied, at most `available` more messages were
    available. `active` is False if this member gets no messages because another member is the
    group's active member."""

    messages: list[ReceivedMessage]
    available: int
    active: bool


class DeliveredMessage(LoneMessage, frozen=True, kw_only=True):
    """A message in the msgpack reply to a receive."""

    receipt: str | None = None
    attempt: int = 1
    redelivered: bool = False

    def as_received(self) -> ReceivedMessage:
        """Return a ReceivedMessage that takes its fields from this object."""
        return ReceivedMessage(self.body, self, 0, self.receipt, self.attempt, self.redelivered)


class Settling:
    """The pending result of settling a delivery: `await` it, or call `result()` in another thread.

    Reading the result is optional. It is "done" if the message is settled durably. It is "stale" if
    the lease had ended, and the message was delivered again or settled differently. If the
    consumer failed, its error is raised.
    """

    __slots__ = ("_consumer", "_error", "_status", "_waiters")

    def __init__(self, consumer: "DeliveryOwner | None", status: Status | None = None) -> None:
        self._consumer = consumer
        self._status = status
        self._error: Exception | None = None
        self._waiters: list[asyncio.Future[None]] = []

    def done(self) -> bool:
        """Return whether the broker has replied or the consumer has failed."""
        return self._status is not None or self._error is not None

    def __await__(self) -> Generator[Any, None, Status]:
        return self._wait().__await__()

    def result(self, timeout_s: float | None = None) -> Status:
        """Wait for the status. Do not call this in the thread of the consumer's event loop. Raises
        TimeoutError."""
        if self._status is not None:
            return self._status
        assert self._consumer is not None
        waiting = asyncio.run_coroutine_threadsafe(self._wait(), self._consumer.loop)
        return waiting.result(timeout_s)

    async def _wait(self) -> Status:
        if not self.done():
            assert self._consumer is not None
            self._consumer.confirm_soon()
            waiter = asyncio.get_running_loop().create_future()
            self._waiters.append(waiter)
            await waiter
        if self._error is not None:
            raise self._error
        assert self._status is not None
        return self._status

    def settled(self, status: Status) -> None:
        """Record the broker's reply and wake the waiters. Call on the loop."""
        self._status = status
        self._wake()

    def failed(self, error: Exception) -> None:
        """Record that the broker will not reply, and wake the waiters. Call on the loop."""
        self._error = error
        self._wake()

    def _wake(self) -> None:
        for waiter in self._waiters:
            if not waiter.done():
                waiter.set_result(None)
        self._waiters.clear()


class DeliveryOwner(Protocol):
    """The member that holds a delivery. `settle` and `extend` may be called from any thread,
    `confirm_soon` only on the loop."""

    @property
    def loop(self) -> "asyncio.AbstractEventLoop": ...
    def settle(self, delivery: "Delivery", verb: Verb, delay_ms: int | None = None) -> Settling: ...
    def extend(self, delivery: "Delivery", lease_ms: int | None) -> Settling: ...
    def confirm_soon(self) -> None: ...


class OrderingKey(NamedTuple):
    """Names messages that must be processed in order, one at a time: the messages of a queue, the
    messages of a key of a topic, or only a single message (then `offset` is set)."""

    topic: str
    queue: int | None = None
    key: str | None = None
    offset: int | None = None


@dataclass(slots=True, eq=False)
class Lease:
    """A consumer's record of one delivery. Times are in seconds of the event loop's clock."""

    consumer: DeliveryOwner
    #: When to extend the lease.
    extend_at_s: float
    #: None until the delivery is ready to be processed.
    ordering_key: OrderingKey | None = None
    #: When the delivery was passed to the caller or handler; None until then.
    taken_at_s: float | None = None
    #: The pending result; None until the delivery is settled.
    settling: Settling | None = None
    #: Whether a handler processes the delivery. If so, the next delivery of the ordering key waits
    #: until the handler returns, even if the handler settles the message earlier.
    is_handled: bool = False
    #: Whether the broker has reported that this member no longer holds the message.
    is_lost: bool = False


class Delivery(ReceivedMessage, frozen=True, gc=True, eq=False):
    """A message that a consumer received, with the methods to settle it.

    Only the first call of ack, nack, release or reject counts. Any thread may make the call; the
    consumer sends it soon after. Until the call, the consumer extends the lease automatically.
    In a block `with delivery:`, the end of the block acknowledges the message and an exception
    nacks it (cancellation or an interrupt releases it), unless the block has settled it.
    """

    _lease: Lease

    @property
    def is_settled(self) -> bool:
        """Whether ack, nack, release or reject was called."""
        return self._lease.settling is not None

    @property
    def is_lost(self) -> bool:
        """Whether the broker has reported that the lease ended before the message was settled.
        Another member may have the message now, and settling it returns "stale"."""
        return self._lease.is_lost

    def ack(self) -> Settling:
        """Record that the message was processed."""
        return self._lease.consumer.settle(self, "ack")

    def nack(self, delay_ms: int | None = None) -> Settling:
        """Report that processing failed. The message is delivered again after `delay_ms` (default:
        the group's back-off); after too many failures it becomes a dead letter."""
        return self._lease.consumer.settle(self, "nack", delay_ms)

    def release(self) -> Settling:
        """Give the message back: it is available again immediately; no failure is counted."""
        return self._lease.consumer.settle(self, "release")

    def reject(self) -> Settling:
        """Report that no member can process the message: it becomes a dead letter now."""
        return self._lease.consumer.settle(self, "reject")

    def extend(self, lease_ms: int | None = None) -> Settling:
        """Extend the lease: it ends `lease_ms` from now (default: the group's setting).

        The consumer extends leases automatically while its process runs. Call this only if
        processing may block the whole process.
        """
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
        else:  # cancellation or an interrupt is no failure of the message
            self.release()
