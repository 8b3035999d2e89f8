"""The definition of a route: its path, its handler, and its entry in the OpenAPI document."""

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote

import msgspec

from holdfast.http_api.access.grants import NO_ACCESS, RequiredPermission
from holdfast.http_api.routing.begun import Begin
from holdfast.http_api.routing.call import NoParams
from holdfast.http_api.routing.codecs import STRUCTURED
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply

#: Takes a Call. The handler of an open route takes an OpenCall: it also gets requests before the
#: storage is open.
Handler = Callable[[Any], Awaitable[Reply]]


class Route(msgspec.Struct, frozen=True):
    """One method on one path. The handler's docstring describes it in the OpenAPI document."""

    method: str
    path: str
    handler: Handler
    params: type = NoParams
    """The dataclass of the query parameters."""
    body: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Media type -> type of the request's body, or None if the body is bytes."""
    replies: Mapping[int, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """Status -> media type -> type of the reply's body, or None if the body is bytes."""
    offers: Sequence[str] = STRUCTURED
    """The media types of the reply, preferred first, from which a client may choose.

    If it is empty, the client has no choice.
    """
    problems: Sequence[str] = ()
    """The problems that this route may return, in addition to those of every route."""
    headers: Mapping[str, str] = msgspec.field(default_factory=dict)
    """The name of each header of successful replies -> its JSON type."""
    is_open: bool = False
    """Whether the route answers in every phase of the broker, also during recovery."""
    access: RequiredPermission = NO_ACCESS
    """The permission that the caller needs. By default, the route refuses every caller."""
    is_page: bool = False
    """Whether the route serves a page for people. It is open, but requests count against the rate
    limits, and the OpenAPI document does not have it."""
    begin: Begin | None = None
    """Answers usual requests without a coroutine; None if the handler answers every request."""
    act: str = ""
    """The name of the administrative act in the audit log; "" if the route is not audited."""


def structured(type_: Any) -> dict[str, Any]:
    """Return media type -> `type_` for a body that may be JSON or msgpack."""
    return dict.fromkeys(STRUCTURED, type_)


#: At most this many paths are cached with their routes.
_CACHE_SIZE = 1024
#: Paths with more characters are not cached.
_SHORT_CHARACTERS = 256


class _Node(msgspec.Struct):
    """One node of the tree: the possible next parts, and the routes whose path ends here."""

    fixed: dict[str, "_Node"] = msgspec.field(default_factory=dict)
    parameter: "_Node | None" = None
    name: str = ""
    """The name of the parameter."""
    routes: dict[str, Route] = msgspec.field(default_factory=dict)
    """Method -> route. The route of GET also answers HEAD."""


class Router:
    """Finds routes. A route's path looks like "/v1/topics/{topic}"."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self._root = _Node()
        self._cached = lru_cache(_CACHE_SIZE)(self._walk)
        for route in routes:
            node = self._root
            for part in route.path.split("/")[1:]:
                node = _step(node, part)
            assert route.method not in node.routes, f"{route.method} {route.path} twice"
            node.routes[route.method] = route
            if route.method == "GET":
                node.routes["HEAD"] = route

    def find(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        """Return the route of a method and a raw path, and the decoded parameters in the path.

        Raises Problem: not-found, method-not-allowed.
        """
        is_short = len(path) <= _SHORT_CHARACTERS
        return (self._cached if is_short else self._walk)(method, path)

    def _walk(self, method: str, path: str) -> tuple[Route, Mapping[str, str]]:
        values: dict[str, str] = {}
        node = self._root
        for part in path.split("/")[1:]:
            following = node.fixed.get(part)
            if following is None:
                following = node.parameter
                if following is None or not part:
                    raise _not_found(path)
                values[node.name] = unquote(part)
            node = following
        route = node.routes.get(method)
        if route is None:
            raise _not_allowed(method, path, node) if node.routes else _not_found(path)
        return route, values


def _step(node: _Node, part: str) -> _Node:
    if not part.startswith("{"):
        return node.fixed.setdefault(part, _Node())
    name = part.strip("{}")
    if node.parameter is None:
        node.parameter, node.name = _Node(), name
    assert node.name == name, f"one place, two names: {node.name} and {name}"
    return node.parameter


def _not_found(path: str) -> Problem:
    return Problem(
        "not-found", f"there is nothing at {path[:200]!r}; /openapi.json lists every path"
    )


def _not_allowed(method: str, path: str, node: _Node) -> Problem:
    allowed = sorted(node.routes)
    problem = Problem(
        "method-not-allowed",
        f"{path[:200]!r} does not take {method[:20]}; use {' or '.join(allowed)}",
        allowed=allowed,
    )
    problem.headers.append(("Allow", ", ".join(allowed)))
    return problem
