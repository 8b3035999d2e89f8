"""The CORS headers that allow pages of other origins to use the broker from a browser.

CORS is off unless `http_api.cors_origins` lists origins. The browser does not add credentials of
its own (cookies, certificates): a page sends its token in the Authorization header.
"""

from collections.abc import Iterable

from aiohttp import hdrs
from multidict import MultiMapping

from holdfast.http_api.wire.headers import ORIGIN
from holdfast.http_api.wire.reply import Headers, Reply

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
    """The origins whose pages may read replies. `*` stands for every origin."""

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
