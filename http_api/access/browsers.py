"""Detects requests that a browser sends for a web page of another site. Pure.

Such requests are a danger if authentication is off: the browser runs on this machine, and any page
can make it send a POST to the broker. The browser marks these requests by two headers, Origin and
Sec-Fetch-Site. Other clients send neither of these headers.
"""

from collections.abc import Mapping
from urllib.parse import urlsplit

from holdfast.http_api.access.loopback import is_loopback
from holdfast.http_api.wire.headers import ORIGIN, SEC_FETCH_SITE


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent this request for a page that is not from this machine."""
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
