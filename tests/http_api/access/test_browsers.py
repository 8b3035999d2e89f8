"""H4: web pages of other origins that may use the broker."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.config import ConfigError, load_config
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.hosts import AllowedHosts
from tests.support.clients.raw_http import raw_connection
from tests.support.clients.tokens import access_of, let_in
from tests.support.servers.api_server import Api, running_api

CONSOLE = "https://console.example"
PATH = "/v1/topics/orders/messages"
PREFLIGHT = {
    "Origin": CONSOLE,
    "Access-Control-Request-Method": "POST",
    "Access-Control-Request-Headers": "authorization,content-type",
}


@pytest.fixture
async def api() -> AsyncIterator[Api]:
    async with running_api(cors_origins=f"{CONSOLE}, http://dev.example:3000") as api:
        await api.store.topics.create("orders", queues=1)
        yield api


async def test_without_configuration_replies_have_no_cors_headers() -> None:
    async with running_api() as api:
        await api.store.topics.create("orders", queues=1)
        answer = await api.ask("OPTIONS", PATH, None, **PREFLIGHT)
        assert answer.status == 405
        refused = await api.ask("POST", PATH, b"x", Origin=CONSOLE)
        assert (refused.status, refused.problem) == (403, "forbidden")
        assert "http_api.cors_origins" in refused.json()["detail"]
        assert CONSOLE in refused.json()["detail"]
        for each in (answer, refused):
            assert not [name for name in each.headers if name.startswith("Access-Control")]


@pytest.mark.parametrize("has_tokens", [False, True])
async def test_a_preflight_needs_no_token(api: Api, has_tokens: bool) -> None:
    if has_tokens:
        api.context.http.access = access_of()
    answer = await api.ask("OPTIONS", PATH, None, **PREFLIGHT)
    assert (answer.status, answer.body) == (200, b"")
    assert answer.headers["Access-Control-Allow-Origin"] == CONSOLE
    assert "POST" in answer.headers["Access-Control-Allow-Methods"]
    assert answer.headers["Access-Control-Allow-Headers"] == "authorization,content-type"
    assert answer.headers["Vary"] == "Origin"
    assert "Access-Control-Allow-Credentials" not in answer.headers
    private = {**PREFLIGHT, "Access-Control-Request-Private-Network": "true"}
    answer = await api.ask("OPTIONS", PATH, None, **private)
    assert answer.headers["Access-Control-Allow-Private-Network"] == "true"


@pytest.mark.parametrize(
    "wrong",
    [
        b"Origin: https://console.example\r\n",
        b"Transfer-Encoding: gzip, chunked\r\n",
    ],
)
async def test_the_framing_of_a_preflight_is_checked(api: Api, wrong: bytes) -> None:
    async with raw_connection(api.server.port) as connection:
        await connection.send(
            b"OPTIONS %b HTTP/1.1\r\nHost: localhost\r\nOrigin: https://console.example\r\n"
            b"Access-Control-Request-Method: POST\r\n%b\r\n" % (PATH.encode(), wrong)
        )
        status, headers, body = await connection.answer()
    assert (status, headers["connection"]) == (400, "close")
    assert b"malformed-request" in body


async def test_a_preflight_is_counted_and_its_host_name_is_checked(api: Api) -> None:
    api.context.http.access = Access(hosts=AllowedHosts())
    before = await answered(api)
    assert (await api.ask("OPTIONS", PATH, None, **PREFLIGHT)).status == 200
    assert await answered(api) == before + 2  # and the request for the metrics
    evil = await api.ask("OPTIONS", PATH, None, **PREFLIGHT, Host="evil.example")
    assert (evil.status, evil.problem) == (421, "misdirected-request")


async def answered(api: Api) -> int:
    lines = (await api.get("/metrics")).body.decode().splitlines()
    found = [each for each in lines if each.startswith("holdfast_http_request_seconds_count{")]
    return sum(int(float(each.split()[-1])) for each in found)


async def test_a_named_origins_page_publishes_without_a_token_and_reads_the_answer(
    api: Api,
) -> None:
    headers = {"Origin": CONSOLE, "Sec-Fetch-Site": "cross-site"}
    answer = await api.ask("POST", PATH, b"x", Content_Type="text/plain", **headers)
    assert answer.status == 200
    assert answer.headers["Access-Control-Allow-Origin"] == CONSOLE
    answer = await api.get("/v1/topics/orders/queues/0/messages?offset=0", **headers)
    assert (answer.status, answer.headers["Holdfast-Next-Offset"]) == (200, "1")
    assert "Holdfast-Next-Offset" in answer.headers["Access-Control-Expose-Headers"]


async def test_a_page_can_read_errors_too(api: Api) -> None:
    answer = await api.get("/v1/topics/none", Origin=CONSOLE)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (404, CONSOLE)
    api.context.http.access = access_of()
    answer = await api.get("/v1/topics/none", Origin=CONSOLE)
    assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (401, CONSOLE)


@pytest.mark.parametrize(
    "origin", ["https://evil.example", "https://console.example.evil.example", "null",
               "http://console.example", "https://console.example:444", ""],
)  # fmt: skip
async def test_other_origins_get_no_cors_headers(api: Api, origin: str) -> None:
    asked = {**PREFLIGHT, "Origin": origin}
    answer = await api.ask("OPTIONS", PATH, None, **asked)
    assert answer.status == 405
    assert "Access-Control-Allow-Origin" not in answer.headers
    answer = await api.ask("POST", PATH, b"x", Origin=origin)
    assert answer.status == 403
    assert "Access-Control-Allow-Origin" not in answer.headers
    assert answer.headers["Vary"] == "Origin"


async def test_with_the_wildcard_every_origin_needs_a_token() -> None:
    async with running_api(cors_origins="*") as api:
        await api.store.topics.create("orders", queues=1)
        answer = await api.ask("POST", PATH, b"x", Origin="https://any.example")
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (403, "*")
        header = let_in(api, "all")
        answer = await api.ask("POST", PATH, b"x", Origin="https://any.example", **header)
        assert (answer.status, answer.headers["Access-Control-Allow-Origin"]) == (200, "*")


@pytest.mark.parametrize("name", ["Origin", "Sec-Fetch-Site", "origin"])
async def test_two_lines_of_a_browsers_header_are_refused(name: str, api: Api) -> None:
    """S5: whichever of the two lines the broker used, the other one could be the true one."""
    async with raw_connection(api.server.port) as connection:
        lines = f"{name}: http://localhost\r\n{name.upper()}: https://evil.example\r\n"
        await connection.send(f"GET /v1/topics HTTP/1.1\r\nHost: x\r\n{lines}\r\n".encode())
        status, _, body = await connection.answer()
        assert (status, b"malformed-request" in body) == (400, True)


@pytest.mark.parametrize("text", ["console.example", "https://a.example/path", "https://a b", "x"])
def test_an_invalid_list_of_origins_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError, match=r"http_api\.cors_origins"):
        load_config(file=None, environ={}, flags={"http_api.cors_origins": text})
