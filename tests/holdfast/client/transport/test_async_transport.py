import asyncio

import pytest
from aiohttp import web

from holdfast.client.errors import (
    ApiError,
    BadReply,
    ClientClosed,
    ConnectionFailed,
    Forbidden,
    Overloaded,
    Unauthenticated,
    UnknownTopic,
)
from holdfast.client.transport.async_transport import AsyncTransport
from holdfast.client.transport.requests import check_name
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.transport.target import Target, check_token
from tests.support.scripted_server import drop, problem, scripted_server

QUICK = RetryPolicy(give_up_after_s=10.0, first_pause_s=0.001, longest_pause_s=0.01)
NO_RETRY = RetryPolicy(give_up_after_s=0.0)


def transport_to(url: str, token: str | None = None) -> AsyncTransport:
    return AsyncTransport(Target.parse(url, token, None), QUICK)


async def ok(request: web.Request) -> web.Response:
    return web.json_response({"said": request.headers.get("Authorization")})


async def test_the_token_goes_along_with_every_request() -> None:
    async with scripted_server(ok) as server:
        transport = transport_to(server.url, token="secret")
        reply = await transport.request("GET", "/v1/info", params={"a": "b c&d", "n": 5})
        assert reply.json(dict) == {"said": "Bearer secret"}
        assert server.requests == ["GET /v1/info?a=b+c%26d&n=5"]
        await transport.close()


async def test_a_passing_refusal_is_tried_again_and_another_is_not() -> None:
    answers = [problem(503, "overloaded"), problem(404, "unknown-topic")]

    async def answer(request: web.Request) -> web.StreamResponse:
        return answers.pop(0)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(UnknownTopic):
            await transport.request("GET", "/v1/topics/x")
        assert len(server.requests) == 2
        await transport.close()


async def test_retries_end_with_the_last_refusal() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return problem(503, "overloaded", retry_after_s=7)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(Overloaded) as caught:
            await transport.request("GET", "/", retry=NO_RETRY)
        assert caught.value.retry_after_s == 7.0
        await transport.close()


@pytest.mark.parametrize("safe", [True, False])
async def test_a_lost_connection_is_tried_again_only_when_that_is_safe(safe: bool) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return drop(request) if len(server.requests) == 1 else await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        if safe:
            await transport.request("POST", "/", body=b"x", safe=True)
        else:
            with pytest.raises(ConnectionFailed) as caught:
                await transport.request("POST", "/", body=b"x", safe=False)
            assert caught.value.maybe_executed
        assert len(server.requests) == (2 if safe else 1)
        await transport.close()


async def test_a_body_of_blocks_is_sent_again_byte_for_byte() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.content_length == 6
        return drop(request) if len(server.requests) < 3 else await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        await transport.request("POST", "/", body=[b"one", b"two"])
        assert server.bodies == [b"onetwo"] * 3
        await transport.close()


async def test_a_broker_that_is_away_is_not_reached() -> None:
    async with scripted_server(ok) as server:
        url = server.url
    transport = transport_to(url)
    with pytest.raises(ConnectionFailed) as caught:
        await transport.request("GET", "/", retry=NO_RETRY)
    assert not caught.value.maybe_executed
    assert url in str(caught.value)
    await transport.close()


async def test_a_reply_that_ends_early_is_a_failed_connection() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Length": "100"})
        await response.prepare(request)
        await response.write(b"only this")
        drop(request)
        return response

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(ConnectionFailed):
            await transport.request("GET", "/", retry=NO_RETRY)
        await transport.close()


@pytest.mark.parametrize(
    ("status", "text", "error"),
    [
        (404, "<html>", BadReply),
        (302, "", BadReply),
        (500, "<html>", ApiError),
        (404, "[]", BadReply),
    ],
)
async def test_what_is_no_problem_of_a_broker_is_told_as_it_is(
    status: int, text: str, error: type[Exception]
) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(status=status, text=text, headers={"Location": "/elsewhere"})

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(error):
            await transport.request("GET", "/")
        assert len(server.requests) == 1
        await transport.close()


async def test_a_reply_of_another_shape_is_a_bad_reply() -> None:
    async with scripted_server(ok) as server:
        transport = transport_to(server.url)
        reply = await transport.request("GET", "/")
        with pytest.raises(BadReply):
            reply.json(list[int])
        with pytest.raises(BadReply):
            reply.msgpack(list[int])
        with pytest.raises(BadReply):
            reply.header_int("Holdfast-Next-Offset")
        await transport.close()


@pytest.mark.parametrize("safe", [True, False])
async def test_closing_ends_a_request_that_waits(safe: bool) -> None:
    asked = asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        await asyncio.Event().wait()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        waiting = asyncio.create_task(transport.request("POST", "/", wait_s=60, safe=safe))
        await asked.wait()
        await transport.close()
        await transport.close()
        with pytest.raises(ClientClosed):
            await waiting
        with pytest.raises(ClientClosed):
            await transport.request("GET", "/")


