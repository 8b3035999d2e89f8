"""The leases of a consumer's unsettled messages, extended at half their time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from holdfast.client.consume.ack_batcher import MAX_RECEIPTS
from holdfast.client.consume.delivery import Delivery, Status

Extend = Callable[[Sequence[str]], Awaitable[Sequence[Status]]]


class LeaseRenewer:
    """Holds the deliveries whose leases `run` extends by `lease_s`. Belongs to one event loop.

    `extend` sends a request and retries it. `on_lost(delivery)` is called for each delivery whose
    lease has ended at the broker.
    """

    def __init__(self, extend: Extend, on_lost: Callable[[Delivery], None]) -> None:
        self._extend = extend
        self._on_lost = on_lost
        #: The deliveries by `id()`, because a message may be redelivered before this member knows
        #: that its first lease is lost.
        self._held: dict[int, Delivery] = {}
        #: Wakes `run`, because a lease may have to be extended earlier than planned.
        self._wakeup = asyncio.Event()
        self.lease_s = 30.0

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
        statuses = await self._extend([each.receipt or "" for each in deliveries])
        for delivery, status in zip(deliveries, statuses, strict=True):
            if status == "done":
                delivery._lease.extend_at_s = now_s + self.lease_s / 2
            elif self.remove(delivery):
                self._on_lost(delivery)
