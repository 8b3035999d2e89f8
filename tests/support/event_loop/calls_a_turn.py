"""Count how often a function is called in one iteration of the event loop."""

import asyncio
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest


class Turns:
    """Counts iterations of the running loop until `stop`, and the calls in each iteration."""

    def __init__(self) -> None:
        self.calls: Counter[int] = Counter()
        self._turn = 0
        self._is_running = True
        self._loop = asyncio.get_running_loop()
        self._next()

    @property
    def most(self) -> int:
        """The highest number of calls in any iteration."""
        return max(self.calls.values(), default=0)

    @property
    def total(self) -> int:
        """The number of calls in all iterations."""
        return self.calls.total()

    def note(self, count: int = 1) -> None:
        """Count calls in the current iteration."""
        self.calls[self._turn] += count

    def stop(self) -> None:
        """Stop counting iterations."""
        self._is_running = False

    def _next(self) -> None:
        self._turn += 1
        if self._is_running:
            self._loop.call_soon(self._next)


@contextmanager
def calls_a_turn(
    owner: Any, *names: str, weigh: Callable[..., int] = lambda *_: 1
) -> Iterator[Turns]:
    """Count the calls of the methods or functions `names` of `owner`. A call counts as many times
    as `weigh` returns for its arguments."""
    turns = Turns()
    with pytest.MonkeyPatch.context() as patch:
        for name in names:
            patch.setattr(owner, name, _noted(getattr(owner, name), turns, weigh))
        try:
            yield turns
        finally:
            turns.stop()


def _noted(
    function: Callable[..., Any], turns: Turns, weigh: Callable[..., int]
) -> Callable[..., Any]:
    def noted(*args: Any, **how: Any) -> Any:
        turns.note(weigh(*args))
        return function(*args, **how)

    return noted
