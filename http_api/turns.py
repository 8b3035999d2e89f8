"""Turns: so many large replies are made at once, the others wait before they have read anything.

What is read and encoded for a client that has not got it yet is memory; ten thousand clients
that ask for a megabyte of text each must not hold ten thousand megabytes between reading and
sending. Small replies and binary ones go out as soon as they are read, and take no turn.
"""

import asyncio
from types import TracebackType
from typing import Self


class Turn:
    """One request's turn; `turns` None when it needs none. Ends with its `with` block."""

    __slots__ = ("_is_mine", "_turns")

    def __init__(self, turns: asyncio.Semaphore | None) -> None:
        self._turns = turns
        self._is_mine = False

    async def begin(self) -> None:
        """Wait for the turn, first come first served. Cancelling gives it up."""
        if self._turns is not None and not self._is_mine:
            await self._turns.acquire()
            self._is_mine = True

    def end(self) -> None:
        """Let the next one have it; `begin` may follow. Without a turn nothing happens."""
        if self._is_mine and self._turns is not None:
            self._is_mine = False
            self._turns.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.end()
