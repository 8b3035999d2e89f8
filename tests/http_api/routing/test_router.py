import pytest

from holdfast.http_api.routes import ROUTES
from holdfast.http_api.routing.router import Route, Router
from holdfast.http_api.wire.problems import Problem

ROUTER = Router(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: f"{route.method} {route.path}")
def test_every_route_is_found_by_its_own_path(route: Route) -> None:
    path = route.path.replace("{", "a-").replace("}", "")
    found, values = ROUTER.find(route.method, path)
    assert found is route
    assert values == {name: f"a-{name}" for name in values}


@pytest.mark.parametrize(
    ("path", "values"),
    [
        ("/v1/topics/a%2Fb/queues/0/messages", {"topic": "a/b", "queue": "0"}),
        ("/v1/topics/%2e%2e/queues/%00/messages", {"topic": "..", "queue": "\0"}),
        ("/v1/topics/%FF/queues/0/messages", {"topic": "\ufffd", "queue": "0"}),
        ("/v1/topics/%zz/queues/0/messages", {"topic": "%zz", "queue": "0"}),
    ],
)
def test_a_path_is_split_before_it_is_decoded(path: str, values: dict[str, str]) -> None:
    assert ROUTER.find("GET", path)[1] == values


def test_a_fixed_part_takes_precedence_over_a_parameter() -> None:
    assert ROUTER.find("GET", "/v1/topics/t/messages/search")[0].path.endswith("/search")


@pytest.mark.parametrize(
    "path",
    ["", "/", "/v1", "/v1/", "/v1/topics/", "/v1/topics//messages", "/v1/topics/t/messages/",
     "/v1/topics/t/messages/x", "/v1/%74opics", "v1/topics/x/y", "//healthz", "/healthz/"],
)  # fmt: skip
def test_an_unknown_path_is_not_found(path: str) -> None:
    with pytest.raises(Problem) as caught:
        ROUTER.find("GET", path)
    assert caught.value.slug == "not-found"


def test_an_unsupported_method_gets_the_supported_ones() -> None:
    with pytest.raises(Problem) as caught:
        ROUTER.find("DELETE", "/v1/topics/t/messages")
    assert caught.value.slug == "method-not-allowed"
    assert caught.value.headers == [("Allow", "GET, HEAD, POST")]


def test_head_uses_the_route_of_get() -> None:
    assert ROUTER.find("HEAD", "/healthz") == ROUTER.find("GET", "/healthz")
