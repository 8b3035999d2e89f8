"""The unsettled deliveries of publishers' links that were lost, until the publishers resume them.

Everything is in memory: a restart of the broker forgets it, and so do the limits. A publisher whose
deliveries are forgotten sends their messages again.
"""

import asyncio
from collections.abc import Collection
from typing import NamedTuple

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.resumption import Resumable


class LinkKey(NamedTuple):
    """Which link it is. Only the same principal can resume it."""

    principal: str
    container_id: str
    link: str


class SuspendedLink(NamedTuple):
    """A lost link. All of its deliveries have a state once `publishes` is empty.

    It refers to nothing else of its connection, which must be freed when it is lost.
    """

    client: str
    address: str | None
    deliveries: Resumable
    publishes: Collection[asyncio.Future[None]]
    size: int
    """How many deliveries count against the limits."""
    until_s: float


class SuspendedLinks:
    """The lost links that have unsettled deliveries. It belongs to the event loop.

    Above a limit, the link that was lost first is forgotten. Links whose time is over are forgotten
    when the next link is lost.
    """

    def __init__(self) -> None:
        self._links: dict[LinkKey, SuspendedLink] = {}
        """The link that was lost first is the first."""
        self._count = 0
        self._count_of: dict[str, int] = {}

    def __len__(self) -> int:
        return len(self._links)

    def keep(
        self,
        key: LinkKey,
        client: str,
        address: str | None,
        deliveries: Resumable,
        publishes: Collection[asyncio.Future[None]],
        config: AmqpConfig,
        now_s: float,
    ) -> None:
        """Keep the unsettled deliveries of a link that is lost now. Without any, forget those of an
        earlier link with the same key. `publishes` has those in progress; the caller removes each
        when it has ended and its deliveries have their states."""
        self._forget(key)
        count = len(deliveries)
        self._forget_expired(now_s)
        most, most_of_client = config.max_suspended_deliveries, config.max_client_suspended
        if not config.resume_timeout_ms or not 0 < count <= min(most, most_of_client):
            return
        while self._count_of.get(client, 0) + count > most_of_client:
            self._forget(next(each for each, at in self._links.items() if at.client == client))
        while self._count + count > most:
            self._forget(next(iter(self._links)))
        until_s = now_s + config.resume_timeout_ms / 1000
        self._links[key] = SuspendedLink(client, address, deliveries, publishes, count, until_s)
        self._add(client, count)

    async def take(self, key: LinkKey, address: str | None, now_s: float) -> Resumable:
        """Return the unsettled deliveries of a lost link to this address, each with its state, and
        forget the link. Wait for publishes that were in progress. Cancelling is safe."""
        link = self._links.get(key)
        if link is not None:
            await publishes_ended(link.publishes)
            if self._links.get(key) is link:
                self._forget(key)
                if link.until_s > now_s and link.address == address:
                    return link.deliveries
        return Resumable()

    def _forget_expired(self, now_s: float) -> None:
        while self._links:
            key, link = next(iter(self._links.items()))
            if link.until_s > now_s:
                return
            self._forget(key)

    def _forget(self, key: LinkKey) -> None:
        link = self._links.pop(key, None)
        if link is not None:
            self._add(link.client, -link.size)

    def _add(self, client: str, count: int) -> None:
        self._count += count
        of_client = self._count_of.get(client, 0) + count
        if of_client:
            self._count_of[client] = of_client
        else:
            del self._count_of[client]


async def publishes_ended(publishes: Collection[asyncio.Future[None]]) -> None:
    """Return once the collection is empty. Its owner removes each publish that has ended."""
    while publishes:
        await asyncio.wait(publishes)
