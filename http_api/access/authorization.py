"""Authentication and authorization: who calls, and may the caller do this? Used on the event loop.

`app.py` calls `Access.identify`, finds the route, and calls `Access.check`, before the request's
body is read, and before a reply can reveal what exists. With authentication, a caller without a
valid token gets 401 for every path that needs a token, and for unknown paths, so it cannot find out
which paths exist. Without authentication, every caller may use every endpoint, except those that
are closed to everyone.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence
from time import time
from typing import Any

from holdfast.http_api.access.browsers import (
    CrossOrigin,
    is_from_another_site,
    is_of_same_origin,
)
from holdfast.http_api.access.grants import (
    ANONYMOUS,
    GROUP_VERBS,
    Exposure,
    Principal,
    RequiredPermission,
    Verb,
)
from holdfast.http_api.access.hosts import AllowedHosts
from holdfast.http_api.access.tokens import Tokens
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.request import ORIGIN, SEC_FETCH_SITE, Request

#: The caller of a request that was not authenticated.
UNKNOWN = Principal("unknown", ())

_TOKEN_CHARACTERS = 4096


class Denied(Problem):
    """The caller is not authenticated, or lacks a permission.

    `principal` is the name of the caller for the audit log.
    """

    def __init__(self, slug: str, detail: str, principal: str, **members: object) -> None:
        super().__init__(slug, detail, **members)
        self.principal = principal


class Access:
    """Decides which caller may do what. `tokens` may be replaced at any time."""

    def __init__(
        self,
        *,
        is_required: bool = False,
        tokens: Tokens | None = None,
        hosts: AllowedHosts | None = None,
        now_s: Callable[[], float] = time,
    ) -> None:
        self.is_required = is_required
        self.tokens = tokens if tokens is not None else Tokens()
        self.hosts = hosts
        """The host names that requests may use if authentication is off. None allows every name."""
        self._now_s = now_s

    def identify(self, request: Request) -> tuple[Principal, Denied | None]:
        """Return the caller and None, or UNKNOWN and the error if authentication failed.

        Without authentication, the caller is ANONYMOUS, and Denied is raised if the request's host
        name is not allowed. A caller whom another protocol has authenticated is not asked again.
        """
        if not self.is_required:
            self.check_host(request.headers)
            return ANONYMOUS, None
        known: Principal | None = request.peer.principal
        if known is not None:
            is_valid = self.is_still_valid(known)
            return (known, None) if is_valid else (UNKNOWN, _expired(known))
        given = request.headers.getall(hdrs.AUTHORIZATION, ())
        if not given:
            return self.identify_certificate(certificate_names(request.peer.certificate))
        scheme, _, text = given[0].partition(" ")
        if len(given) > 1 or scheme.lower() != "bearer" or not text:
            return UNKNOWN, _unauthenticated(
                "the header Authorization is not one 'Bearer TOKEN'; send it so"
            )
        return self.identify_token(text)

    def identify_token(self, text: str) -> tuple[Principal, Denied | None]:
        """Return the caller with the token `text` and None, or UNKNOWN and why it has no access.

        Without authentication, every caller is ANONYMOUS.
        """
        if not self.is_required:
            return ANONYMOUS, None
        found = self.tokens.find(text) if len(text) <= _TOKEN_CHARACTERS else None
        if found is None:
            return UNKNOWN, _unauthenticated(
                "the broker does not know this token, or it was deleted; "
                "ask the broker's operator for one"
            )
        token, principal = found
        if token.is_expired(self._now_s() * 1000):
            return UNKNOWN, _expired(principal)
        return principal, None

    def identify_certificate(self, names: Sequence[str]) -> tuple[Principal, Denied | None]:
        """Return the caller and None, or UNKNOWN and why the caller has no access.

        `names` are those of the caller's verified certificate (`certificate_names`), in the order
        in which they are looked up. Without authentication, every caller is ANONYMOUS.
        """
        if not self.is_required:
            return ANONYMOUS, None
        found = self.tokens.find_certificate(names) if names else None
        if found is None:
            return UNKNOWN, _unauthenticated(
                "this broker asks for a token; send it as 'Authorization: Bearer TOKEN'", error=None
            )
        token, principal = found
        if token.is_expired(self._now_s() * 1000):
            return UNKNOWN, _expired(principal)
        return principal, None

    def check(
        self,
        principal: Principal,
        refusal: Denied | None,
        need: RequiredPermission,
        path: Mapping[str, str],
        headers: Mapping[str, str],
        pages: CrossOrigin | None = None,
    ) -> None:
        """Raise Denied if a caller may not use an endpoint with these parameters in the path.

        `principal` and `refusal` are the result of `identify`. `pages` has the origins whose web
        pages are admitted if authentication is off.
        """
        if need.exposure is Exposure.EVERYWHERE:
            return
        if principal is ANONYMOUS and need.exposure is not Exposure.NONE:
            if (ORIGIN in headers or SEC_FETCH_SITE in headers) and is_from_another_site(headers):
                origin = headers.get(ORIGIN)
                if origin is None or pages is None or not pages.allows_by_name(origin):
                    raise _from_another_site(origin)
        elif not need.is_met_by(principal if refusal is None else None, path):
            if refusal is not None and need.exposure is not Exposure.NONE:
                raise refusal
            raise forbidden(principal, need, path)

    def check_page(
        self, headers: Mapping[str, str], pages: CrossOrigin | None, *, is_by_certificate: bool
    ) -> None:
        """Raise Denied if a web page of another origin opens a WebSocket, unless it is admitted.

        Browsers do not ask the broker before they open a WebSocket (CORS), and they show a client
        certificate for the page. So if the caller is known by its certificate, the origin must be
        listed by name. Without authentication, `check` refuses such pages.
        """
        origin = headers.get(ORIGIN)
        if origin is None or not self.is_required or is_of_same_origin(headers):
            return
        if pages is not None and (
            pages.allows_by_name(origin) if is_by_certificate else pages.allows(origin)
        ):
            return
        if is_from_another_site(headers):
            raise Denied(
                "forbidden",
                f"a web page of {origin[:200]!r} opens a WebSocket; to admit such pages, add their "
                "origin to http_api.cors_origins",
                UNKNOWN.name,
            )

    def principal_of(self, request: Request) -> Principal:
        """Return the caller of a request; UNKNOWN if the caller is not authenticated."""
        return self.identify(request)[0] if self.is_required else UNKNOWN

    def check_host(self, headers: Mapping[str, str]) -> None:
        """Raise Denied if the Host header has a name that is not allowed.

        With authentication, every name is allowed. A request without a Host header does not come
        from a browser, so it is admitted.
        """
        if self.is_required:
            return
        host = headers.get(hdrs.HOST)
        if self.hosts is not None and host is not None and not self.hosts.admit(host):
            raise Denied(
                "misdirected-request",
                "authentication is off, so this broker accepts only this machine's host names, "
                f"and {host[:200]!r} is none of them; use an address, add the host to "
                "access.allowed_hosts, or turn on access.authentication",
                ANONYMOUS.name,
            )

    def check_still_valid(self, principal: Principal) -> None:
        """Raise Denied if the caller's token was revoked or has expired since its request began."""
        if self.is_still_valid(principal):
            return
        raise _unauthenticated(
            "the token was revoked, or expired, while the request was held; ask for a new one",
            principal.name,
        )

    def is_still_valid(self, principal: Principal) -> bool:
        """Return whether the caller's token still exists and has not expired.

        Without authentication, return True.
        """
        return principal is ANONYMOUS or self.tokens.is_still_valid(principal, self._now_s() * 1000)

    def expires_ms(self, principal: Principal) -> int | None:
        """Return when the caller's token expires, in milliseconds since 1970; None if never."""
        return None if principal is ANONYMOUS else self.tokens.expires_ms(principal)

    def may_subscribe(self, principal: str, topic: str, group: str) -> bool:
        """Return whether the principal of this name may now consume a topic with a group.

        Return False if the principal's token was revoked or has expired.
        """
        if not self.is_required:
            return True
        found = self.tokens.find_principal(principal, self._now_s() * 1000)
        return found is not None and found.may(GROUP_VERBS, topic, group)


