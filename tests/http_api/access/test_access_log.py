"""The access log: one line per request, in two formats, without secrets."""

import json
import re
from collections.abc import AsyncIterator
from typing import cast

import pytest

from holdfast.cli.output.logs import ACCESS_LOGGER
from holdfast.http_api.access.access_log import LOGGER, AccessLog
from holdfast.http_api.access.audit import AuditLog
from holdfast.http_api.wire.reply import Reply
from tests.support.clients.tokens import access_of, bearer, make_token
from tests.support.servers.api_server import Api, running_api

COMMON = re.compile(
    r"^127\.0\.0\.1 - \S+ \[\d\d/[A-Z][a-z]{2}/\d{4}:\d\d:\d\d:\d\d \+0000\] "
    r'"([A-Z]+) (\S+) HTTP/1\.1" (\d{3}) (\d+) \d+\.\d{6}$'
)


# O5: there was no access log.
@pytest.fixture
async def common() -> AsyncIterator[Api]:
    async with running_api(access_log="common", orders=4) as api:
        yield api


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.name == LOGGER]


def test_the_broker_and_the_log_use_one_logger_name() -> None:
    assert LOGGER == ACCESS_LOGGER


async def test_each_request_has_one_line(common: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOGGER)
    await common.get("/v1/topics/orders")
    await common.get("/v1/topics/unknown")
    await common.publish("orders", {"body": "x"})
    found = [COMMON.match(line) for line in lines(caplog)]
    assert [(each[1], each[2], each[3]) for each in found if each] == [
        ("GET", "/v1/topics/orders", "200"),
        ("GET", "/v1/topics/unknown", "404"),
        ("POST", "/v1/topics/orders/messages", "200"),
    ]


async def test_a_line_has_no_query_and_no_token(
    common: Api, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("DEBUG")
    await common.get("/v1/topics?token=s3cret", Authorization="Bearer s3cret")
    await common.get("/v1/none?token=s3cret", Authorization="Bearer s3cret")
    assert len(lines(caplog)) == 2
    assert "s3cret" not in caplog.text


@pytest.mark.parametrize("path", ["/v1/topics/{}", "/{}", "/v1/topics/orders?token={}"])
async def test_no_log_has_a_token_of_a_path(
    common: Api, caplog: pytest.LogCaptureFixture, path: str
) -> None:
    caplog.set_level("DEBUG")
    token, text = make_token("consume:=orders")
    secret = text.partition(".")[2]
    audited: list[object] = []
    common.context.http.access = access_of(token)
    common.context.http.audit = cast(AuditLog, Noting(audited))
    for headers in ({}, bearer(text)):
        for method in ("GET", "DELETE"):
            await common.ask(method, path.format(text), None, **headers)
            await common.ask(method, path.format("x" * 190 + text), None, **headers)
    assert len(lines(caplog)) == 8
    assert audited
    assert secret[:20] not in caplog.text
    assert secret[:20] not in repr(audited)


class Noting:
    """An audit log that records its entries."""

    def __init__(self, seen: list[object]) -> None:
        self._seen = seen

    def record(self, *event: object, **details: object) -> None:
        self._seen.append((event, details))

    denied = record


async def test_a_path_cannot_forge_a_line(common: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOGGER)
    await common.get('/v1/%0a"%22\\x/' + "a" * 3000)
    (line,) = lines(caplog)
    assert COMMON.match(line)
    assert len(line) < 1200


async def test_a_line_may_be_json(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOGGER)
    async with running_api(access_log="json", orders=4) as api:
        await api.get("/v1/topics/orders/queues/0/messages?offset=0&wait_ms=50")
    (line,) = lines(caplog)
    event = json.loads(line)
    assert (event["method"], event["status"]) == ("GET", 200)
    assert event["path"] == "/v1/topics/orders/queues/0/messages"
    # How long it was is not asserted: the loop's clock is that of its last turn, which may be old.
    assert event["seconds"] >= event["held_seconds"] > 0
    assert event["bytes"] > 0


async def test_the_access_log_is_off_by_default(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", LOGGER)
    await api.get("/v1/topics/orders")
    assert lines(caplog) == []


# O5: --log-level debug added nothing.
async def test_refusals_are_in_the_debug_log(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("DEBUG", "holdfast.http_api.app")
    await api.get("/v1/topics/unknown")
    assert any(
        "GET /v1/topics/unknown of 127.0.0.1: unknown-topic: there is no topic" in each
        for each in caplog.messages
    )


def test_the_format_is_a_setting() -> None:
    for form in ("common", "json"):
        assert AccessLog(form)
    assert Reply(200, "text/plain", (b"abc",)).size == 3
