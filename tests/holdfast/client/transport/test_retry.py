"""Which failures are retried and when, and what is logged meanwhile."""

import asyncio
import logging

import pytest
from aiohttp import web

from holdfast.client import AsyncClient, Client
from holdfast.client.errors import (
    ApiError,
    BadReply,
    ClientClosed,
    ConnectionFailed,
    DiskFull,
    HoldfastError,
    OffsetTrimmed,
    Overloaded,
    SyncTimeout,
    Unavailable,
)
from holdfast.client.transport.retry import (
    AGAIN_S,
    FOREVER,
    REPEAT_S,
    RetryLog,
    RetryPolicy,
    run_with_retries,
)
from tests.support.servers.scripted_server import problem, scripted_server


class Waits:
    """The event loop's clock and sleep."""

    def now_s(self) -> float:
        return asyncio.get_running_loop().time()

    async def pause(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


WAITS = Waits()
POLICY = RetryPolicy(give_up_after_s=30.0, first_pause_s=0.1, longest_pause_s=5.0)


@pytest.mark.parametrize(
    ("error", "when_safe", "when_unsafe"),
    [
        (ConnectionFailed("u", "refused", maybe_executed=False), True, True),
        (ConnectionFailed("u", "reset", maybe_executed=True), True, False),
        (Unavailable(503, "recovering"), True, True),
        (Overloaded(503, "overloaded"), True, True),
        (DiskFull(507, "disk-full"), True, True),
        (ApiError(503, "storage-unavailable", retry_after_s=1.0), True, True),
        (SyncTimeout(503, "sync-timeout", retry_after_s=1.0), True, False),
        (ApiError(502, "about:blank"), True, False),
        (ApiError(504, "about:blank"), True, False),
        (ApiError(503, "read-only"), False, False),
        (ApiError(500, "internal-error"), False, False),
        (ApiError(404, "not-found"), False, False),
        (OffsetTrimmed(410, "offset-trimmed"), False, False),
        (BadReply("u", "html"), False, False),
        (ClientClosed(), False, False),
    ],
)
def test_only_transient_failures_are_retried(
    error: HoldfastError, when_safe: bool, when_unsafe: bool
) -> None:
    assert (POLICY.pause_s(error, 1, 0.0, safe=True) is not None) == when_safe
    assert (POLICY.pause_s(error, 1, 0.0, safe=False) is not None) == when_unsafe


def test_pauses_double_up_to_the_longest_with_jitter_below() -> None:
    error = Overloaded(503, "overloaded")
    for tries, whole in [(1, 0.1), (2, 0.2), (3, 0.4), (7, 5.0), (1000, 5.0)]:
        pauses = [FOREVER_LIKE.pause_s(error, tries, 0.0, safe=True) for _ in range(50)]
        assert all(pause is not None and whole / 2 <= pause <= whole for pause in pauses)
        assert len(set(pauses)) > 1


FOREVER_LIKE = RetryPolicy(give_up_after_s=None, first_pause_s=0.1, longest_pause_s=5.0)


def test_retry_after_is_the_shortest_pause() -> None:
    error = Overloaded(503, "overloaded", retry_after_s=3.0)
    for tries in (1, 100):
        pause_s = POLICY.pause_s(error, tries, 0.0, safe=True)
        assert pause_s is not None
        assert 3.0 <= pause_s <= 3.75


def test_a_pause_beyond_the_limit_is_not_begun() -> None:
    error = Overloaded(503, "overloaded", retry_after_s=3.0)
    assert POLICY.pause_s(error, 1, 26.0, safe=True) is not None
    assert POLICY.pause_s(error, 1, 27.5, safe=True) is None
    assert FOREVER.pause_s(error, 1, 1e9, safe=True) is not None


async def test_retries_return_the_first_success_and_raise_the_last_error() -> None:
    policy = RetryPolicy(give_up_after_s=60.0, first_pause_s=0.0)
    failures: list[HoldfastError] = [
        Unavailable(503, "recovering"),
        ConnectionFailed("u", "refused", maybe_executed=False),
    ]

    async def operation() -> str:
        if failures:
            raise failures.pop(0)
        return "done"

    assert (
        await run_with_retries(operation, policy, safe=True, clock=WAITS, log=RetryLog()) == "done"
    )

    async def hopeless() -> str:
        raise ApiError(400, "invalid-parameter")

    with pytest.raises(ApiError):
        await run_with_retries(hopeless, policy, safe=True, clock=WAITS, log=RetryLog())


async def test_a_cancelled_operation_is_not_retried() -> None:
    tries = 0
    under_way = asyncio.Event()

    async def operation() -> None:
        nonlocal tries
        tries += 1
        under_way.set()
        await asyncio.Event().wait()

    task = asyncio.create_task(
        run_with_retries(operation, FOREVER, safe=True, clock=WAITS, log=RetryLog())
    )
    await under_way.wait()
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    assert tries == 1


def test_a_policy_retries_for_ever_until_it_has_a_deadline() -> None:
    left: list[float | None] = [None]
    policy = RetryPolicy(None, 1.0, 1.0, left_s=lambda: left[0])
    failed = ConnectionFailed("http://x", "refused", maybe_executed=True)
    assert policy.pause_s(failed, 9, 10**9, safe=True) is not None
    left[0] = 2.0
    assert policy.pause_s(failed, 9, 10**9, safe=True) is not None
    left[0] = 0.1
    assert policy.pause_s(failed, 9, 10**9, safe=True) is None
    assert policy.pause_s(failed, 1, 0.0, safe=False) is None


# -- the log -----------------------------------------------------------------------------


GONE = ConnectionFailed("http://nowhere", "refused", maybe_executed=False)


class Clock:
    now_s = 100.0

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
    names = {record.name for record in caplog.records}
    assert names - {"aiohttp.access"} == {"holdfast.client"}  # the stand-in may log requests


async def test_the_synchronous_client_and_its_parts_are_one_warning(
    caplog: pytest.LogCaptureFixture,
) -> None:
    # C2
    async with scripted_server(refuse_first(2)) as server:
        with Client(server.url) as client:
            await asyncio.to_thread(client.info)
    assert len(warnings(caplog)) == 1


def test_without_retries_the_error_is_not_logged(caplog: pytest.LogCaptureFixture) -> None:
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
