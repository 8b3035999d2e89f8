"""Which addresses only this machine reaches. Pure."""

from ipaddress import IPv6Address, ip_address


def is_loopback(address: str) -> bool:
    """Whether an IP address is reached from this machine alone. Raises ValueError for what is no
    IP address."""
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback
