"""The unsettled deliveries of publishers' links that were lost, until the publishers resume them.

Everything is in memory: a restart of the broker forgets it, and so do the limits. A publisher whose
deliveries are forgotten sends their messages again.
"""

import asyncio
from collections.abc import AsyncIterator, Collection
from contextlib import asynccontextmanager
from hashlib import blake2b
from typing import NamedTuple
from weakref import WeakValueDictionary

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
    address: bytes
    """The digest of the address."""
    deliveries: Resumable
    publishes: Collection[asyncio.Future[None]]
    size: int
    """How many deliveries count against the limits."""
    until_s: float


class SuspendedLinks:
    """The lost links that have unsettled deliveries. It belongs to the event loop.

    Above a limit, the link that was lost first is forgotten. Links whose time is over are forgotten
    when the next link is lost. The deliveries that clients have not yet resumed on the links that
    they attached again are counted, too (`count`), but not forgotten.
    """

    def __init__(self) -> None:
        self._links: dict[bytes, SuspendedLink] = {}
        """The digest of a key -> its link. The link that was lost first is the first."""
        self._searching = asyncio.Lock()
        self._searches_of: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Client -> what it holds while it searches, or waits for the clients before it."""
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
        place = _digest(key)
        self._forget(place)
        count = len(deliveries)
        self._forget_expired(now_s)
        if not (config.resume_timeout_ms and count and self._make_room(client, count, config)):
            return
        until_s = now_s + config.resume_timeout_ms / 1000
        self._links[place] = SuspendedLink(
            client, _digest(address), deliveries, publishes, count, until_s
        )
        self.count(client, count)

    async def take(self, key: LinkKey, address: str | None, now_s: float) -> Resumable:
        """Return the unsettled deliveries of a lost link to this address, each with its state, and
        forget the link. Wait for publishes that were in progress. Cancelling is safe."""
        place = _digest(key)
        link = self._links.get(place)
        if link is not None:
            await publishes_ended(link.publishes)
            if self._links.get(place) is link:
                self._forget(place)
                if link.until_s > now_s and link.address == _digest(address):
                    return link.deliveries
        return Resumable()

    def count(self, client: str, change: int) -> None:
        """Change how many deliveries of a client count against the limits."""
        self._count += change
        self._count_of[client] = self._count_of.get(client, 0) + change
        if not self._count_of[client]:
            del self._count_of[client]

    def room(self, client: str, config: AmqpConfig) -> int:
        """Return how many more deliveries of a client the limits allow without forgetting any."""
        of_client = config.max_client_suspended - self._count_of.get(client, 0)
        return min(of_client, config.max_suspended_deliveries - self._count)

    @asynccontextmanager
    async def search(self, client: str) -> AsyncIterator[None]:
        """Wait until a client may look for copies in the log (stored_copies.py). One search runs at
        a time, and the clients take turns, whatever number of links each of them attaches."""
        of_client = self._searches_of.setdefault(client, asyncio.Lock())
        async with of_client, self._searching:
            yield

    def _make_room(self, client: str, count: int, config: AmqpConfig) -> bool:
        """Forget links until `count` more deliveries are within the limits. Return whether they
        are."""
        most, most_of_client = config.max_suspended_deliveries, config.max_client_suspended
        if count > min(most, most_of_client):
            return False
        while self._count_of.get(client, 0) + count > most_of_client:
            of_client = (each for each, link in self._links.items() if link.client == client)
            if not self._forget(next(of_client, None)):
                return False
        while self._count + count > most:
            if not self._forget(next(iter(self._links), None)):
                return False
        return True

    def _forget_expired(self, now_s: float) -> None:
        while self._links:
            place, link = next(iter(self._links.items()))
            if link.until_s > now_s:
                return
            self._forget(place)

    def _forget(self, place: bytes | None) -> bool:
        """Forget a link; return False if it is not known."""
        link = None if place is None else self._links.pop(place, None)
        if link is None:
            return False
        self.count(link.client, -link.size)
        return True


def _digest(names: LinkKey | str | None) -> bytes:
    """Return 16 bytes that stand for names of any length, which a client chose."""
    return blake2b(repr(names).encode(), digest_size=16).digest()


async def publishes_ended(publishes: Collection[asyncio.Future[None]]) -> None:
    """Return once the collection is empty. Its owner removes each publish that has ended."""
    while publishes:
        await asyncio.wait(publishes)
