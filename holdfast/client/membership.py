"""A member of a group on an event loop: what it holds, and what it says of it.

Three things go on beside each other: messages are received, as many as keep the worker busy;
leases of what is not settled are extended, at half their time; what is said of messages is
gathered and sent. A broker that is away is waited for. consumer.py hands out what is `ready`.
"""

import asyncio
import logging
import secrets
from collections.abc import Awaitable, Callable, Hashable, Sequence
from contextlib import suppress
from typing import Any

from holdfast.client import group_requests
from holdfast.client.came_back import CameBack
from holdfast.client.consume_options import ConsumeOptions
from holdfast.client.credit import Credit
from holdfast.client.delivery import Delivered, Delivery, Lease, Settling, Status, Verb
from holdfast.client.dispatch import Dispatcher
from holdfast.client.errors import ClientClosed, HoldfastError
from holdfast.client.joining import GroupFacts, join
from holdfast.client.lease_keeper import LeaseKeeper
from holdfast.client.requests import Requests
from holdfast.client.retry import UntilToldRetryPolicy
from holdfast.client.settler import Said, Settler, Terms
from holdfast.client.sources import EMPTY_PULL_S

_log = logging.getLogger("holdfast.client")

#: While a member leaves, what it still has to say is tried for so long.
LEAVING_S = 10.0


