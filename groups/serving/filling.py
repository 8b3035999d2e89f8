"""Fills replies as far as their requests allow, also with messages that must first be read.

The core adds messages to a reply, a bounded number in each event loop iteration. If it needs data
that is not in memory, it reports the queue and offset to read. While a reply is empty, this module
does all these reads. Once a reply has messages, their leases are running, so it waits for reads
only a short time. On the event loop; reader threads do the reads.
"""

import asyncio
import logging
from collections.abc import Callable
from time import monotonic

from holdfast.consumequeue.errors import StoreError
from holdfast.groups.core.group import Group
from holdfast.groups.core.receiving import continue_reply, receive
from holdfast.groups.core.requests import ReceiveRequest, Reply
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.head_source import FETCH_BYTES, StoreHeads

_logger = logging.getLogger(__name__)

#: One request waits for at most this many reads. If it has no messages then, its answer is empty,
#: and the next request continues with the reads.
MAX_FETCHES = 32
#: A reply with messages waits at most this long for more: a quarter of the shortest lease.
GO_ON_S = 0.25
#: For a reply that already has messages, one read returns at most this many bytes.
GO_ON_BYTES = 4 * 1024 * 1024


class Filling:
    """Fills the replies of one group. `changed` is called after each change of the core, before the
    next await."""

    def __init__(
        self,
        core: Group,
        source: StoreHeads,
        clock: GroupClock,
        *,
        changed: Callable[[], None],
    ) -> None:
        self._core = core
        self._source = source
        self._clock = clock
        self._changed = changed
        self._is_stopping = False

    def stop(self) -> None:
        """Add no more messages to replies that already have some."""
        self._is_stopping = True

    async def ask(self, request: ReceiveRequest) -> Reply:
        """Return a reply with the messages that are available now. If the reply is empty because
        the core needs a read, do the read and try again. Raises GroupError, StoreError."""
        for _ in range(MAX_FETCHES):
            reply = receive(self._core, request, self._clock.now_ms())
            self._changed()
            if reply.is_answer or reply.needs is None:
                break
            await self._source.fetch(*reply.needs)
        return reply

    async def continue_reply(self, reply: Reply, request: ReceiveRequest) -> None:
        """Add more messages to a reply that has some. If a read fails, add no more; the next
        request gets the error. If the call is cancelled, the reply keeps the messages that it
        has."""
        until_s = monotonic() + GO_ON_S
        fetches = 0
        while reply.messages and not _is_full(reply, request) and not self._is_stopping:
            if reply.is_cut:
                await asyncio.sleep(0)
                continue_reply(self._core, reply, request, self._clock.now_ms())
                self._changed()
                continue
            if reply.needs is None or fetches == MAX_FETCHES or monotonic() >= until_s:
                return
            fetches += 1
            left_bytes = min(request.max_bytes - reply.size_bytes, GO_ON_BYTES)
            try:
                await self._source.fetch(*reply.needs, max_bytes=max(left_bytes, FETCH_BYTES))
            except (StoreError, OSError) as error:
                _logger.warning(
                    "a reply ends before %s, which cannot be read: %s", reply.needs, error
                )
                return
            continue_reply(self._core, reply, request, self._clock.now_ms())
            self._changed()


def _is_full(reply: Reply, request: ReceiveRequest) -> bool:
    return len(reply.messages) >= request.max_messages or reply.size_bytes >= request.max_bytes