def certificate_names(certificate: Mapping[str, Any] | None) -> list[str]:
    """Return the names in a verified certificate: subjectAltName, then the common name.

    `certificate` is the result of `ssl.SSLSocket.getpeercert`. Without it, return an empty list.
    """
    if not certificate:
        return []
    names = [name for _, name in certificate.get("subjectAltName", ())]
    for part in certificate.get("subject", ()):
        names += [value for kind, value in part if kind == "commonName"]
    return names


def check_may_create(principal: Principal, topic: str) -> None:
    """Raise Denied if a caller may not create a topic, which sending to it would create."""
    if not principal.may(("admin",), topic):
        raise missing_grant(principal, ("admin",), topic=topic)


def forbidden(
    principal: Principal,
    need: RequiredPermission,
    path: Mapping[str, str],
) -> Denied:
    """Return the error for an authenticated caller who lacks the permission `need`.

    The permission is for the topic and the group in the path. The error does not reveal whether
    they exist.
    """
    if need.exposure is not Exposure.GRANTED:
        return Denied("forbidden", "no caller may do this", principal.name)
    return missing_grant(principal, need.verbs, topic=path.get("topic"), group=path.get("group"))


def missing_grant(
    principal: Principal,
    verbs: Iterable[Verb],
    *,
    topic: str | None = None,
    group: str | None = None,
    what: str = "",
) -> Denied:
    """Return the error for a caller who has none of `verbs` on a topic and a group.

    If the names must not be revealed, `what` replaces them in the error's text.
    """
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
        "ask the broker's operator for one that does",
        principal.name,
        **members,
    )


def _from_another_site(origin: str | None) -> Denied:
    of = f"of {origin[:200]!r}" if origin else "of another site"
    return Denied(
        "forbidden",
        f"a web page {of} sent this by way of a browser, and authentication is off; to admit such "
        "pages, add their origin to http_api.cors_origins",
        ANONYMOUS.name,
    )


def _unauthenticated(
    detail: str, principal: str = UNKNOWN.name, *, error: str | None = "invalid_token"
) -> Denied:
    denied = Denied("unauthenticated", detail, principal)
    challenge = 'Bearer realm="holdfast"' + (f', error="{error}"' if error else "")
    denied.headers.append((hdrs.WWW_AUTHENTICATE, challenge))
    return denied


def _expired(principal: Principal) -> Denied:
    return _unauthenticated(
        "the token has expired; ask the broker's operator for a new one", principal.name
    )
