"""Replies that are filled as far as a request asks, also with what has to be read first.

The core fills a reply with what it can tell at once, and says where it needs a read. A request
without anything has that read and asks again. One that has messages has them under leases that
run, so that it reads on only for a moment. On the event loop; the reads are in reader threads.
"""

import logging
from collections.abc import Callable
from time import monotonic

from holdfast.consumequeue.errors import StoreError
from holdfast.groups.asking import Ask, Reply
from holdfast.groups.group import Group
from holdfast.groups.group_clock import GroupClock
from holdfast.groups.head_source import FETCH_BYTES, StoreHeads

_logger = logging.getLogger(__name__)

#: Reads that one request waits for; then it is answered with nothing, and the next goes on there.
MAX_FETCHES = 32
#: How long messages are held back for more of them: a quarter of the shortest lease.
GO_ON_S = 0.25
#: What is read at once for a reply that asks for much.
GO_ON_BYTES = 4 * 1024 * 1024


class Filling:
    """Fills the replies of one group. `changed` is called after each step, in the same turn."""

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
        """Read on for nobody: what was picked goes out as it is."""
        self._is_stopping = True

    async def ask(self, ask: Ask) -> Reply:
        """Return what there is now, having read what is needed for the first of it. Raises
        GroupError, StoreError."""
        for _ in range(MAX_FETCHES):
            reply = self._core.receive(ask, self._clock.now_ms())
            self._changed()
            if reply.is_answer or reply.needs is None:
                break
            await self._source.fetch(*reply.needs)
        return reply

    async def go_on(self, reply: Reply, ask: Ask) -> None:
        """Add what else was asked for to a reply that has messages. A read that fails ends it:
        who asks next meets the error. Cancelling leaves what was picked so far in the reply."""
        until_s = monotonic() + GO_ON_S
        for _ in range(MAX_FETCHES):
            if not reply.picks or reply.needs is None or _is_full(reply, ask):
                return
            if self._is_stopping or monotonic() >= until_s:
                return
            left_bytes = min(ask.max_bytes - reply.size_bytes, GO_ON_BYTES)
            try:
                await self._source.fetch(*reply.needs, max_bytes=max(left_bytes, FETCH_BYTES))
            except (StoreError, OSError) as error:
                _logger.warning(
                    "a reply ends before %s, which cannot be read: %s", reply.needs, error
                )
                return
            self._core.go_on(reply, ask, self._clock.now_ms())
            self._changed()


def _is_full(reply: Reply, ask: Ask) -> bool:
    return len(reply.picks) >= ask.credit or reply.size_bytes >= ask.max_bytes
