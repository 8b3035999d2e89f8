"""Watches the token file while the broker runs, and loads the tokens when the file changes."""

import asyncio
import logging
from collections.abc import Callable
from typing import NoReturn

from holdfast.http_api.access.token_file import Stamp, TokenFile, TokensUnreadable
from holdfast.http_api.access.tokens import Tokens

_logger = logging.getLogger(__name__)


class TokenWatcher:
    """Checks the token file every `interval_s` in a thread, and passes new tokens to `changed`.

    If the file becomes unreadable while the broker runs, the error is logged and the old tokens
    stay valid. If the file is already unreadable at the start, there are no tokens, so every
    request that needs a token is denied.
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
        """Why the tokens in memory may differ from the file; None if they are equal."""

    async def start(self) -> None:
        await self.check_file()
        self._task = asyncio.create_task(self._watch(), name="access-tokens")

    async def stop(self) -> None:
        """Stop watching the file. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def check_file(self) -> None:
        """Load the tokens if the file has changed since the last check."""
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
        """Return the tokens, and the faults of copies, or None if the file has not changed.

        Runs in a thread.
        """
        stamp = self._file.stamp()
        if stamp == self._stamp:
            return None
        read = self._file.read()
        # Set only after a successful read, so that a failed read is repeated at the next check.
        self._stamp = stamp
        return Tokens(read.content.tokens), read.faults

    def _report(self, fault: str) -> None:
        if fault != self.fault:
            self.fault = fault
            _logger.error("%s", fault)

    async def _watch(self) -> NoReturn:
        while True:
            await asyncio.sleep(self._interval_s)
            await self.check_file()
