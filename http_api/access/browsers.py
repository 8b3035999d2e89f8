"""Requests that browsers send for web pages: which pages may use the broker, and CORS headers.

If authentication is off, pages of other sites are a danger: the browser runs on this machine, and
any page can make it send a POST to the broker. The browser marks these requests by two headers,
Origin and Sec-Fetch-Site. Other clients send neither of these headers.

CORS headers allow pages of other origins to read replies. CORS is off unless
`http_api.cors_origins` lists origins. A page sends its token in the Authorization header, because
the browser adds no credentials of its own (cookies, certificates).
"""

from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from multidict import MultiMapping

from holdfast.http_api.access.hosts import is_loopback
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.reply import Headers, Reply
from holdfast.http_api.wire.request import ORIGIN, SEC_FETCH_SITE


def is_from_another_site(headers: Mapping[str, str]) -> bool:
    """Return whether a browser sent this request for a page that is not from this machine."""
    if headers.get(SEC_FETCH_SITE, "").strip().lower() == "cross-site":
        return True
    origin = headers.get(ORIGIN)
    return origin is not None and not _is_of_this_machine(origin)


def is_of_same_origin(headers: Mapping[str, str]) -> bool:
    """Return whether the page that sent this request came from the host that it is sent to."""
    try:
        of_page = urlsplit(headers.get(ORIGIN, "")).netloc
    except ValueError:
        return False
    return of_page.lower() == headers.get(hdrs.HOST, "").lower()


def _is_of_this_machine(origin: str) -> bool:
    try:
        host = urlsplit(origin).hostname
        if host is None:
            return False
        return host == "localhost" or host.endswith(".localhost") or is_loopback(host)
    except ValueError:
        return False


#: How long a browser may cache a preflight reply. Chromium allows at most this.
_MAX_AGE_S = 7200
_METHODS = "GET, HEAD, POST, PUT, PATCH, DELETE"
#: The headers that a page may read, in addition to the headers that browsers always allow.
_EXPOSED = ", ".join(
    [
        *("Content-Encoding", "Date", "ETag", "Location", "Retry-After", "WWW-Authenticate"),
        *("Holdfast-Next-Offset", "Holdfast-Min-Offset", "Holdfast-Max-Offset"),
        *("Holdfast-Skipped", "Holdfast-Skipped-Offsets", "Holdfast-Topic-Id"),
        *("Holdfast-Active", "Holdfast-Available"),
    ]
)
_PRIVATE_NETWORK = "Access-Control-Request-Private-Network"


class CrossOrigin:
    """The origins whose pages may read replies. `*` means every origin."""

    def __init__(self, origins: Iterable[str]) -> None:
        self.origins = frozenset(origin.lower() for origin in origins)

    def allows(self, origin: str) -> bool:
        """Return whether pages of this origin may read replies."""
        return "*" in self.origins or origin.lower() in self.origins

    def allows_by_name(self, origin: str) -> bool:
        """Return whether this origin is listed by name; `*` does not count.

        If the broker requires no tokens, only pages of this machine and of listed origins may use
        the broker.
        """
        return origin.lower() in self.origins

    def preflight(self, method: str, headers: MultiMapping[str]) -> Reply | None:
        """Return the reply to a CORS preflight request of an admitted origin.

        Return None for any other request.
        """
        asked = headers.get(hdrs.ACCESS_CONTROL_REQUEST_METHOD)
        if method != hdrs.METH_OPTIONS or asked is None or not self.allows(headers[ORIGIN]):
            return None
        fields: list[tuple[str, str]] = [
            (hdrs.ACCESS_CONTROL_ALLOW_METHODS, _METHODS),
            (hdrs.ACCESS_CONTROL_MAX_AGE, str(_MAX_AGE_S)),
        ]
        wanted = ", ".join(headers.getall(hdrs.ACCESS_CONTROL_REQUEST_HEADERS, ()))
        if wanted.isascii() and wanted.isprintable() and wanted:
            fields.append((hdrs.ACCESS_CONTROL_ALLOW_HEADERS, wanted))
        if headers.get(_PRIVATE_NETWORK, "").lower() == "true":
            fields.append(("Access-Control-Allow-Private-Network", "true"))
        return Reply(200, "text/plain", (), fields)

    def fields(self, origin: str) -> Headers:
        """Return the headers that every reply to a page of this origin needs.

        The Vary header tells caches that the headers depend on the origin.
        """
        if not self.allows(origin):
            return ((hdrs.VARY, hdrs.ORIGIN),)
        return (
            (hdrs.ACCESS_CONTROL_ALLOW_ORIGIN, "*" if "*" in self.origins else origin),
            (hdrs.ACCESS_CONTROL_EXPOSE_HEADERS, _EXPOSED),
            (hdrs.VARY, hdrs.ORIGIN),
        )
