import asyncio

import pytest

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
    FOREVER,
    RetryLog,
    RetryPolicy,
    run_with_retries,
)


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
def test_only_what_passes_by_itself_is_tried_again(
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


def test_the_brokers_retry_after_is_the_least_that_is_waited() -> None:
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


async def test_retried_returns_the_first_success_and_raises_the_last_error() -> None:
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


async def test_a_cancelled_operation_is_not_tried_again() -> None:
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


def test_a_policy_goes_on_until_it_is_told_how_long_there_is() -> None:
    left: list[float | None] = [None]
    policy = RetryPolicy(None, 1.0, 1.0, left_s=lambda: left[0])
    failed = ConnectionFailed("http://x", "refused", maybe_executed=True)
    assert policy.pause_s(failed, 9, 10**9, safe=True) is not None
    left[0] = 2.0
    assert policy.pause_s(failed, 9, 10**9, safe=True) is not None
    left[0] = 0.1
    assert policy.pause_s(failed, 9, 10**9, safe=True) is None
    assert policy.pause_s(failed, 1, 0.0, safe=False) is None
