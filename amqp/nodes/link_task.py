"""Runs the work of one source whenever its link can send or drain; never two runs at a time.

    link events -> wake -> serve: ask, send, ask, send, ... until nothing can be done

While `serve` waits for messages it may be interrupted, because the client wants something else now:
less credit, or a drain.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import TypeVar

from holdfast.amqp.conditions_of import amqp_error
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.wire.conditions import RESOURCE_DELETED, AmqpError, LinkFailed
from holdfast.consumequeue.errors import StateUnavailable, UnknownGroup, UnknownTopic
from holdfast.groups.errors import GroupsStopping
from holdfast.holdservice.errors import HoldLimitExceeded

_logger = logging.getLogger(__name__)

T = TypeVar("T")

#: Work that was refused for a transient reason is tried again after this time.
RETRY_S = 1.0


class LinkTask:
    """The work of one link. `serve` returns when it can do nothing more."""

    def __init__(
        self, peer: Peer, link: OutgoingLink, most: int, serve: Callable[[], Awaitable[None]]
    ) -> None:
        """`most` is how many messages one ask may bring."""
        self._peer, self._link, self._most, self._serve = peer, link, most, serve
        self._task: asyncio.Task[None] | None = None
        self._retry: asyncio.TimerHandle | None = None
        #: How many messages the ask that waits now may bring; 0 if none waits.
        self._waits_for = 0
        self.is_stopped = False

    def room(self) -> int:
        """Return how many messages the link can send now, in one slice."""
        return min(self._link.sendable, self._most) if self._peer.has_room else 0

    def wake(self, *, is_due: bool = False) -> None:
        """Run `serve` if it does not run already. If it waits for messages, interrupt the wait if
        the client has reduced its credit or asks for a drain, or if `is_due` is true."""
        running = self._task
        if self.is_stopped:
            return
        if running is not None and not running.done():
            link = self._link
            is_changed = link.is_draining or self.room() < self._waits_for
            if not self._waits_for or not (is_due or is_changed):
                return
            self._waits_for = 0
            running.cancel()
        elif self._link.is_draining or self.room():
            running = None
        else:
            return  # there is nothing to do; many links of a session may be woken together
        self._task = asyncio.create_task(self._run(running), name="amqp-source")

    async def let_output_leave(self) -> None:
        """Wait until the output of this event loop iteration has left. After that, `room` is 0 if
        the socket did not take it. Do not wait if the window is used up: `serve` ends then, and the
        links of the session take turns with the next window."""
        if self._link.sendable:
            await asyncio.sleep(0)

    async def wait(self, most: int, messages: Awaitable[T]) -> T:
        """Await `messages`, which waits for at most `most` messages. Until it returns, `serve` may
        be interrupted."""
        self._waits_for = most
        try:
            return await messages
        finally:
            self._waits_for = 0

    def stop(self) -> "asyncio.Task[None] | None":
        """End the work. Return the task, which may need another event loop iteration to end."""
        self.is_stopped = True
        del self._serve  # ends the reference cycle with the source; `wake` does nothing any more
        if self._retry is not None:
            self._retry.cancel()
        running, self._task = self._task, None  # a cancelled task keeps the frames that it ran
        if running is not None:
            running.cancel()
        return running

    def fail(self, error: AmqpError) -> None:
        """Detach the link for an error."""
        if not self.is_stopped:
            self._peer.detach(self._link, error)

    async def _run(self, before: "asyncio.Task[None] | None") -> None:
        if before is not None:
            await asyncio.wait([before])
        try:
            await self._serve()
        except (HoldLimitExceeded, StateUnavailable) as error:
            _logger.info("a link of %s has to wait: %s", self._peer.client, error)
            self._retry = asyncio.get_running_loop().call_later(RETRY_S, self.wake)
        except GroupsStopping:
            pass  # the broker stops, and closes the connection
        except (UnknownGroup, UnknownTopic) as error:
            self.fail(LinkFailed(RESOURCE_DELETED, str(error)))
        except Exception as error:
            self.fail(amqp_error(error, LinkFailed))


def finish_drain(peer: Peer, link: OutgoingLink, *, has_more: bool) -> bool:
    """Give the unused credit back, if the client still asks for that. Return False if the link must
    first get room: a message is partly sent, or there is credit for more messages (`has_more`)."""
    if link.is_draining:
        if link.is_partly_sent or (has_more and link.credit):
            return False
        link.drained()
        peer.flush()
    return True
