"""A member of a group on an event loop: its leases and its pending acknowledgements.

A member does three things concurrently: it receives enough messages to keep the worker busy, it
extends the leases of unsettled messages when half of their time has passed, and it collects and
sends acknowledgements. Requests are retried while the broker is unreachable. consumer.py passes the
deliveries in `ready` to the worker.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from holdfast.client.consume import prefetch
from holdfast.client.consume.ack_batcher import AckBatcher, AckKind, PendingAck
from holdfast.client.consume.delivery import (
    DeliveredMessage,
    Delivery,
    Lease,
    OrderingKey,
    Settling,
)
from holdfast.client.consume.dispatcher import Dispatcher
from holdfast.client.consume.group_requests import GroupRequests, ReceiveReply
from holdfast.client.consume.join import ConsumeOptions, GroupFacts, join
from holdfast.client.consume.leases import LeaseRenewer, RedeliveredKeys
from holdfast.client.consume.prefetch import FEW, Credit, ProcessingTimes
from holdfast.client.errors import ApiError, ClientClosed, HoldfastError
from holdfast.client.read.sources import EMPTY_PULL_S
from holdfast.client.read.wait_limit import WaitLimit
from holdfast.client.transport.requests import Transport, drop_none
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.values import Status, Verb

_log = logging.getLogger("holdfast.client")

#: A leaving member retries its last requests for at most this long.
LEAVING_S = 10.0
#: Acknowledgements that a receive carries are sent again if its reply takes longer than this, or
#: than a quarter of the lease.
CONFIRM_S = 10.0
#: One receive limits at most this many slow keys and queues; every broker accepts this number.
MAX_LIMITS = 256


class Membership:
    """One member of a group. Belongs to one event loop, but any thread may settle and extend."""

    #: What a subclass may replace by subclasses: see observed.py.
    lease_type: type[Lease] = Lease
    delivery_type: type[Delivery] = Delivery
    settling_type: type[Settling] = Settling

    def __init__(self, transport: Transport, options: ConsumeOptions) -> None:
        self.options = options
        self.ready: Dispatcher[Delivery] = Dispatcher(options.concurrency)
        #: The error that ended the membership.
        self.failure: Exception | None = None
        #: Whether the broker has no more messages and this member holds none. Always False with
        #: `follow`.
        self.is_at_end = False
        self.available = 0
        self.is_active = True
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiving: asyncio.Task[None] | None = None
        self._renewing: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._credit = Credit(options.concurrency, options.max_in_flight)
        #: The size of the bodies of the messages that wait for the worker.
        self._buffered_bytes = 0
        #: The processing times of each ordering key (key or queue). None if `concurrency` is 1,
        #: because such a member cannot process other ordering keys while one ordering key is slow.
        self._times: ProcessingTimes[OrderingKey] | None = (
            ProcessingTimes() if options.concurrency > 1 else None
        )
        #: The slow ordering keys for which the receive in flight requests no messages. The values
        #: are the numbers of messages of these ordering keys that may wait in this member.
        self._excluded: Mapping[OrderingKey, int] = {}
        #: Completed when one of the excluded ordering keys has no waiting message left.
        self._limits_outdated: asyncio.Future[None] | None = None
        self._leases = LeaseRenewer(self._extend, self._on_lease_lost)
        self._redelivered = RedeliveredKeys()
        #: The number of settled or extended messages for which the broker has not replied yet.
        self._unconfirmed = 0
        self._acks = AckBatcher(
            send=self._send,
            batch=max(1, min(options.ack_batch, options.max_in_flight // 2)),
            interval_s=options.ack_interval_ms / 1000,
            on_confirmed=self._on_confirmed,
            on_failed=self._fail,
            on_due=self._announce_due,
        )
        #: Whether receives may carry acknowledgements. Older brokers refuse such receives.
        self._may_carry = True
        #: Whether the next receive waits until there is room for its messages.
        self._waits_for_room = False
        #: Whether a receive is in flight.
        self._is_in_flight = False
        self._wait_limit = WaitLimit()
        self._facts = GroupFacts()
        self._leave_by_s: float | None = None
        #: With `follow`, requests are retried for ever, otherwise as the client's policy allows.
        policy = RetryPolicy(None, left_s=self._leaving_time_left_s) if options.follow else None
        self._group = GroupRequests(transport, options.group, policy)

    # -- deliveries for the worker -----------------------------------------------------------

    def take(self) -> Delivery | None:
        """Return the next delivery that may be processed now; None if there is none."""
        delivery = self.ready.take()
        if delivery is not None:
            self._buffered_bytes -= len(delivery.body)
            delivery._lease.taken_at_s = self.loop.time()
            if self._times is not None:
                ordering_key = delivery._lease.ordering_key
                assert ordering_key is not None
                self._times.start(ordering_key, delivery._lease.taken_at_s)
                if self._excluded and self._excluded.get(ordering_key):
                    self._check_limits(ordering_key)
            self.notify_change()  # there may be room to receive more
        elif not len(self.ready):
            self._acks.flush_soon()  # the worker is idle, so no acknowledgements will follow soon
        return delivery

    def finish_handling(self, delivery: Delivery) -> None:
        """Record that the handler of a delivery has returned, which frees its ordering key."""
        self._finish_delivery(delivery)
        self.notify_change()

    def _finish_delivery(self, delivery: Delivery) -> None:
        if self.ready.finish(delivery) and self._times is not None:
            ordering_key = delivery._lease.ordering_key
            assert ordering_key is not None
            self._times.finish(ordering_key, self.loop.time())
            if self._excluded and ordering_key in self._excluded:
                self._check_limits(ordering_key)

    def _check_limits(self, ordering_key: OrderingKey) -> None:
        if (
            self._limits_outdated is not None
            and not self._limits_outdated.done()
            and not self.ready.count_waiting(ordering_key)
        ):
            self._limits_outdated.set_result(None)

    # -- beginning and ending ----------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        assert self._loop is not None, "start() was called"
        return self._loop

    @property
    def has_started(self) -> bool:
        return self._receiving is not None

    def start(self) -> None:
        """Start receiving on the running loop. Call once."""
        self._loop = asyncio.get_running_loop()
        self._receiving = asyncio.create_task(self._run_guarded(self._join_and_receive))

    def stop_receiving(self) -> None:
        """Stop receiving. May be repeated."""
        if self._receiving is not None:
            self._receiving.cancel()

    async def leave(self) -> None:
        """Release unsettled messages, send pending acknowledgements, and leave the group.

        Retries for LEAVING_S at most. If acknowledgements cannot be sent, raises the error of
        their request, unless the member had failed before.
        """
        if self._receiving is None:
            return
        self._leave_by_s = self.loop.time() + LEAVING_S
        self.stop_receiving()
        await asyncio.wait([self._receiving])
        failed_before = self.failure is not None
        held = (*self.ready.in_progress, *self.ready.drain())
        self._release(sorted(held, key=lambda delivery: delivery.offset))
        await self._acks.flush()
        if self._renewing is not None:
            self._renewing.cancel()
            await asyncio.wait([self._renewing])
        with suppress(HoldfastError):
            # Leaving also releases messages whose receive reply was lost.
            await self._group.leave(self.options.member)
        if self.failure is not None and not failed_before:
            raise self.failure

    async def flush(self) -> None:
        """Wait until all acknowledgements are durable. Raises the error of a failed member."""
        await self._acks.flush()
        if self.failure is not None:
            raise self.failure

    async def wait_for_change(self, within_s: float | None = None) -> None:
        """Wait until notify_change() is called, for `within_s` at most. Afterwards a delivery may
        be available, or the member may have failed."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        if within_s is None:
            await waiter
            return
        timer = self.loop.call_later(within_s, self.notify_change)
        try:
            await waiter
        finally:
            timer.cancel()

    def notify_change(self) -> None:
        """Wake the tasks that wait in wait_for_change()."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _run_guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self.notify_change()

    def _leaving_time_left_s(self) -> float | None:
        return None if self._leave_by_s is None else self._leave_by_s - self.loop.time()

    # -- receiving ---------------------------------------------------------------------------

    async def _join_and_receive(self) -> None:
        self._facts = await join(self._group, self.options)
        self._leases.lease_s = (self.options.lease_ms or self._facts.lease_ms) / 1000
        self._acks.confirm_within_s = min(CONFIRM_S, self._leases.lease_s / 4)
        self._renewing = asyncio.create_task(self._run_guarded(self._leases.run))
        try:
            await self._receive()
        finally:
            self._waits_for_room = False
            self._acks.send_soon()  # no receive carries them any more

    async def _receive(self) -> None:
        fields = self._receive_fields()
        waits_for_delayed = has_no_delayed = False
        attempt_id: str | None = None
        excluded: Mapping[OrderingKey, int] = {}
        while True:
            asked_at_s = self.loop.time()
            slow = {} if self._times is None else self._times.find_slow(asked_at_s)
            # Release waiting messages of slow ordering keys if necessary. If the last receive must
            # be repeated, its reply may contain later messages of all ordering keys that it did not
            # exclude. In this case release only messages of the ordering keys that it excluded.
            if slow:
                may_return = slow.keys() if attempt_id is None else slow.keys() & excluded.keys()
                if await self._return_messages({each: slow[each] for each in may_return}, slow):
                    continue  # handlers may have returned during the wait, so `slow` is outdated
            credit = self._request_size(self._buffered(slow))
            if not credit:
                times = self._times
                self._waits_for_room = True
                await self.wait_for_change(times.time_until_change_s(asked_at_s) if times else None)
                self._waits_for_room = False
                continue
            self._redelivered.forget_answered()
            attempt_id = attempt_id or secrets.token_hex(8)
            limits, excluded = self._limits(slow)
            waits = self.options.follow or waits_for_delayed
            reply = await self._receive_and_settle(
                {**fields, **limits, "max_messages": credit, "attempt_id": attempt_id},
                self.options.wait_ms if waits else 0,
                excluded,
                asked_at_s,
            )
            if reply is None:
                continue  # the next receive has the same attempt id: no reply is lost
            attempt_id, waits_for_delayed = None, False
            self._credit.record_reply(credit, len(reply.messages), self._buffered(slow))
            if await self._process_reply(reply):
                has_no_delayed = False
                continue
            if waits:
                await asyncio.sleep(max(0.0, asked_at_s + EMPTY_PULL_S - self.loop.time()))
            elif self._held or len(self.ready):
                await self.wait_for_change()
            elif self.options.wait_for_delayed and not has_no_delayed:
                # If no message is delayed now, the last delay may have ended since this receive:
                # receive once more before the end.
                has_no_delayed = not await self._has_delayed()
                waits_for_delayed = not has_no_delayed
            elif not excluded:
                self.is_at_end = True
                self.notify_change()
                return

    def _request_size(self, buffered: int) -> int:
        """Return how many messages to request now; 0 if the buffer is still full enough or there is
        no room. The acknowledgements that the request carries make room. If there is no request
        that may carry due acknowledgements, begin to send them."""
        credit = 0
        if not self._buffered_bytes or (
            self._buffered_bytes + self.options.max_bytes <= prefetch.MAX_BUFFERED_BYTES
        ):
            credit = self._credit.request_size(buffered, self._held)
            if self._may_carry and (credit or self._acks.is_due):
                credit = self._credit.request_size(buffered, self._held - self._acks.carriable)
        if not credit and self._acks.is_due:
            self._acks.send_soon()
        return credit

    def _announce_due(self, is_late: bool) -> bool:
        """Return whether a receive that carries the due acknowledgements will be sent soon: now, or
        unless `is_late`, after the receive in flight, for which the broker has messages."""
        if not self._may_carry:
            return False
        if self._waits_for_room:
            self.notify_change()
            return True
        return not is_late and self._is_in_flight and self.available > 0

    async def _receive_and_settle(
        self,
        fields: Mapping[str, Any],
        wait_ms: int,
        excluded: Mapping[OrderingKey, int],
        now_s: float,
    ) -> ReceiveReply | None:
        """Receive once, and carry the pending acknowledgements. Return the reply.

        Return None if the receive must be repeated: it was cancelled (see _receive_within_limits),
        or the broker refuses receives that carry acknowledgements. They are pending again then.
        """
        carried = self._acks.take_acks() if self._may_carry else {}
        if carried:
            settle = [{"verb": kind.verb, **_terms(kind, acks)} for kind, acks in carried.items()]
            fields = {**fields, "settle": settle}
        self._is_in_flight = True
        try:
            reply = await self._receive_within_limits(fields, wait_ms, excluded, now_s)
            if reply is not None and carried:
                self._acks.confirm_carried(carried, [each.statuses for each in reply.outcomes])
            return reply
        except ApiError as error:
            if not carried or error.members.get("parameter") != "settle":
                raise
            self._may_carry = False
            return None
        finally:
            self._is_in_flight = False
            self._acks.put_back()

    async def _process_reply(self, reply: ReceiveReply) -> bool:
        """Accept the messages of a reply. Return True if the reply has messages, or if this member
        has become the active member."""
        became_active = reply.active and not self.is_active
        self.is_active = reply.active
        self.available = reply.available
        uncertain = self._accept(reply.messages)
        self.notify_change()
        if uncertain:
            await self._resolve_uncertain(uncertain)
        return bool(reply.messages) or became_active

    async def _receive_within_limits(
        self,
        fields: Mapping[str, Any],
        wait_ms: int,
        excluded: Mapping[OrderingKey, int],
        now_s: float,
    ) -> ReceiveReply | None:
        """Receive once and return the reply. If the broker allows only a shorter wait, use that.

        Cancel the request and return None as soon as the limits are outdated: when an excluded
        ordering key has no waiting message left, or when an excluded ordering key becomes stuck
        (see prefetch.py) while it has waiting messages that can be released.
        """
        receive = self._wait_limit.send(partial(self._group.receive, fields), wait_ms)
        if not excluded:
            return await receive
        self._excluded = excluded
        self._limits_outdated = self.loop.create_future()
        receiving = asyncio.create_task(receive)
        assert self._times is not None
        returnable = () if self.options.settled else filter(self.ready.count_waiting, excluded)
        stuck_in_s = self._times.time_until_stuck_s(returnable, now_s)
        try:
            await asyncio.wait(
                (receiving, self._limits_outdated),
                timeout=stuck_in_s,
                return_when=asyncio.FIRST_COMPLETED,
            )
        finally:
            self._excluded, self._limits_outdated = {}, None
            receiving.cancel()
            await asyncio.wait((receiving,))
        return None if receiving.cancelled() else receiving.result()

    @property
    def _held(self) -> int:
        return len(self._leases) + self._unconfirmed

    def _buffered(self, slow: Mapping[OrderingKey, int]) -> int:
        """Return the number of waiting messages, without messages of slow ordering keys."""
        return len(self.ready) - (sum(map(self.ready.count_waiting, slow)) if slow else 0)

    async def _return_messages(
        self, ordering_keys: Mapping[OrderingKey, int], slow: Mapping[OrderingKey, int]
    ) -> bool:
        """Release waiting messages of slow ordering keys, and wait for the broker's reply. Return
        whether any message was released. `ordering_keys` maps each ordering key to the number of
        its messages that may still wait.

        Only messages of stuck ordering keys are released, or of all slow ordering keys if there is
        too little room for messages of other ordering keys. The caller ensures that no other
        message of `ordering_keys` is in flight, so the broker redelivers the messages in order.
        """
        if self.options.settled:
            return False
        lacks_room = self._credit.lacks_room(self._buffered(slow), self._held)
        returned: list[Settling] = []
        for ordering_key, max_waiting in ordering_keys.items():
            if (lacks_room or max_waiting < FEW) and self._has_limit(ordering_key):
                removed = self.ready.truncate(ordering_key, max_waiting)
                self._buffered_bytes -= sum(len(each.body) for each in removed)
                returned += self._release(removed)
        for settling in returned:
            await settling
        return bool(returned)

    def _release(self, deliveries: Sequence[Delivery]) -> list[Settling]:
        """Release the deliveries that are neither settled nor lost. Begin with the last one,
        because in a keyed group the release of a message also revokes the later messages of its
        key."""
        return [
            delivery.release()
            for delivery in reversed(deliveries)
            if not delivery.is_settled and not delivery.is_lost
        ]

    def _limits(
        self, slow: Mapping[OrderingKey, int]
    ) -> tuple[dict[str, Any], dict[OrderingKey, int]]:
        """Return the fields that limit how many messages of slow ordering keys a receive returns,
        and the ordering keys of which it returns no message (see `_excluded`)."""
        limits: list[dict[str, Any]] = []
        excluded: dict[OrderingKey, int] = {}
        for ordering_key, max_waiting in slow.items():
            if self._has_limit(ordering_key) and len(limits) < MAX_LIMITS:
                room = max(0, max_waiting - self.ready.count_waiting(ordering_key))
                limit = drop_none(queue=ordering_key.queue, key=ordering_key.key)
                limits.append({"topic": ordering_key.topic, **limit, "max_messages": room})
                if not room:
                    excluded[ordering_key] = max_waiting
        return {"limits": limits} if limits else {}, excluded

    def _has_limit(self, ordering_key: OrderingKey) -> bool:
        """Return whether the broker can limit the messages of an ordering key. The broker cannot
        limit a single message, nor a key in a group that is not keyed."""
        return ordering_key.offset is None and (ordering_key.key is None or self._facts.is_keyed)

    async def _has_delayed(self) -> bool:
        """Return whether messages of the topics wait for their retry delay."""
        described = await self._group.describe()
        return any(
            queue["delayed"]
            for topic in described["topics"]
            if topic["topic"] in self.options.topics
            for queue in topic["queues"]
        )

    def _receive_fields(self) -> dict[str, Any]:
        return drop_none(
            member=self.options.member,
            max_bytes=self.options.max_bytes,
            topics=list(self.options.topics),
            lease_ms=self.options.lease_ms,
            filter=self.options.filter,
            no_local=self.options.no_local,
            settled=self.options.settled or None,
        )

    def _accept(self, messages: Sequence[DeliveredMessage]) -> list[Delivery]:
        """Accept received messages; return the deliveries that the broker may have revoked."""
        extend_at_s = self.loop.time() + self._leases.lease_s / 2
        uncertain: list[Delivery] = []
        flags = self._redelivered.find_uncertain(messages)
        for each, is_uncertain in zip(messages, flags, strict=True):
            lease = self.lease_type(self, extend_at_s)
            delivery = self.delivery_type(
                each.body, each, 0, each.receipt, each.attempt, each.redelivered, lease
            )
            if each.receipt is not None:
                self._leases.add(delivery)
            if is_uncertain:
                uncertain.append(delivery)
            else:
                self._make_ready(delivery)
        return uncertain

    async def _resolve_uncertain(self, uncertain: Sequence[Delivery]) -> None:
        """Make the uncertain deliveries with valid leases ready; forget all without a valid lease.

        Wait until the broker has handled the nacks and releases that may have revoked leases. Then
        a request to extend the leases shows which of them are valid.
        """
        for delivery in uncertain:
            await self._redelivered.wait_confirmed(delivery)
        statuses = await self._extend([delivery.receipt or "" for delivery in uncertain])
        for delivery, status in zip(uncertain, statuses, strict=True):
            if status != "done":
                self._leases.remove(delivery)
            elif self._leases.has(delivery):
                self._make_ready(delivery)
        self.notify_change()

    def _make_ready(self, delivery: Delivery) -> None:
        delivery._lease.ordering_key = ordering_key = self._ordering_key(delivery)
        self.ready.add(delivery, ordering_key)
        self._buffered_bytes += len(delivery.body)

    def _ordering_key(self, delivery: Delivery) -> OrderingKey:
        """Return the ordering key of a delivery: its key, its queue, or only the message itself."""
        by = self.options.serial_by or ("key" if self._facts.is_keyed else "queue")
        if by == "queue":
            return OrderingKey(delivery.topic, delivery.queue)
        if by == "key" and delivery.key is not None:
            return OrderingKey(delivery.topic, key=delivery.key)
        return OrderingKey(delivery.topic, delivery.queue, offset=delivery.offset)

    # -- leases and settling -----------------------------------------------------------------

    async def _extend(self, receipts: Sequence[str]) -> list[Status]:
        return await self._group.settle("extend", receipts, lease_ms=self.options.lease_ms)

    def _on_lease_lost(self, delivery: Delivery) -> None:
        delivery._lease.is_lost = True
        if self.ready.drop(delivery, self._ordering_key(delivery)):
            self._buffered_bytes -= len(delivery.body)
        if delivery._lease.taken_at_s is not None:
            _log.warning(
                "the lease of %s %d:%d has ended while it was processed; it will be redelivered",
                delivery.topic,
                delivery.queue,
                delivery.offset,
            )
        self.notify_change()

    def settle(self, delivery: Delivery, verb: Verb, delay_ms: int | None = None) -> Settling:
        """Record how a delivery is settled; only the first call counts. Any thread may call."""
        lease = delivery._lease
        if lease.settling is None:
            status: Status | None = "done" if delivery.receipt is None else None
            lease.settling = self.settling_type(self, status)
            self._on_loop(self._enqueue_ack, delivery, verb, delay_ms)
        return lease.settling

    def extend(self, delivery: Delivery, lease_ms: int | None) -> Settling:
        """Request a longer lease for a delivery. Any thread may call."""
        settling = Settling(self, "done" if delivery.receipt is None else None)
        if delivery.receipt is not None:
            self._on_loop(self._enqueue_extend, delivery, lease_ms, settling)
        return settling

    def confirm_soon(self) -> None:
        """Begin to send the acknowledgements that the broker has not confirmed."""
        self._acks.confirm_soon()

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        if asyncio._get_running_loop() is self._loop:
            call(*arguments)
            return
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError as error:
            raise ClientClosed from error

    def _enqueue_ack(self, delivery: Delivery, verb: Verb, delay_ms: int | None) -> None:
        lease = delivery._lease
        if not lease.is_handled:
            self._finish_delivery(delivery)
        if delivery.receipt is not None and lease.settling is not None:
            self._leases.remove(delivery)
            self._unconfirmed += 1
            used_ms, topic = 0.0, ""
            if lease.taken_at_s is not None and verb != "release":
                used_ms = (self.loop.time() - lease.taken_at_s) * 1000
                topic = delivery.topic if self._facts.shares_time else ""
            ack = PendingAck(delivery.receipt, lease.settling, used_ms)
            self._acks.add(AckKind(verb, delay_ms, topic=topic), ack)
            if self._facts.is_keyed and verb in ("nack", "release"):
                # The broker also revokes the later messages of the key.
                for follower in self._leases.find_following(delivery):
                    self._leases.remove(follower)
                    self._on_lease_lost(follower)
                # A reply that is in flight now may also contain revoked messages.
                self._redelivered.record(delivery, lease.settling)
        self.notify_change()

    def _enqueue_extend(self, delivery: Delivery, lease_ms: int | None, settling: Settling) -> None:
        assert delivery.receipt is not None
        if lease_ms is not None:
            self._leases.record_extension(delivery, self.loop.time(), lease_ms / 1000)
        self._unconfirmed += 1
        self._acks.add(
            AckKind("extend", lease_ms=lease_ms), PendingAck(delivery.receipt, settling, 0.0)
        )

    async def _send(self, kind: AckKind, acks: Sequence[PendingAck]) -> list[Status]:
        return await self._group.settle(kind.verb, **_terms(kind, acks))

    def _on_confirmed(self, count: int) -> None:
        self._unconfirmed -= count
        self.notify_change()


def _terms(kind: AckKind, acks: Sequence[PendingAck]) -> dict[str, Any]:
    """Return the fields of a request that settles or extends these deliveries."""
    return drop_none(
        receipts=[each.receipt for each in acks],
        delay_ms=kind.delay_ms,
        lease_ms=kind.lease_ms,
        used_ms=sum(each.used_ms for each in acks) / len(acks) if kind.topic else None,
    )
