"""Token buckets: a second's worth at once, then the rate; debts; and a limited memory."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner
from msgspec.structs import replace

from holdfast.cli.main import main
from holdfast.commitlog.errors import MemoryLow
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.hosts import AllowedHosts
from holdfast.http_api.access.token_format import (
    FORMAT,
    FORMAT_WITH_RATES,
    DamagedTokens,
    TokenFileContent,
    decode_tokens,
    encode_tokens,
)
from holdfast.http_api.limits.token_buckets import PublishRate, RateLimit, Rates, retry_after_s
from tests.support.clients.raw_http import RawConnection, raw_connection
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Answer, Api, running_api

TEN = Rates(10, 0)


def refused_for(refusal: tuple[str, float] | None, name: str, seconds: float) -> None:
    assert refusal is not None
    assert refusal[0] == name
    assert refusal[1] == pytest.approx(seconds)


def test_requests_of_one_second_may_come_at_once() -> None:
    limit = RateLimit(10, 0)
    assert [limit.ask("one", 5.0) for _ in range(10)] == [None] * 10
    refused_for(limit.ask("one", 5.0), "max_requests_per_s_per_client", 0.1)
    assert limit.ask("one", 5.09) is not None
    assert limit.ask("one", 5.101) is None
    assert limit.ask("one", 5.11) is not None


def test_each_client_has_its_own_tokens() -> None:
    limit = RateLimit(1, 0)
    assert limit.ask("one", 0.0) is None
    assert limit.ask("one", 0.0) is not None
    assert limit.ask("another", 0.0) is None


@pytest.mark.parametrize(("size", "is_over"), [(999, False), (1000, False), (1001, True)])
def test_bytes_may_leave_a_debt_that_the_next_request_waits_for(size: int, is_over: bool) -> None:
    limit = RateLimit(0, 1000)
    assert limit.ask("one", 0.0) is None
    limit.charge("one", size, 0.0)
    assert (limit.ask("one", 0.0) is not None) is is_over


@pytest.mark.parametrize(("messages", "is_refused"), [(9, False), (10, True), (11, True)])
def test_the_messages_of_one_second_are_limited(messages: int, is_refused: bool) -> None:
    rate = PublishRate()
    assert rate.ask("a", TEN, 0.0) is None
    rate.charge("a", TEN, messages, 1, 0.0)
    assert (rate.ask("a", TEN, 0.0) is not None) is is_refused


def test_a_debt_is_paid_off_at_the_rate() -> None:
    limit = RateLimit(0, 1000)
    limit.charge("one", 5000, 0.0)
    refused_for(limit.ask("one", 1.0), "max_bytes_per_s_per_client", 3.0)
    assert limit.ask("one", 3.99) is not None
    assert limit.ask("one", 4.01) is None
    rate = PublishRate()
    rate.charge("a", TEN, 30, 1, 0.0)
    refused_for(rate.ask("a", TEN, 0.0), "publish_messages_per_s", 2.1)
    refused_for(rate.ask("a", TEN, 2.0), "publish_messages_per_s", 0.1)
    assert rate.ask("a", TEN, 2.1 + 1e-9) is None


def test_published_bytes_are_limited_separately() -> None:
    rate, rates = PublishRate(), Rates(0, 1000)
    rate.charge("a", rates, 10**6, 1000, 0.0)
    refused_for(rate.ask("a", rates, 0.0), "publish_bytes_per_s", 0.001)
    assert rate.ask("a", rates, 0.002) is None


def test_a_client_saves_at_most_the_tokens_of_one_second() -> None:
    limit = RateLimit(2, 100)
    limit.ask("one", 0.0)
    limit.charge("one", 150, 0.0)
    assert [limit.ask("one", 1000.0) for _ in range(3)][:2] == [None, None]
    assert limit.ask("one", 1000.0) is not None


def test_without_limits_all_is_allowed() -> None:
    limit = RateLimit(0, 0)
    limit.charge("one", 10**12, 0.0)
    assert [limit.ask("one", 0.0) for _ in range(1000)] == [None] * 1000


def test_a_clock_that_goes_back_adds_no_tokens() -> None:
    limit, rate = RateLimit(1, 0), PublishRate()
    assert limit.ask("one", 10.0) is None
    assert limit.ask("one", 9.0) is not None
    rate.charge("a", TEN, 20, 1, 10.0)
    assert rate.ask("a", TEN, 5.0) is not None
    assert rate.ask("a", TEN, 5.5) is not None


def test_clients_with_full_buckets_are_forgotten() -> None:
    limit = RateLimit(10, 1000)
    for number in range(500):
        limit.ask(f"client-{number}", number / 1000)
    assert len(limit) > 90
    for number in range(400):
        limit.ask("one", 100.0 + number)
    assert len(limit) == 1
    rate = PublishRate()
    rate.charge("a", TEN, 20, 1, 0.0)
    assert rate.ask("b", TEN, 0.0) is None
    assert rate.ask("a", TEN, 5.0) is None
    assert len(rate) == 0


@pytest.mark.parametrize("clients", [9, 10, 11, 1000])
def test_the_number_of_remembered_clients_is_limited(clients: int) -> None:
    limit, rate = RateLimit(1, 1, max_clients=10), PublishRate(max_clients=10)
    for number in range(clients):
        assert limit.ask(f"client-{number}", 0.0) is None
        limit.charge(f"client-{number}", 10**6, 0.0)
        rate.charge(f"client-{number}", TEN, 20, 1, 5.0)
    assert len(limit) == len(rate) == min(clients, 10)


@pytest.mark.parametrize(
    ("seconds", "header"), [(0.0, 1), (0.2, 1), (1.0, 1), (1.01, 2), (59.5, 60)]
)
def test_retry_after_is_whole_seconds_and_never_too_few(seconds: float, header: int) -> None:
    assert retry_after_s(seconds) == header


# -- over HTTP -----------------------------------------------------------------------------

GET = b"GET /v1/info HTTP/1.1\r\nHost: x\r\n\r\n"


class Clock:
    now_s = 1000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture(autouse=True)
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """Stop the clock: clients regain no budget on a slow machine."""
    clock = Clock()
    monkeypatch.setattr("holdfast.http_api.limits.rate_limiter.monotonic", clock)
    return clock


async def test_requests_over_the_limit_are_429_and_others_are_not(clock: Clock) -> None:
    async with (
        running_api(max_requests_per_s_per_client=2) as api,
        raw_connection(api.server.port, address="127.0.0.2") as greedy,
    ):
        found = []
        for _ in range(4):
            await greedy.send(GET)
            found.append(await greedy.answer())
        assert [status for status, _, _ in found] == [200, 200, 429, 429]
        _, headers, body = found[-1]
        assert headers["retry-after"] == "1"
        assert b"/problems/rate-limited" in body
        assert b'"limit_name":"max_requests_per_s_per_client"' in body
        assert (await api.get("/v1/info")).status == 200
        # Health and metrics are for monitoring, and are always answered.
        await greedy.send(GET.replace(b"/v1/info", b"/healthz"))
        assert (await greedy.answer())[0] == 200
        clock.now_s += 0.5
        assert [await status_of(greedy) for _ in range(2)] == [200, 429]


async def status_of(greedy: RawConnection) -> int:
    await greedy.send(GET)
    return (await greedy.answer())[0]


@pytest.mark.parametrize("chunked", [False, True])
async def test_bytes_of_bodies_count(chunked: bool) -> None:
    async with (
        running_api(max_bytes_per_s_per_client=100_000) as api,
        raw_connection(api.server.port, address="127.0.0.2") as greedy,
    ):
        await api.store.topics.create("orders")
        head = b"POST /v1/topics/orders/messages?queue=0 HTTP/1.1\r\nHost: x\r\n"
        body = b"x" * 500_000
        if chunked:
            sent = head + b"Transfer-Encoding: chunked\r\n\r\n7a120\r\n" + body + b"\r\n0\r\n\r\n"
        else:
            sent = head + b"Content-Length: 500000\r\n\r\n" + body
        await greedy.send(sent)
        assert (await greedy.answer())[0] == 200
        await greedy.send(GET)
        status, headers, found = await greedy.answer()
        assert (status, headers["retry-after"]) in ((429, "4"), (429, "5"))
        assert b'"limit_name":"max_bytes_per_s_per_client"' in found
        assert (await api.get("/v1/info")).status == 200


async def test_bytes_of_replies_count() -> None:
    async with (
        running_api(max_bytes_per_s_per_client=100_000) as api,
        raw_connection(api.server.port, address="127.0.0.2") as greedy,
    ):
        await api.store.topics.create("orders")
        await api.publish("orders", {"body": "x" * 500_000, "queue": 0})
        await greedy.send(
            b"GET /v1/topics/orders/queues/0/messages?offset=0 HTTP/1.1\r\nHost: x\r\n\r\n"
        )
        assert (await greedy.answer())[0] == 200
        await greedy.send(GET)
        assert (await greedy.answer())[0] == 429


async def test_a_refused_request_gets_no_100_continue() -> None:
    async with (
        running_api(max_requests_per_s_per_client=1) as api,
        raw_connection(api.server.port) as one,
    ):
        await one.send(GET)
        assert (await one.answer())[0] == 200
        await one.send(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\n"
            b"Content-Length: 10000000\r\n\r\n"
        )
        status, headers, _ = await one.answer()
        assert (status, headers["connection"]) == (429, "close")
        assert api.context.http.connections.arriving.total_bytes == 0


@pytest.mark.parametrize(
    ("asked", "status"),
    [
        (b"GET /none HTTP/1.1\r\nHost: localhost\r\n\r\n", 404),
        (b"DELETE /v1/info HTTP/1.1\r\nHost: localhost\r\n\r\n", 405),
        (b"GET /v1/info HTTP/1.1\r\nHost: evil.example\r\n\r\n", 421),
        (b"GET /v1/info HTTP/1.1\r\nHost: localhost\r\nOrigin: http://evil.example\r\n\r\n", 403),
        (b"GET /v1/info?none=1 HTTP/1.1\r\nHost: localhost\r\n\r\n", 400),
        (
            b"OPTIONS /v1/info HTTP/1.1\r\nHost: localhost\r\nOrigin: https://a.example\r\n"
            b"Access-Control-Request-Method: GET\r\n\r\n",
            200,
        ),
    ],
)  # fmt: skip
async def test_refused_requests_are_charged_too(asked: bytes, status: int) -> None:
    async with running_api(
        max_requests_per_s_per_client=2, cors_origins="https://a.example"
    ) as api:
        api.context.http.access = Access(hosts=AllowedHosts())
        async with raw_connection(api.server.port, address="127.0.0.2") as greedy:
            found = []
            for _ in range(3):
                await greedy.send(asked)
                found.append((await greedy.answer())[0])
        assert found == [status, status, 429]
        assert (await api.get("/v1/info")).status == 200


async def test_bytes_of_refused_requests_are_charged() -> None:
    async with (
        running_api(max_bytes_per_s_per_client=100_000) as api,
        raw_connection(api.server.port, address="127.0.0.2") as greedy,
    ):
        await api.store.topics.create("orders")
        await greedy.send(
            b"POST /v1/topics/orders/messages HTTP/1.1\r\nHost: x\r\n"
            b"Content-Type: application/json\r\nContent-Length: 500000\r\n\r\n" + b"x" * 500_000
        )
        assert (await greedy.answer())[0] == 400
        assert await status_of(greedy) == 429


async def test_a_wrong_token_is_charged_by_address_and_a_right_one_by_token() -> None:
    async with (
        running_api(max_requests_per_s_per_client=2) as api,
        raw_connection(api.server.port) as one,
    ):
        token, text = make_token("consume:=orders")
        api.context.http.access = access_of(token)
        wrong = GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer x\r\n\r\n")
        right = GET.replace(b"\r\n\r\n", b"\r\nAuthorization: Bearer %b\r\n\r\n" % text.encode())
        forbidden = right.replace(b"GET /v1/info", b"GET /v1/topics/none")
        unknown = right.replace(b"/v1/info", b"/none")
        found = []
        for each in (wrong, wrong, wrong, forbidden, unknown, right, forbidden):
            await one.send(each)
            found.append((await one.answer())[0])
        assert found == [401, 401, 429, 403, 404, 429, 429]


# -- in a token's record -----------------------------------------------------------------------


@pytest.mark.parametrize("rates", [(5, None), (None, 7), (0, 0), (1, 2**53)])
def test_a_tokens_rates_are_kept_in_a_file_of_the_second_version(
    rates: tuple[int | None, int | None],
) -> None:
    plain, _ = make_token("all")
    limited, _ = make_token("publish:*")
    limited = replace(limited, publish_rates=rates)
    data = encode_tokens(TokenFileContent(3, (plain, limited)))
    assert data.startswith(FORMAT_WITH_RATES + b" ")
    assert decode_tokens(data).tokens == (plain, limited)
    # Older code compares the whole first line, and reports the version that it found.
    assert not data.startswith(FORMAT)


def test_a_file_without_rates_keeps_the_first_version() -> None:
    plain, _ = make_token("all")
    data = encode_tokens(TokenFileContent(3, (plain,)))
    assert data.startswith(FORMAT + b" ")
    assert b"per_s" not in data
    assert decode_tokens(data).tokens == (plain,)


def test_a_rate_below_0_is_damage() -> None:
    limited, _ = make_token("publish:*")
    limited = replace(limited, publish_rates=(-1, None))
    with pytest.raises(DamagedTokens, match="below 0"):
        decode_tokens(encode_tokens(TokenFileContent(1, (limited,))))


# -- over HTTP ---------------------------------------------------------------------------------


async def publish(api: Api, count: int, **headers: str) -> Answer:
    messages = {"messages": [{"body": "x" * 100}] * count}
    return await api.send_json("POST", "/v1/topics/orders/messages", messages, **headers)


def refused(answer: Answer, name: str, limit: int) -> None:
    assert (answer.status, answer.problem) == (429, "rate-limited")
    assert (answer.json()["limit_name"], answer.json()["limit"]) == (name, limit)
    assert int(answer.headers["Retry-After"]) >= 1


async def test_a_client_that_publishes_too_fast_waits_and_may_read_meanwhile() -> None:
    async with running_api(max_publish_messages_per_s_per_client=5) as api:
        assert (await publish(api, 1000)).status == 200
        refused(await publish(api, 1), "publish_messages_per_s", 5)
        assert (await api.get("/v1/topics/orders")).status == 200
        assert len(api.publishes) == 1


async def test_the_rates_of_a_token_take_precedence_over_the_configured_ones() -> None:
    async with running_api(max_publish_bytes_per_s_per_client=1000, orders=1) as api:
        tokens = {}
        for name, rates in (("default", None), ("free", (None, 0)), ("slow", (1, None))):
            token, text = make_token("publish:*")
            token = replace(token, publish_rates=rates)
            tokens[name] = (token, bearer(text))
        api.context.http.access = access_of(*(token for token, _ in tokens.values()))
        for name, expected in (
            ("default", ("publish_bytes_per_s", 1000)),
            ("slow", ("publish_messages_per_s", 1)),
        ):
            assert (await publish(api, 500, **tokens[name][1])).status == 200
            refused(await publish(api, 1, **tokens[name][1]), *expected)
        for _ in range(5):
            assert (await publish(api, 500, **tokens["free"][1])).status == 200


async def test_refused_publishes_are_not_charged() -> None:
    async with running_api(max_publish_messages_per_s_per_client=5) as api:
        for _ in range(20):
            wrong = {"messages": [{"body": "x", "queue": 99}]}
            answer = await api.send_json("POST", "/v1/topics/orders/messages", wrong)
            assert answer.status in (400, 404)
        assert (await publish(api, 1)).status == 200


async def test_publishes_that_an_alarm_refuses_are_not_charged(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with running_api(max_publish_messages_per_s_per_client=5, orders=1) as api:
        with monkeypatch.context() as raised:
            raised.setitem(api.storage.alarms.by_name, "memory", lambda: MemoryLow(2, 1))
            for _ in range(3):
                answer = await publish(api, 50)
                assert (answer.status, answer.problem) == (503, "overloaded")
        assert (await publish(api, 1)).status == 200


def test_the_command_creates_and_lists_publish_rates(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path / "data")]
    rates = ["--publish-messages-per-s", "100", "--publish-bytes-per-s", "1MiB"]
    made = CliRunner().invoke(main, ["token", "create", *folder, "--allow", "publish:*", *rates])
    assert made.exit_code == 0, made.output
    listed = CliRunner().invoke(main, ["token", "list", *folder])
    row = json.loads(listed.output)
    assert (row["publish_messages_per_s"], row["publish_bytes_per_s"]) == (100, 1024 * 1024)
