"""A memory budget that all clients share. When it is exhausted, one client must free memory.

Pure.

The client with the most bytes loses its oldest entry first. A client that fills the memory on
purpose therefore loses its own entries; clients with few bytes keep theirs.
"""

from collections import OrderedDict
from typing import Generic, TypeVar

K = TypeVar("K")


class ClientByteBudget(Generic[K]):
    """The bytes of each holder, limited to `limit_bytes` in total.

    A holder (such as a connection) has at most one entry.
    """

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._clients: dict[str, OrderedDict[K, int]] = {}
        self._bytes_of: dict[str, int] = {}
        self._client_of: dict[K, str] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._client_of)

    def add(self, holder: K, client: str, size: int) -> list[K]:
        """Set the bytes of a holder. Return the holders that must free their memory.

        The entries of the returned holders are already removed. If there is only one holder, it
        may exceed the limit.
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
        """Remove the entry of a holder, if it has one."""
        client = self._client_of.pop(holder, None)
        if client is None:
            return
        holders = self._clients[client]
        size = holders.pop(holder)
        self.total_bytes -= size
        self._bytes_of[client] -= size
        if not holders:
            del self._clients[client], self._bytes_of[client]
