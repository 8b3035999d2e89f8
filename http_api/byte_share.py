"""Who holds how much of a memory that all clients share, and who goes when it is full. Pure.

The client that holds the most gives up first, and of what it holds the oldest: a crowd that
fills the memory on purpose pushes itself out, not those who hold little.
"""

from collections import OrderedDict
from collections.abc import Hashable
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)


class ByteShare(Generic[K]):
    """What each holder holds, up to `limit_bytes` in all. A holder holds one thing at a time."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._clients: dict[str, OrderedDict[K, int]] = {}
        self._bytes_of: dict[str, int] = {}
        self._client_of: dict[K, str] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, holder: K, client: str, size: int) -> list[K]:
        """Note what a holder holds from now on; return those that must give up what they hold.

        They are discarded already. A holder that is alone is never among them.
        """
        self.discard(holder)
        self._clients.setdefault(client, OrderedDict())[holder] = size
        self._bytes_of[client] = self._bytes_of.get(client, 0) + size
        self._client_of[holder] = client
        self.total_bytes += size
        given_up = []
        while self.total_bytes > self._limit_bytes and len(self._client_of) > 1:
            greediest = max(self._bytes_of, key=self._bytes_of.__getitem__)
            oldest = next(iter(self._clients[greediest]))
            self.discard(oldest)
            given_up.append(oldest)
        return given_up

    def discard(self, holder: K) -> None:
        """Forget what a holder held, if it held anything."""
        client = self._client_of.pop(holder, None)
        if client is None:
            return
        holders = self._clients[client]
        size = holders.pop(holder)
        self.total_bytes -= size
        self._bytes_of[client] -= size
        if not holders:
            del self._clients[client], self._bytes_of[client]
