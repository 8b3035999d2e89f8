"""The consumer of a client that has an instrumentation: it reports what it receives, processes and
settles. Otherwise it behaves as its base class does."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass
from types import TracebackType
from typing import Self

from holdfast.client.consume.consumer import AsyncConsumer
from holdfast.client.consume.delivery import Delivery, Lease, Settling
from holdfast.client.consume.join import ConsumeOptions
from holdfast.client.consume.membership import Membership
from holdfast.client.instrumentation import Observer
from holdfast.client.transport.requests import Transport
from holdfast.client.values import Status, Verb


class ObservedConsumer(AsyncConsumer):
    """A consumer that reports to `observer`."""

    def __init__(
        self,
        transport: Transport,
        options: ConsumeOptions,
        open_consumers: set[AsyncConsumer],
        observer: Observer,
    ) -> None:
        member = _ObservedMembership(transport, options, observer)
        super().__init__(transport, options, open_consumers, member)
        self._observer = observer

    async def next(self) -> Delivery | None:
        options = self._member.options
        receiving = self._observer.receive(options.topics, group=options.group, is_single=True)
        with receiving as record_messages:
            delivery = await super().next()
            if delivery is not None:
                record_messages((delivery,))
        return delivery


class _ObservedSettling(Settling):
    """The pending result of settling a delivery. `end` is called with the result."""

    __slots__ = ("end",)

    end: Callable[[Status | BaseException], None] | None

    def settled(self, status: Status) -> None:
        super().settled(status)
        self._report(status)

    def failed(self, error: Exception) -> None:
        super().failed(error)
        self._report(error)

    def _report(self, result: Status | BaseException) -> None:
        end = getattr(self, "end", None)
        if end is not None:
            end(result)


@dataclass(slots=True, eq=False)
class _ObservedLease(Lease):
    """`depth` is the number of `with` blocks of the delivery that are entered. The outermost of
    them is the processing of the delivery, `processing`."""

    depth: int = 0
    processing: AbstractContextManager[None] | None = None


class _ObservedDelivery(Delivery, frozen=True, gc=True, eq=False):
    """A delivery whose `with` block is reported as the processing of the message."""

    def __enter__(self) -> Self:
        lease, member = self._observed
        if lease.depth == 0:
            lease.processing = member.observer.process(self, member.options.group)
            lease.processing.__enter__()
        lease.depth += 1
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        lease, _ = self._observed
        try:
            super().__exit__(kind, error, trace)
        finally:
            lease.depth -= 1
            processing = lease.processing
            if lease.depth == 0 and processing is not None:
                lease.processing = None
                processing.__exit__(kind, error, trace)

    @property
    def _observed(self) -> "tuple[_ObservedLease, _ObservedMembership]":
        lease = self._lease
        assert isinstance(lease, _ObservedLease)
        assert isinstance(lease.consumer, _ObservedMembership)
        return lease, lease.consumer


class _ObservedMembership(Membership):
    """A membership whose deliveries and acknowledgements are reported to `observer`."""

    lease_type = _ObservedLease
    delivery_type = _ObservedDelivery
    settling_type = _ObservedSettling

    def __init__(self, transport: Transport, options: ConsumeOptions, observer: Observer) -> None:
        super().__init__(transport, options)
        self.observer = observer

    def _enqueue_ack(self, delivery: Delivery, verb: Verb, delay_ms: int | None) -> None:
        # Runs on the loop, so no result can arrive before `end` is set, and in the context of the
        # caller of `settle`.
        settling = delivery._lease.settling
        if delivery.receipt is not None and isinstance(settling, _ObservedSettling):
            settling.end = self.observer.begin_settling(verb, self.options.group, delivery)
        super()._enqueue_ack(delivery, verb, delay_ms)
