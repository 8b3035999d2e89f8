"""Detects addresses that only this machine can reach. Pure."""

from ipaddress import IPv6Address, ip_address


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an IP address.

    Raises ValueError if the text is not an IP address.
    """
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback
