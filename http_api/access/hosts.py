"""Which host names a request may use if authentication is off. Pure.

The owner of a web site can make the site's host name resolve to this machine (DNS rebinding). A
browser then treats the broker as a part of that site, and only the host name in the request reveals
the attack. An IP address cannot be redirected in this way.
"""

import re
from collections.abc import Iterable
from functools import lru_cache
from ipaddress import IPv6Address, ip_address

#: A host name or an IP address, optionally with a port. An IPv6 address may have brackets.
_HOST = re.compile(
    r"(\[[0-9a-f:.]+\]|[a-z0-9_.-]+)(:[0-9]*)?|[0-9a-f:.]+", re.ASCII | re.IGNORECASE
)
#: At most this many results of the check are cached.
_CACHE_SIZE = 256


class AllowedHosts:
    """The host names that requests may use: the names of this machine, and configured names.

    A configured name is a host name, `.example.com` for a domain and all its subdomains, or `*` for
    every name. With `any_address`, every IP address is allowed, too, because other machines can
    reach the broker.
    """

    def __init__(self, names: Iterable[str] = (), *, any_address: bool = False) -> None:
        self._names = frozenset(name.lower().rstrip(".") for name in names)
        self._any_address = any_address
        self.admit = lru_cache(_CACHE_SIZE)(self._admit)
        """Return whether a request may have this Host header."""

    def _admit(self, header: str) -> bool:
        name = host_name(header)
        if "*" in self._names or name in self._names:
            return True
        if not _HOST.fullmatch(header.strip()):
            return False
        if name == "localhost" or name.endswith(".localhost"):
            return True
        try:
            return is_loopback(name) or self._any_address
        except ValueError:
            pass
        labels = name.split(".")
        return any("." + ".".join(labels[i:]) in self._names for i in range(len(labels)))


def host_name(header: str) -> str:
    """Return the host name of a Host header or of an address to listen on.

    The result is in lower case, and has no port, no brackets and no dot at the end.
    """
    header = header.strip().lower()
    if header.startswith("["):
        return header[1:].partition("]")[0]
    name, colon, port = header.rpartition(":")
    if colon and (port.isdecimal() or not port) and ":" not in name:
        header = name
    return header.rstrip(".")


def names_in(text: str) -> list[str]:
    """Return the names in a comma-separated list, the form of a list in the configuration."""
    return [each.strip() for each in text.split(",") if each.strip()]


def is_loopback(address: str) -> bool:
    """Return whether only this machine can reach an IP address.

    Raises ValueError if the text is not an IP address.
    """
    parsed = ip_address(address.partition("%")[0])
    if isinstance(parsed, IPv6Address) and parsed.ipv4_mapped is not None:
        parsed = parsed.ipv4_mapped
    return parsed.is_loopback
