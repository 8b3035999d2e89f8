"""The leases that a consumer holds and has said nothing of, extended at half their time."""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress

from holdfast.client.delivery import Delivery, Status
from holdfast.client.settler import MAX_RECEIPTS

Extend = Callable[[Sequence[str]], Awaitable[Sequence[Status]]]


class LeaseKeeper:
    """Extends through `extend`, which tries again by itself, by `lease_s` a time. Belongs to one
    event loop. `lost(delivery)` is called for each whose lease turns out to have ended."""

    def __init__(self, extend: Extend, lost: Callable[[Delivery], None]) -> None:
        self._extend = extend
        self._lost = lost
        #: By identity: a message may come a second time while its first lease is not known lost.
        self._held: dict[int, Delivery] = {}
        #: A lease may have to be extended before `keep` would look again.
        self._sooner = asyncio.Event()
        self.lease_s = 30.0

    def __len__(self) -> int:
        return len(self._held)

    def hold(self, delivery: Delivery) -> None:
        """Keep a lease from now on."""
        self._held[id(delivery)] = delivery

    def holds(self, delivery: Delivery) -> bool:
        """Say whether a lease is kept."""
        return id(delivery) in self._held

    def let_go(self, delivery: Delivery) -> bool:
        """Keep a lease no longer. False: it was not kept."""
        return self._held.pop(id(delivery), None) is not None

    def extended(self, delivery: Delivery, at_s: float, lease_s: float) -> None:
        """Note that a lease was, or will have been, extended at a time."""
        delivery._lease.extend_at_s = at_s + lease_s / 2
        self._sooner.set()

    def following(self, delivery: Delivery) -> list[Delivery]:
        """Return those held that follow a message in its key."""
        return [
            each
            for each in self._held.values()
            if each.key == delivery.key is not None
            and (each.topic, each.queue) == (delivery.topic, delivery.queue)
            and each.offset > delivery.offset
        ]

    async def keep(self) -> None:
        """Extend what is held, for ever. Raises what `extend` raises."""
        loop = asyncio.get_running_loop()
        while True:
            now_s, half_s = loop.time(), self.lease_s / 2
            next_s = min(
                (each._lease.extend_at_s for each in self._held.values()), default=now_s + half_s
            )
            if next_s <= now_s:
                # Together with those whose time comes soon.
                soon_s = now_s + half_s / 4
                due = [e for e in self._held.values() if e._lease.extend_at_s <= soon_s]
                await self._extend_some(due[:MAX_RECEIPTS], now_s)
            else:
                with suppress(TimeoutError):
                    await asyncio.wait_for(self._sooner.wait(), min(half_s, next_s - now_s))
                self._sooner.clear()

    async def _extend_some(self, deliveries: Sequence[Delivery], now_s: float) -> None:
        statuses = await self._extend([each.receipt or "" for each in deliveries])
        for delivery, status in zip(deliveries, statuses, strict=True):
            if status == "done":
                delivery._lease.extend_at_s = now_s + self.lease_s / 2
            elif self.let_go(delivery):
                self._lost(delivery)
