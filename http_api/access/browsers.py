"""Requests that a web page of another site makes a browser send, told by the browser's own marks.

They matter where nobody is asked for a token: the browser runs on this machine, and any page may
make it send a POST here. Other clients send neither of these headers. Pure.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from multidict import istr

from holdfast.http_api.access.loopback import is_loopback

# Made for look-ups in any case once, not at each of them.
ORIGIN = istr("Origin")
SEC_FETCH_SITE = istr("Sec-Fetch-Site")


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that a page which is not of this machine wants this."""
    if headers.get(SEC_FETCH_SITE, "").strip().lower() == "cross-site":
        return True
    origin = headers.get(ORIGIN)
    return origin is not None and not _is_of_this_machine(origin)


def _is_of_this_machine(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname
        if host is None:
            return False
        return host == "localhost" or host.endswith(".localhost") or is_loopback(host)
    except ValueError:
        return False
