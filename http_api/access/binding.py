"""Where a broker may listen: on this machine for everybody, elsewhere for those who are known."""

import asyncio
import socket

from holdfast.http_api.access.loopback import is_loopback


class RemoteWithoutAccess(Exception):
    """The address to listen on is reached by other machines, and nobody is asked who they are."""

    def __init__(self, host: str) -> None:
        super().__init__(host)
        self.host = host

    def __str__(self) -> str:
        return (
            f"{self.host} can be reached by other machines, and whoever reaches it could do "
            "everything; make a token with 'holdfast token create' and ask for it "
            "(--access-authentication true), listen on 127.0.0.1, or, where the network itself "
            "keeps others out, say so (--access-insecure-remote true)"
        )


async def is_remote(host: str) -> bool:
    """Whether any address that `host` stands for is reached by other machines.

    OSError passes through: a name that stands for nothing.
    """
    found = await asyncio.to_thread(
        socket.getaddrinfo, host, None, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )
    return not all(is_loopback(str(address[0])) for *_, address in found)