class Membership:
    """One member's part in its group. Belongs to one event loop, but for `settle` and `extend`."""

    def __init__(self, transport: Requests, options: ConsumeOptions) -> None:
        self.options = options
        self.ready: Dispatcher[Delivery] = Dispatcher(options.concurrency)
        #: Why it has ended.
        self.failure: Exception | None = None
        #: Nothing was left at the broker, and nothing is held (only without `follow`).
        self.is_at_end = False
        self.available = 0
        self.is_active = True
        self._transport = transport
        self._loop: asyncio.AbstractEventLoop | None = None
        self._receiver: asyncio.Task[None] | None = None
        self._keeper: asyncio.Task[None] | None = None
        self._waiters: list[asyncio.Future[None]] = []
        self._credit = Credit(options.concurrency, options.max_in_flight)
        self._leases = LeaseKeeper(self._extend, self._lost)
        self._came_back = CameBack()
        #: How many were settled without an answer yet.
        self._unconfirmed = 0
        self._settler = Settler(
            self._send,
            batch=max(1, min(options.ack_batch, options.max_in_flight // 2)),
            interval_s=options.ack_interval_ms / 1000,
            confirmed=self._confirmed,
            failed=self._fail,
        )
        self._facts = GroupFacts()
        self._leave_by_s: float | None = None
        #: Who follows waits for a broker that is away; else the client's own policy holds.
        self._policy = UntilToldRetryPolicy(None, left_s=self._left_s) if options.follow else None

    # -- handing out -------------------------------------------------------------------------

    def take(self) -> Delivery | None:
        """Return the next delivery that may be worked on; None: there is none just now."""
        delivery = self.ready.take()
        if delivery is not None:
            delivery._lease.taken_at_s = self.loop.time()
            self.note_change()  # there may be room for more
        elif not len(self.ready):
            self._settler.flush_soon()  # who has nothing to do needs not wait for more to say
        return delivery

    def handled(self, delivery: Delivery) -> None:
        """A handler has returned: what comes after this delivery may be worked on."""
        self.ready.done(delivery)
        self.note_change()

    # -- beginning and ending ----------------------------------------------------------------

    @property
    def loop(self) -> asyncio.AbstractEventLoop:
        """The loop on which it lives."""
        assert self._loop is not None, "it has begun"
        return self._loop

    @property
    def has_begun(self) -> bool:
        """Whether it was started."""
        return self._receiver is not None

    def start(self) -> None:
        """Begin to receive, on the running loop. Once."""
        self._loop = asyncio.get_running_loop()
        self._receiver = asyncio.create_task(self._guarded(self._receive))

    def stop_receiving(self) -> None:
        """Ask for no more. May be repeated."""
        if self._receiver is not None:
            self._receiver.cancel()

    async def leave(self) -> None:
        """Give back what is not settled, say all that was said, and leave the group; all of that
        is tried for a while only.

        Raises what kept it from being said, if nothing failed before.
        """
        if self._receiver is None:
            return
        self._leave_by_s = self.loop.time() + LEAVING_S
        self.stop_receiving()
        await asyncio.wait([self._receiver])
        failed_before = self.failure is not None
        for delivery in (*self.ready.drain(), *self.ready.in_hand):
            if not delivery.is_settled:
                delivery.release()
        await self._settler.flush()
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.wait([self._keeper])
        with suppress(HoldfastError):
            # What was received and not seen here is given back by this.
            await group_requests.leave(
                self._transport, self.options.group, self.options.member, self._policy
            )
        if self.failure is not None and not failed_before:
            raise self.failure

    async def flush(self) -> None:
        """Return once all that was said is durable. Raises what kept it from that."""
        await self._settler.flush()
        if self.failure is not None:
            raise self.failure

    async def change(self) -> None:
        """Wait until something has changed: there is more to take, or an end."""
        waiter = self.loop.create_future()
        self._waiters.append(waiter)
        await waiter

    def note_change(self) -> None:
        """Wake those who wait for a change."""
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            if not waiter.done():
                waiter.set_result(None)

    async def _guarded(self, work: Callable[[], Awaitable[None]]) -> None:
        try:
            await work()
        except Exception as error:
            self._fail(error)

    def _fail(self, error: Exception) -> None:
        if self.failure is None:
            self.failure = error
        self.note_change()

    def _left_s(self) -> float | None:
        return None if self._leave_by_s is None else self._leave_by_s - self.loop.time()

    # -- receiving ---------------------------------------------------------------------------

    async def _receive(self) -> None:
        self._facts = await join(self._transport, self.options, self._policy)
        self._leases.lease_s = (self.options.lease_ms or self._facts.lease_ms) / 1000
        self._keeper = asyncio.create_task(self._guarded(self._leases.keep))
        ask = self._ask()
        wait_ms = self.options.wait_ms if self.options.follow else 0
        while True:
            credit = self._credit.ask(len(self.ready), len(self._leases) + self._unconfirmed)
            if not credit:
                await self.change()
                continue
            self._came_back.forget_answered()
            asked_at_s = self.loop.time()
            reply = await group_requests.receive(
                self._transport,
                self.options.group,
                {**ask, "max_messages": credit, "attempt_id": secrets.token_hex(8)},
                wait_ms=wait_ms,
                retry=self._policy,
            )
            self._credit.replied(credit, len(reply.messages), len(self.ready))
            was_active, self.is_active = self.is_active, reply.active
            self.available = reply.available
            doubtful = self._take_in(reply.messages)
            self.note_change()
            if doubtful:
                await self._clear_doubts(doubtful)
            if reply.messages or (reply.active and not was_active):
                continue
            if self.options.follow:
                await asyncio.sleep(max(0.0, asked_at_s + EMPTY_PULL_S - self.loop.time()))
            elif len(self._leases) or self._unconfirmed or len(self.ready):
                await self.change()
            else:
                self.is_at_end = True
                self.note_change()
                return

    def _ask(self) -> dict[str, Any]:
        options = self.options
        ask: dict[str, Any] = {
            "member": options.member,
            "max_bytes": options.max_bytes,
            "topics": list(options.topics),
        }
        if options.lease_ms is not None:
            ask["lease_ms"] = options.lease_ms
        if options.filter is not None:
            ask["filter"] = options.filter
        if options.settled:
            ask["settled"] = True
        return ask

    def _take_in(self, messages: Sequence[Delivered]) -> list[Delivery]:
        """Take what was received; return what the broker may have taken back again by now."""
        extend_at_s = self.loop.time() + self._leases.lease_s / 2
        doubtful: list[Delivery] = []
        for each, is_doubtful in zip(messages, self._came_back.doubts(messages), strict=True):
            delivery = Delivery(
                each.body,
                each,
                0,
                each.receipt,
                each.attempt,
                each.redelivered,
                Lease(self, extend_at_s),
            )
            if each.receipt is not None:
                self._leases.hold(delivery)
            if is_doubtful:
                doubtful.append(delivery)
            else:
                self.ready.add(delivery, self._unit(delivery))
        return doubtful

    async def _clear_doubts(self, doubtful: Sequence[Delivery]) -> None:
        """Hand out what is still ours: whose lease can be extended now that the broker knows what
        came back."""
        for delivery in doubtful:
            await self._came_back.until_known(delivery)
        statuses = await self._extend([delivery.receipt or "" for delivery in doubtful])
        for delivery, status in zip(doubtful, statuses, strict=True):
            if status != "done":
                self._leases.let_go(delivery)
            elif self._leases.holds(delivery):
                self.ready.add(delivery, self._unit(delivery))
        self.note_change()

    def _unit(self, delivery: Delivery) -> Hashable:
        """Return what a delivery has to stay in order with."""
        by = self.options.serial_by or ("key" if self._facts.is_keyed else "queue")
        if by == "queue":
            return delivery.topic, delivery.queue
        if by == "key" and delivery.key is not None:
            return delivery.topic, delivery.key
        return delivery.topic, delivery.queue, delivery.offset

    # -- leases ------------------------------------------------------------------------------

    async def _extend(self, receipts: Sequence[str]) -> list[Status]:
        return await self._settle("extend", receipts, lease_ms=self.options.lease_ms)

    def _lost(self, delivery: Delivery) -> None:
        delivery._lease.is_lost = True
        self.ready.drop(delivery, self._unit(delivery))
        if delivery._lease.taken_at_s is not None:
            _log.warning(
                "the lease of %s %d:%d has ended while it was worked on; it comes again",
                delivery.topic,
                delivery.queue,
                delivery.offset,
            )
        self.note_change()

    # -- settling ----------------------------------------------------------------------------

    def settle(self, delivery: Delivery, verb: Verb, delay_ms: int | None = None) -> Settling:
        """Note what is said of a delivery; what was said first counts. From any thread."""
        lease = delivery._lease
        if lease.settling is None:
            lease.settling = Settling(self, "done" if delivery.receipt is None else None)
            self._on_loop(self._said, delivery, verb, delay_ms)
        return lease.settling

    def extend(self, delivery: Delivery, lease_ms: int | None) -> Settling:
        """Ask for more time for a delivery. From any thread."""
        settling = Settling(self, "done" if delivery.receipt is None else None)
        if delivery.receipt is not None:
            self._on_loop(self._said_extend, delivery, lease_ms, settling)
        return settling

    def flush_soon(self) -> None:
        """Send what was said without further waiting."""
        self._settler.flush_soon()

    def _on_loop(self, call: Callable[..., None], *arguments: object) -> None:
        if asyncio._get_running_loop() is self._loop:
            call(*arguments)
            return
        try:
            self.loop.call_soon_threadsafe(call, *arguments)
        except RuntimeError as error:
            raise ClientClosed from error

    def _said(self, delivery: Delivery, verb: Verb, delay_ms: int | None) -> None:
        lease = delivery._lease
        if not lease.is_handled:
            self.ready.done(delivery)
        if delivery.receipt is not None and lease.settling is not None:
            self._leases.let_go(delivery)
            self._unconfirmed += 1
            used_ms = 0.0
            topic = ""
            if lease.taken_at_s is not None and verb != "release":
                used_ms = (self.loop.time() - lease.taken_at_s) * 1000
                topic = delivery.topic if self._facts.shares_time else ""
            said = Said(delivery.receipt, lease.settling, used_ms)
            self._settler.add(Terms(verb, delay_ms, topic=topic), said)
            if self._facts.is_keyed and verb in ("nack", "release"):
                # What follows in the key comes back with it: the broker has taken it back.
                for follower in self._leases.following(delivery):
                    self._leases.let_go(follower)
                    self._lost(follower)
                # Also what is on its way to us at this moment.
                self._came_back.note(delivery, lease.settling)
        self.note_change()

    def _said_extend(self, delivery: Delivery, lease_ms: int | None, settling: Settling) -> None:
        assert delivery.receipt is not None
        if lease_ms is not None:
            self._leases.extended(delivery, self.loop.time(), lease_ms / 1000)
        self._unconfirmed += 1
        self._settler.add(Terms("extend", lease_ms=lease_ms), Said(delivery.receipt, settling, 0.0))

    async def _send(self, terms: Terms, said: Sequence[Said]) -> list[Status]:
        return await self._settle(
            terms.verb,
            [each.receipt for each in said],
            delay_ms=terms.delay_ms,
            lease_ms=terms.lease_ms,
            used_ms=sum(each.used_ms for each in said) / len(said) if terms.topic else None,
        )

    async def _settle(self, verb: Verb, receipts: Sequence[str], **terms: Any) -> list[Status]:
        return await group_requests.settle(
            self._transport, self.options.group, verb, receipts, retry=self._policy, **terms
        )

    def _confirmed(self, count: int) -> None:
        self._unconfirmed -= count
        self.note_change()
