"""Finds the route of a request by its method and the parts of its path.

The routes form a tree of path parts. A fixed part takes precedence over a parameter. A path is
split at its slashes before it is percent-decoded. So an encoded slash becomes part of a name, and
the check of the name refuses it.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from urllib.parse import unquote

from holdfast.http_api.routing.route import Route
from holdfast.http_api.wire.problems import Problem

#: At most this many paths are cached with their routes.
_CACHE_SIZE = 1024
#: Paths with more characters are not cached.
_SHORT_CHARACTERS = 256


@dataclass(slots=True)
class _Node:
    """One node of the tree: the possible next parts, and the routes whose path ends here."""

    fixed: dict[str, "_Node"] = field(default_factory=dict)
    parameter: "_Node | None" = None
    name: str = ""
    """The name of the parameter."""
    routes: dict[str, Route] = field(default_factory=dict)
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
