"""Identifies a client by its address, for limits that are counted per client. Pure.

Each IPv4 address is one client. An IPv6 host usually owns a whole /64 network, so the /64 network
is one client: otherwise the host could use a new address for every connection.
"""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

#: The client of a connection whose address is unknown, because it is already closed.
UNKNOWN = ""


@lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Return the name of the client that uses an address, such as "192.0.2.1" or "2001:db8::/64".

    `host` is an address as the operating system writes it. Any other text is returned unchanged.
    """
    try:
        address = ip_address(host.partition("%")[0])
    except ValueError:
        return host
    if not isinstance(address, IPv6Address):
        return str(address)
    if address.ipv4_mapped is not None:
        return str(address.ipv4_mapped)
    if address.is_loopback:
        return str(address)
    return str(IPv6Network((address, 64), strict=False))
