"""How long requests wait at the broker: as long as the caller wants, up to the broker's limit."""

from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.client.errors import ApiError

T = TypeVar("T")


class WaitLimit:
    """The longest wait that the broker of one reader or consumer allows, as far as it is known.

    The broker refuses a longer wait and names its limit, so a wait is shortened only after a
    refusal.
    """

    def __init__(self) -> None:
        self._limit_ms: int | None = None

    async def send(self, request: Callable[[int], Awaitable[T]], wait_ms: int) -> T:
        """Return the reply to `request(wait_ms)`. If the broker refuses the wait as too long,
        repeat the request with the broker's limit. Raises the errors of `request`."""
        while True:
            asked_ms = wait_ms if self._limit_ms is None else min(wait_ms, self._limit_ms)
            try:
                return await request(asked_ms)
            except ApiError as error:
                limit_ms = _limit_of_wait(error)
                if limit_ms is None or limit_ms >= asked_ms:
                    raise
                self._limit_ms = limit_ms


def _limit_of_wait(error: ApiError) -> int | None:
    """Return the limit if the broker has refused a wait that is too long; otherwise None."""
    if error.type != "limit-exceeded" or error.members.get("parameter") != "wait_ms":
        return None
    limit = error.members.get("limit")
    return limit if isinstance(limit, int) else None
