"""Keeps the tokens in memory as the token file has them, also while the broker runs."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from holdfast.http_api.access.token_file import Stamp, TokenFile, TokensUnreadable
from holdfast.http_api.access.tokens import Tokens

_logger = logging.getLogger(__name__)


class TokenWatcher:
    """Looks at the token file every `interval_s`, in a thread, and hands over what is new.

    A file that becomes unreadable while the broker runs is reported, and the tokens stay as they
    were; at the start there are none then, and nobody gets in.
    """

    def __init__(
        self, file: TokenFile, interval_s: float, changed: Callable[[Tokens], None]
    ) -> None:
        self._file = file
        self._interval_s = interval_s
        self._changed = changed
        self._stamp: Stamp | None = None
        self._task: asyncio.Task[NoReturn] | None = None
        self.fault: str | None = None
        """Why the tokens are not those of the file, None while they are."""

    async def start(self) -> None:
        """Read the tokens, then go on watching."""
        await self.look()
        self._task = asyncio.create_task(self._watch(), name="access-tokens")

    async def stop(self) -> None:
        """End what `start` began. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def look(self) -> None:
        """Take over the file's tokens if it has changed since it was last looked at."""
        try:
            found = await asyncio.to_thread(self._read_if_changed)
        except TokensUnreadable as error:
            self._report(str(error))
            return
        except OSError as error:
            self._report(
                f"the access tokens cannot be read ({error}): they stay as they were; let the "
                "broker's user read the folder access/ in its data directory"
            )
            return
        if found is None:
            return
        tokens, faults = found
        self.fault = None
        for fault in faults:
            _logger.error("access tokens: %s; the other copy is used", fault)
        _logger.info("access tokens: %d", len(tokens))
        self._changed(tokens)

    def _read_if_changed(self) -> tuple[Tokens, tuple[str, ...]] | None:
        """Return the tokens and what is wrong with a copy. Runs in a thread."""
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return None
        read = self._file.read()
        # Only now: what cannot be read is tried again at the next look.
        self._stamp = stamp
        return Tokens(read.content.tokens), read.faults

    def _report(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            _logger.error("%s", fault)

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.look()
