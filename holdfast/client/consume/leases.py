"""The leases of a consumer's messages: extend them, and find leases that may have been revoked."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field

from holdfast.client.consume.ack_batcher import MAX_RECEIPTS
from holdfast.client.consume.delivery import (
    DeliveredMessage,
    Delivery,
    ReceivedMessage,
    Settling,
)
from holdfast.client.values import Status

QueueKey = tuple[str, int, str | None]
"""A topic, a queue, and a key in that queue."""


@dataclass(eq=False)
class LeaseRenewer:
    """Extends leases by `lease_s` when half of their time has passed. Belongs to one event loop.

    `extend` sends a request and retries it. `on_lost(delivery)` is called for each delivery whose
    lease has ended at the broker.
    """

    extend: Callable[[Sequence[str]], Awaitable[Sequence[Status]]]
    on_lost: Callable[[Delivery], None]
    lease_s: float = 30.0
    #: The deliveries by `id()`, because a message may be redelivered before this member knows that
    #: its first lease is lost.
    _held: dict[int, Delivery] = field(default_factory=dict)
    #: Wakes `run`, because a lease may have to be extended earlier than planned.
    _wakeup: asyncio.Event = field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        return len(self._held)

    def add(self, delivery: Delivery) -> None:
        self._held[id(delivery)] = delivery

    def has(self, delivery: Delivery) -> bool:
        return id(delivery) in self._held

    def remove(self, delivery: Delivery) -> bool:
        """Forget a delivery. Return False if its lease was not held."""
        return self._held.pop(id(delivery), None) is not None

    def record_extension(self, delivery: Delivery, at_s: float, lease_s: float) -> None:
        """Record that a lease was extended for `lease_s`, counted from `at_s`."""
        delivery._lease.extend_at_s = at_s + lease_s / 2
        self._wakeup.set()

    def find_following(self, delivery: Delivery) -> list[Delivery]:
        """Return the held deliveries of the same key and queue with higher offsets."""
        return [
            each
            for each in self._held.values()
            if each.key == delivery.key is not None
            and (each.topic, each.queue) == (delivery.topic, delivery.queue)
            and each.offset > delivery.offset
        ]

    async def run(self) -> None:
        """Extend the held leases for ever. Raises the errors of `extend`."""
        loop = asyncio.get_running_loop()
        while True:
            now_s, half_s = loop.time(), self.lease_s / 2
            next_s = min(
                (each._lease.extend_at_s for each in self._held.values()), default=now_s + half_s
            )
            if next_s <= now_s:
                # Include the leases that are due soon in the same request.
                soon_s = now_s + half_s / 4
                due = [e for e in self._held.values() if e._lease.extend_at_s <= soon_s]
                await self._extend_some(due[:MAX_RECEIPTS], now_s)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._wakeup.wait(), min(half_s, next_s - now_s))
                self._wakeup.clear()

    async def _extend_some(self, deliveries: Sequence[Delivery], now_s: float) -> None:
        statuses = await self.extend([each.receipt or "" for each in deliveries])
        for delivery, status in zip(deliveries, statuses, strict=True):
            if status == "done":
                delivery._lease.extend_at_s = now_s + self.lease_s / 2
            elif self.remove(delivery):
                self.on_lost(delivery)


class RedeliveredKeys:
    """The nacked and released messages, by topic, queue and key, while an older reply may still be
    in flight. Belongs to one event loop.

    In a keyed group, when a member nacks or releases a message, the broker also revokes the leases
    of the later messages of its key. A reply that is in flight at that time may still contain
    revoked messages. Such messages are uncertain: the member may process them only after the broker
    has handled the nack or release and has confirmed that their leases are still valid.
    """

    def __init__(self) -> None:
        #: For each key with nacked or released messages: the lowest offset of these messages, and
        #: the pending result of the latest nack or release.
        self._unconfirmed: dict[QueueKey, tuple[int, Settling]] = {}

    def record(self, message: ReceivedMessage, settling: Settling) -> None:
        """Record that `settling` nacks or releases a message. Ignore messages without a key."""
        if message.key is None:
            return
        queue_key = _queue_key(message)
        first, _ = self._unconfirmed.get(queue_key, (message.offset, settling))
        self._unconfirmed[queue_key] = min(first, message.offset), settling

    def forget_answered(self) -> None:
        """Forget the nacks and releases that the broker has answered. Call this before a receive is
        sent: its reply cannot contain a message that an answered nack or release has revoked."""
        self._unconfirmed = {
            queue_key: (first, settling)
            for queue_key, (first, settling) in self._unconfirmed.items()
            if not settling.done()
        }

    def find_uncertain(self, messages: Sequence[DeliveredMessage]) -> list[bool]:
        """Return for each message of a reply whether the broker may have revoked it."""
        if not self._unconfirmed:
            return [False] * len(messages)
        redelivered: set[QueueKey] = set()
        flags = []
        for each in messages:
            queue_key = _queue_key(each)
            first, _ = self._unconfirmed.get(queue_key, (-1, None))
            if each.offset <= first:
                # This is a redelivery, so the later messages of the key in this reply are valid.
                redelivered.add(queue_key)
            flags.append(queue_key in self._unconfirmed and queue_key not in redelivered)
        return flags

    async def wait_confirmed(self, message: ReceivedMessage) -> None:
        """Wait until the broker has handled the latest nack or release for a message's key. Raises
        the error with which the nack or release failed. Cancelling is safe."""
        found = self._unconfirmed.get(_queue_key(message))
        if found is not None:
            await found[1]


def _queue_key(message: DeliveredMessage | ReceivedMessage) -> QueueKey:
    return message.topic, message.queue, message.key
