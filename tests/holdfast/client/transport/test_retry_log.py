"""What the client logs while a broker is unreachable."""

import asyncio
import logging

import pytest
from aiohttp import web

from holdfast.client import AsyncClient, Client
from holdfast.client.errors import ConnectionFailed
from holdfast.client.transport.retry import AGAIN_S, REPEAT_S, RetryLog
from tests.support.scripted_server import problem, scripted_server

GONE = ConnectionFailed("http://nowhere", "refused", maybe_executed=False)


class Clock:
    def __init__(self) -> None:
        self.now_s = 100.0

    def __call__(self) -> float:
        return self.now_s


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [each.getMessage() for each in caplog.records if each.levelno == logging.WARNING]


def test_an_outage_is_reported_once_and_every_30_s(caplog: pytest.LogCaptureFixture) -> None:
    # C2: the client logged nothing while the broker was unreachable
    clock = Clock()
    log = RetryLog(clock)
    log.record_success()
    for _ in range(int(2 * REPEAT_S)):
        log.record_failure(GONE)
        clock.now_s += 1.0
    first, second = warnings(caplog)
    assert first.startswith("trying again: ") and "http://nowhere" in first
    assert second.startswith("still trying again, for 30 s by now: ")


def test_the_end_of_an_outage_and_the_next_one_are_reported(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = RetryLog(clock)
    with caplog.at_level(logging.INFO, "holdfast.client"):
        log.record_failure(GONE)
        clock.now_s += AGAIN_S
        log.record_success()
        log.record_success()
        log.record_failure(GONE)
        assert [each.getMessage().split(":")[0] for each in caplog.records] == [
            "trying again",
            "the broker answers again, after 5 s",
            "trying again",
        ]


def test_a_broker_that_comes_and_goes_is_reported_every_5_s(
    caplog: pytest.LogCaptureFixture,
) -> None:
    clock = Clock()
    log = RetryLog(clock)
    for _ in range(100):
        log.record_failure(GONE)
        log.record_success()
        clock.now_s += AGAIN_S / 50
    assert len(warnings(caplog)) == 2


async def test_many_requests_that_wait_are_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    # C2
    async with scripted_server(refuse_first(10)) as server, AsyncClient(server.url) as client:
        await asyncio.gather(*(client.info() for _ in range(10)))
    (warning,) = warnings(caplog)
    assert "draining" in warning
    assert all(record.name == "holdfast.client" for record in caplog.records)


async def test_the_synchronous_client_and_its_parts_are_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # C2
    async with scripted_server(refuse_first(2)) as server:
        with Client(server.url) as client:
            await asyncio.to_thread(client.info)
    assert len(warnings(caplog)) == 1


def test_who_is_not_to_try_again_is_told_by_the_error_alone(
    caplog: pytest.LogCaptureFixture,
) -> None:
    with Client("http://127.0.0.1:9", timeout_ms=0) as client, pytest.raises(ConnectionFailed):
        client.info()
    assert not caplog.records


def refuse_first(count: int):  # type: ignore[no-untyped-def]
    left = count

    async def answer(_: web.Request) -> web.StreamResponse:
        nonlocal left
        left -= 1
        return problem(503, "draining", 0) if left >= 0 else web.json_response({"version": "1"})

    return answer
