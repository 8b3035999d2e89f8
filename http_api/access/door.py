"""The door of the API: who is asking, and may they? Belongs to the event loop.

Every request passes `admit`, before its body is read and before anything is said of what exists.
With authentication whoever shows no token is told nothing but that; so an unknown path is 401, too.
Without it everybody may do what any endpoint permits at all.
"""

from collections.abc import Callable, Iterable, Mapping
from time import time
from typing import TYPE_CHECKING, Any

from aiohttp import hdrs

from holdfast.http_api.access.browsers import ORIGIN, SEC_FETCH_SITE, is_from_another_site
from holdfast.http_api.access.grants import ANYONE, Door, Need, Principal, Verb
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.problems import Problem

if TYPE_CHECKING:
    from holdfast.http_api.request import Request
    from holdfast.http_api.route import Route
    from holdfast.http_api.router import Router

#: Whoever asks at an open door without showing who they are.
UNKNOWN = Principal("unknown", ())

_TOKEN_CHARACTERS = 4096


class Denied(Problem):
    """A request of somebody who is not known, or may not do this. `principal` is for the audit."""

    def __init__(self, slug: str, detail: str, principal: str, **members: object) -> None:
        super().__init__(slug, detail, **members)
        self.principal = principal


class Access:
    """Decides who may do what. `tokens` may be replaced at any time."""

    def __init__(
        self,
        *,
        is_required: bool = False,
        tokens: Tokens | None = None,
        now_s: Callable[[], float] = time,
    ) -> None:
        self.is_required = is_required
        self.tokens = tokens if tokens is not None else Tokens()
        self._now_s = now_s

    def admit(
        self, request: "Request", router: "Router"
    ) -> tuple["Route", Mapping[str, str], Principal]:
        """Return the route that the request takes, its path's parameters, and who asks.

        Raises Denied; and Problem (not-found, method-not-allowed), but only to those who are known.
        """
        principal, refusal = (ANYONE, None) if not self.is_required else self._identify(request)
        try:
            route, values = router.find(request.method, request.url.raw_path)
        except Problem:
            if refusal is not None:
                raise refusal from None
            raise
        if principal is ANYONE and route.access.door is not Door.SHUT:
            headers = request.headers
            if (ORIGIN in headers or SEC_FETCH_SITE in headers) and is_from_another_site(headers):
                raise _from_another_site()
            return route, values, principal
        if route.access.is_met(principal if refusal is None else None, values):
            return route, values, principal
        if refusal is not None and route.access.door is not Door.SHUT:
            raise refusal
        raise forbidden(principal, route.access, values)

    def check_still(self, principal: Principal) -> None:
        """Raise Denied if the token has been revoked, or has expired, since its request began."""
        if principal is ANYONE or self.tokens.still_hold(principal, self._now_s() * 1000):
            return
        raise _unauthenticated(
            "the token was revoked, or expired, while the request was held; ask for a new one",
            principal.name,
        )

    def _identify(self, request: "Request") -> tuple[Principal, Denied | None]:
        """Return who asks, or UNKNOWN and why they are not known."""
        given = request.headers.getall(hdrs.AUTHORIZATION, ())
        if not given:
            names = _certificate_names(request)
            found = self.tokens.find_certificate(names) if names else None
            if found is None:
                return UNKNOWN, _unauthenticated(
                    "this broker asks for a token; send it as 'Authorization: Bearer TOKEN'",
                    error=None,
                )
        else:
            scheme, _, text = given[0].partition(" ")
            if len(given) > 1 or scheme.lower() != "bearer" or not text:
                return UNKNOWN, _unauthenticated(
                    "the header Authorization is not one 'Bearer TOKEN'; send it so"
                )
            found = self.tokens.find(text) if len(text) <= _TOKEN_CHARACTERS else None
        if found is None:
            return UNKNOWN, _unauthenticated(
                "there is no such token (any more); ask whoever runs the broker for one"
            )
        token, principal = found
        if token.is_expired(self._now_s() * 1000):
            return UNKNOWN, _unauthenticated(
                "the token has expired; ask whoever runs the broker for a new one", principal.name
            )
        return principal, None


def forbidden(
    principal: Principal,
    need: Need,
    path: Mapping[str, str],
    *,
    topic: str | None = None,
) -> Denied:
    """Return the refusal of one who is known but lacks what `need` names, on the path's topic and
    group, or on `topic`. It says nothing about whether these exist."""
    if need.door is not Door.GRANTED:
        return Denied("forbidden", "nobody may do this", principal.name)
    return lacks(principal, need.verbs, topic=topic or path.get("topic"), group=path.get("group"))


def lacks(
    principal: Principal,
    verbs: Iterable[Verb],
    *,
    topic: str | None = None,
    group: str | None = None,
    what: str = "",
) -> Denied:
    """Return the refusal of one who lacks any of `verbs` on a topic and a group; `what` stands for
    them where they are not to be named."""
    allowed = " or ".join(verbs)
    on = [f"{kind} {name[:200]!r}" for kind, name in (("topic", topic), ("group", group)) if name]
    where = what or " and ".join(on)
    members: dict[str, Any] = {"verb": allowed}
    if topic is not None:
        members["topic"] = topic[:200]
    if group is not None:
        members["group"] = group[:200]
    return Denied(
        "forbidden",
        f"this needs {allowed}{f' on {where}' if where else ''}, which the token does not grant; "
        "ask whoever runs the broker for one that does",
        principal.name,
        **members,
    )


def _from_another_site() -> Denied:
    return Denied(
        "forbidden",
        "a web page of another site sent this by way of a browser, and this broker asks nobody for "
        "a token; if pages are to use it, turn access.authentication on",
        ANYONE.name,
    )


def _unauthenticated(
    detail: str, principal: str = UNKNOWN.name, *, error: str | None = "invalid_token"
) -> Denied:
    denied = Denied("unauthenticated", detail, principal)
    challenge = 'Bearer realm="holdfast"' + (f', error="{error}"' if error else "")
    denied.headers.append((hdrs.WWW_AUTHENTICATE, challenge))
    return denied


def _certificate_names(request: "Request") -> list[str]:
    """Return the names in the certificate that the client showed and the broker has verified:
    those of subjectAltName, then the common name. None on a connection without one."""
    transport = request.connection.transport
    certificate = transport.get_extra_info("peercert") if transport is not None else None
    if not certificate:
        return []
    names = [name for _, name in certificate.get("subjectAltName", ())]
    for part in certificate.get("subject", ()):
        names += [value for kind, value in part if kind == "commonName"]
    return names
