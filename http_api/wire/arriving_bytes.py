"""The memory of requests that clients have sent, counted per client, with its limits. Pure.

There is a limit in total and a limit per client. Both cover unfinished and waiting heads (request
line and headers), arriving bodies, and bodies that are being processed. When the total limit is
reached, the client with the most arriving bytes loses its oldest arriving request, if a client with
fewer bytes needs the memory. The limit per client applies even if memory is free.
"""

from collections import OrderedDict
from collections.abc import Callable, Hashable

GiveWay = Callable[[], None]
"""Ends a request to free its memory. Called after the request's bytes were released here."""

LIMIT, SHARE = "max_arriving_bytes", "max_client_arriving_bytes"


class ArrivingBytes:
    """The bytes of each holder, limited to `limit_bytes` in total and `share_bytes` per client.

    A holder is a request or a connection; it has one entry. If there is only one holder, it may
    exceed the total limit, and the only holder of a client may exceed the client's limit: waiting
    would not help, because there is no other memory that could be freed.
    """

    def __init__(self, limit_bytes: int, share_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._share_bytes = share_bytes
        self._held: dict[Hashable, tuple[str, int]] = {}
        self._bytes_of: dict[str, int] = {}
        self._holders_of: dict[str, int] = {}
        self._arriving: dict[str, OrderedDict[Hashable, GiveWay]] = {}
        """The holders that can give way, by client. The oldest is first."""
        self._arriving_bytes_of: dict[str, int] = {}
        self.total_bytes = 0

    def __len__(self) -> int:
        return len(self._held)

    def of_client(self, client: str) -> int:
        """Return the bytes of all holders of a client."""
        return self._bytes_of.get(client, 0)

    def take(
        self, holder: Hashable, client: str, size: int, give_way: GiveWay | None = None
    ) -> str | None:
        """Set the bytes of a holder to `size`, in place of its former bytes.

        Return None on success. If a limit refuses the new size, return the name of the limit; the
        holder then keeps its former bytes. With `give_way`, the holder is arriving, and `give_way`
        is called if another client needs the memory. Without `give_way`, the holder is being
        processed and keeps its memory until it is released.
        """
        own = self._held[holder][1] if holder in self._held else 0
        of_client = self._bytes_of.get(client, 0)
        if of_client > own and of_client - own + size > self._share_bytes:
            return SHARE
        while self.total_bytes > own and self.total_bytes - own + size > self._limit_bytes:
            greediest = self._greediest(client, size)
            if greediest is None:
                return LIMIT
            oldest, its_give_way = next(iter(self._arriving[greediest].items()))
            self.release(oldest)
            its_give_way()
        self.release(holder)
        self._held[holder] = client, size
        self._bytes_of[client] = self._bytes_of.get(client, 0) + size
        self._holders_of[client] = self._holders_of.get(client, 0) + 1
        self.total_bytes += size
        if give_way is not None:
            self._arriving.setdefault(client, OrderedDict())[holder] = give_way
            self._arriving_bytes_of[client] = self._arriving_bytes_of.get(client, 0) + size
        return None

    def settle(self, holder: Hashable) -> None:
        """Record that a holder's request has arrived. From now on the holder keeps its memory."""
        if holder in self._held:
            self._end_arriving(holder, *self._held[holder])

    def release(self, holder: Hashable) -> None:
        """Remove the bytes of a holder, if it has any."""
        held = self._held.get(holder)
        if held is None:
            return
        self._end_arriving(holder, *held)
        del self._held[holder]
        client, size = held
        self.total_bytes -= size
        self._holders_of[client] -= 1
        self._bytes_of[client] -= size
        if not self._holders_of[client]:
            del self._holders_of[client], self._bytes_of[client]

    def _end_arriving(self, holder: Hashable, client: str, size: int) -> None:
        holders = self._arriving.get(client)
        if holders is None or holders.pop(holder, None) is None:
            return
        self._arriving_bytes_of[client] -= size
        if not holders:
            del self._arriving[client], self._arriving_bytes_of[client]

    def _greediest(self, client: str, size: int) -> str | None:
        """Return the client with the most arriving bytes, which has to give way to `client`.

        Return None if `client` itself has the most arriving bytes, or would have at least as many
        with `size` more bytes.
        """
        taken = self._arriving_bytes_of
        greediest = max(taken, key=taken.__getitem__, default=client)
        if greediest == client or taken[greediest] <= taken.get(client, 0) + size:
            return None
        return greediest
