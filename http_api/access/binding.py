"""Where a broker may listen: always on loopback, on other addresses only with authentication."""

import asyncio
import socket

from holdfast.http_api.access.loopback import is_loopback


class RemoteWithoutAccess(Exception):
    """The broker must not listen on an address of other machines while authentication is off."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"{self.host} can be reached by other machines, whose users could then do "
            "everything; make a token with 'holdfast token create' and ask for it "
            "(--access-authentication true), listen on 127.0.0.1, or, where the network itself "
            "keeps others out, say so (--access-insecure-remote true)"
        )


async def is_remote(host: str) -> bool:
    """Return whether `host` resolves to an address that other machines can reach.

    Raises OSError if the name cannot be resolved.
    """
    found = await asyncio.to_thread(
        socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return not all(is_loopback(str(address[0])) for *_, address in found)
