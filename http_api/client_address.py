"""Who a client is, by its address, for limits that are counted per client. Pure.

An IPv4 address is one client. An IPv6 client commonly owns a whole /64 network, so that the
network is what counts: otherwise one host has as many addresses as it likes.
"""

from functools import lru_cache
from ipaddress import IPv6Address, IPv6Network, ip_address

#: The client of a connection that has no address (it has gone already).
UNKNOWN = ""


@lru_cache(maxsize=4096)
def client_of(host: str) -> str:
    """Return the client of an address as the system writes it; a text that is none is itself."""
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
