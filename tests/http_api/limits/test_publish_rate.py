"""The publish rate of one client: the buckets, the limits of tokens, and both over HTTP."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
from click.testing import CliRunner

from holdfast.cli.main import main
from holdfast.http_api.access.token_format import (
    FORMAT,
    FORMAT_WITH_RATES,
    DamagedTokens,
    TokenFileContent,
    decode_tokens,
    encode_tokens,
)
from holdfast.http_api.limits.token_buckets import PublishRate, Rates
from tests.support.api_server import Answer, Api, running_api
from tests.support.tokens import access_of, bearer, make_token

TEN = Rates(10, 0)


def refused_for(refusal: tuple[str, float] | None, name: str, seconds: float) -> None:
    assert refusal is not None
    assert refusal[0] == name
    assert refusal[1] == pytest.approx(seconds)


@pytest.mark.parametrize(("messages", "is_refused"), [(9, False), (10, True), (11, True)])
def test_a_second_holds_as_many_messages_as_the_limit(messages: int, is_refused: bool) -> None:
    rate = PublishRate()
    assert rate.ask("a", TEN, 0.0) is None
    rate.charge("a", TEN, messages, 1, 0.0)
    assert (rate.ask("a", TEN, 0.0) is not None) is is_refused


def test_what_is_too_much_is_paid_off_before_the_next() -> None:
    rate = PublishRate()
    rate.charge("a", TEN, 30, 1, 0.0)
    refused_for(rate.ask("a", TEN, 0.0), "publish_messages_per_s", 2.1)
    refused_for(rate.ask("a", TEN, 2.0), "publish_messages_per_s", 0.1)
    assert rate.ask("a", TEN, 2.1 + 1e-9) is None


def test_bytes_count_by_themselves() -> None:
    rate, rates = PublishRate(), Rates(0, 1000)
    rate.charge("a", rates, 10**6, 1000, 0.0)
    refused_for(rate.ask("a", rates, 0.0), "publish_bytes_per_s", 0.001)
    assert rate.ask("a", rates, 0.002) is None


def test_clients_do_not_share_and_those_who_are_quiet_are_forgotten() -> None:
    rate = PublishRate(max_clients=2)
    rate.charge("a", TEN, 20, 1, 0.0)
    assert rate.ask("b", TEN, 0.0) is None
    assert rate.ask("a", TEN, 5.0) is None
    assert len(rate) == 0
    for client in ("a", "b", "c"):
        rate.charge(client, TEN, 20, 1, 5.0)
    assert len(rate) == 2


def test_a_clock_that_goes_back_gives_nothing() -> None:
    rate = PublishRate()
    rate.charge("a", TEN, 20, 1, 10.0)
    assert rate.ask("a", TEN, 5.0) is not None
    assert rate.ask("a", TEN, 5.5) is not None


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


def test_a_file_without_rates_is_as_it_was() -> None:
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


async def test_a_tokens_own_rates_go_before_the_configured_ones() -> None:
    async with running_api(max_publish_bytes_per_s_per_client=1000) as api:
        await api.store.topics.create("orders", queues=1)
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


async def test_what_is_refused_for_other_reasons_costs_nothing() -> None:
    async with running_api(max_publish_messages_per_s_per_client=5) as api:
        for _ in range(20):
            wrong = {"messages": [{"body": "x", "queue": 99}]}
            answer = await api.send_json("POST", "/v1/topics/orders/messages", wrong)
            assert answer.status in (400, 404)
        assert (await publish(api, 1)).status == 200


def test_the_command_makes_and_lists_them(tmp_path: Path) -> None:
    folder = ["--data-dir", str(tmp_path / "data")]
    rates = ["--publish-messages-per-s", "100", "--publish-bytes-per-s", "1MiB"]
    made = CliRunner().invoke(main, ["token", "create", *folder, "--allow", "publish:*", *rates])
    assert made.exit_code == 0, made.output
    listed = CliRunner().invoke(main, ["token", "list", *folder])
    row = json.loads(listed.output)
    assert (row["publish_messages_per_s"], row["publish_bytes_per_s"]) == (100, 1024 * 1024)