@pytest.mark.parametrize("url", ["127.0.0.1:8711", "ftp://x", "", "http://"])
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(ValueError, match="looks like http"):
        transport_to(url)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "ä", "a\n", "x" * 128, "%2f"])
def test_a_name_that_could_be_another_path_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="a topic is named"):
        check_name("topic", name)


@pytest.mark.parametrize("name", ["orders", "a.b_c-D9", "x" * 127, "...", "__state"])
def test_a_brokers_name_passes(name: str) -> None:
    assert check_name("topic", name) == name


@pytest.mark.parametrize("status", [401, 403])
async def test_who_is_not_let_in_is_told_at_once(status: int) -> None:
    type_, error = {401: ("unauthenticated", Unauthenticated), 403: ("forbidden", Forbidden)}[
        status
    ]

    async def answer(request: web.Request) -> web.StreamResponse:
        return problem(status, type_)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url, token="secret-token")
        with pytest.raises(error) as raised:
            await transport.request("GET", "/v1/info")
        await transport.close()
        assert len(server.requests) == 1
        assert "secret-token" not in f"{raised.value!r} {raised.value} {transport!r}"


@pytest.mark.parametrize("token", ["", " ", "two words", "line\nbreak", "zé", "a\x00b", "a\x7f"])
def test_a_token_that_is_none_is_refused_without_being_repeated(token: str) -> None:
    with pytest.raises(ValueError, match="no token has") as raised:
        transport_to("http://127.0.0.1:1", token=token)
    assert not token.strip() or token not in str(raised.value)


def test_blanks_around_a_token_are_not_part_of_it() -> None:
    assert check_token(" token\n") == "token"


@pytest.mark.parametrize("url", ["http://me:secret@broker:8711", "ftp://secret@broker"])
def test_an_address_with_a_password_is_refused_without_being_repeated(url: str) -> None:
    with pytest.raises(ValueError, match="give a token") as raised:
        transport_to(url)
    assert "secret" not in str(raised.value)


async def test_a_kept_connection_is_used_again() -> None:
    ports: list[int] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        assert request.transport is not None
        ports.append(request.transport.get_extra_info("peername")[1])
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        for _ in range(3):
            await transport.request("GET", "/")
        await transport.close()
    assert len(ports) == 3
    assert len(set(ports)) == 1


async def test_a_kept_connection_that_ends_unanswered_is_no_failure_of_a_safe_request() -> None:
    """For example, the broker closed the idle connection while the request was in transit."""

    async def answer(request: web.Request) -> web.StreamResponse:
        return drop(request) if len(server.requests) == 2 else await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        await transport.request("GET", "/")
        await transport.request("POST", "/", body=b"x", retry=NO_RETRY)
        assert server.requests == ["GET /", "POST /", "POST /"]
        await transport.close()


async def test_a_cancelled_request_closes_its_connection() -> None:
    asked, ended = asyncio.Event(), asyncio.Event()

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.set()
        try:
            await asyncio.Event().wait()  # the server cancels this when the connection ends
        finally:
            ended.set()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        waiting = asyncio.create_task(transport.request("GET", "/", wait_s=60))
        await asked.wait()
        waiting.cancel()
        with pytest.raises(asyncio.CancelledError):
            await waiting
        await asyncio.wait_for(ended.wait(), 10)
        await transport.close()


async def test_a_broker_that_stays_silent_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("holdfast.client.transport.requests.ANSWER_TIMEOUT_S", 0.01)

    async def answer(request: web.Request) -> web.StreamResponse:
        await asyncio.Event().wait()
        return await ok(request)

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        with pytest.raises(ConnectionFailed, match="no progress") as caught:
            await transport.request("GET", "/", retry=NO_RETRY)
        assert caught.value.maybe_executed
        await transport.close()


@pytest.mark.parametrize("size", [0, 1, 70_000, 3_000_000])
async def test_bodies_of_every_size_go_there_and_back(size: int) -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        return web.Response(body=server.bodies[-1])

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        sent = bytes(range(256)) * (size // 256 + 1)
        for body in (sent[:size], [sent[: size // 2], sent[size // 2 : size]]):
            reply = await transport.request("POST", "/", body=body)
            assert bytes(reply.body) == sent[:size]
        await transport.close()


async def test_a_chunked_reply_is_read() -> None:
    async def answer(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse()
        await response.prepare(request)
        for _ in range(3):
            await response.write(b"chunk")
        await response.write_eof()
        return response

    async with scripted_server(answer) as server:
        transport = transport_to(server.url)
        assert bytes((await transport.request("GET", "/")).body) == b"chunk" * 3
        await transport.close()
