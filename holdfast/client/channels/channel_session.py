"""A channel on one connection: its session, its links, and the outcomes it has to send.

Everything runs on the loop thread, except `post`, `is_lost` and `is_closed`.
"""

import asyncio
import itertools
import logging
from collections.abc import Callable, Iterator
from typing import Any, Protocol

from holdfast.amqp.wire import serials
from holdfast.client.session.attaches import receiver_attach, sender_attach
from holdfast.client.session.connection import LinkSession
from holdfast.client.session.links import AsyncSender, LinkEnd

_log = logging.getLogger("holdfast.client")

#: How many outcomes are collected, and for how long, before they are sent.
ACK_COUNT = 50
ACK_DELAY_MS = 5.0
#: How long closing waits until the broker has stored the outcomes.
_CLOSE_TIMEOUT_S = 5.0


#: Two links of a connection with the same name would replace each other.
_link_numbers = itertools.count()


class ReceivingLink(Protocol):
    """A link of the channel whose messages wait for outcomes, as the session sees it."""

    outstanding: int
    """Messages without an outcome."""
    unconfirmed: int
    """Messages with an outcome that the broker has not confirmed."""

    def renew(self) -> None:
        """Grant the credit that outcomes have made free."""

    def confirmed(self) -> None:
        """Continue after the broker has confirmed an outcome."""


class ChannelSession:
    """What a channel has on one connection. A new connection gets a new ChannelSession.

    Outcomes are sent when ACK_COUNT of them are collected, `ack_delay_ms` after the first, when
    the channel's callbacks are idle, and when the channel closes.
    """

    def __init__(
        self, session: LinkSession, post: Callable[..., None], ack_delay_ms: float
    ) -> None:
        self.session = session
        self.post = post
        self.is_lost = False
        self.is_closed = False
        self.unsettled: dict[int, ReceivingLink] = {}
        """The links of the messages that need an outcome, by delivery-id, in order of arrival."""
        self._ack_delay_s = ack_delay_ms / 1000
        self._outcomes: dict[int, Any] = {}
        self._owed: set[ReceivingLink] = set()
        """The links of the collected outcomes."""
        self._unconfirmed: set[int] = set()
        self._confirmed = asyncio.Event()
        self._timer: asyncio.TimerHandle | None = None
        self._senders: dict[str, AsyncSender] = {}
        session.when_ended = self._ended

    # -- links

    async def sender(self, topic: str) -> AsyncSender:
        """Return the sender to a topic; attach it at first use."""
        found = self._senders.get(topic)
        if found is None or found.has_ended:
            name = f"link-{next(_link_numbers)}"
            found = AsyncSender(self.session, settled=False)
            attach = sender_attach(name, topic, settled=False)
            await found.attach(self.session.check_open().sender(name, attach))
            self._senders[topic] = found
        return found

    async def attach(self, link: LinkEnd, **terminus: Any) -> None:
        """Attach a link; `terminus` is as in receiver_attach."""
        name = f"link-{next(_link_numbers)}"
        attach = receiver_attach(name, **terminus)
        await link.attach(self.session.check_open().receiver(name, attach))

    # -- outcomes

    def settle(self, delivery_id: int, state: Any, multiple: bool = False) -> None:
        """Collect the outcome of a message, and with `multiple` of all messages up to it."""
        ids = [delivery_id]
        if multiple:
            ids = [each for each in self.unsettled if serials.distance(each, delivery_id) >= 0]
        for each in ids:
            if (link := self.unsettled.pop(each, None)) is not None:
                link.outstanding -= 1
                link.unconfirmed += 1
                self._owed.add(link)
                self._outcomes[each] = state
        if len(self._outcomes) >= ACK_COUNT:
            self.flush()
        elif self._outcomes and self._timer is None:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_later(self._ack_delay_s, self.flush)

    def flush(self) -> None:
        """Send the collected outcomes, and the credit that they renew."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if not self._outcomes or self.is_lost:
            return
        outcomes, self._outcomes = self._outcomes, {}
        engine = self.session.check_open()
        for first, last, state in _runs(outcomes):
            engine.dispose(first, last, state, settled=False)
        self._unconfirmed |= outcomes.keys()
        owed, self._owed = self._owed, set()
        for link in owed:
            link.renew()
        self.session.flush()

    def confirm(self, delivery_id: int, link: ReceivingLink) -> None:
        """Record that the broker has stored the outcome of a message of the link, or needs none any
        more."""
        if self.unsettled.pop(delivery_id, None) is not None:
            link.outstanding -= 1
        if delivery_id in self._unconfirmed or delivery_id in self._outcomes:
            self._unconfirmed.discard(delivery_id)
            self._outcomes.pop(delivery_id, None)
            link.unconfirmed -= 1
            link.confirmed()
        if not self._unconfirmed:
            self._confirmed.set()

    # -- end

    async def close(self) -> None:
        """Send the outcomes, wait until the broker has stored them, and end the session. May be
        repeated."""
        self.is_closed = True
        self.flush()
        try:
            async with asyncio.timeout(_CLOSE_TIMEOUT_S):
                while self._unconfirmed and not self.is_lost:
                    self._confirmed.clear()
                    await self._confirmed.wait()
        except TimeoutError:
            _log.warning("the broker did not confirm %d outcomes", len(self._unconfirmed))
        self.session.close()

    def _ended(self, error: Exception) -> None:
        self.is_lost = True
        self._confirmed.set()
        if self._timer is not None:
            self._timer.cancel()
        stale = len(self._outcomes) + len(self._unconfirmed)
        if stale and not self.is_closed:
            _log.warning(
                "%d outcomes were not confirmed, messages may arrive again: %s", stale, error
            )


def _runs(outcomes: dict[int, Any]) -> Iterator[tuple[int, int, Any]]:
    """Yield (first, last, outcome) for consecutive delivery-ids with outcomes of one type."""
    first = last = None
    for each in sorted(outcomes):
        if last is not None and each == last + 1 and type(outcomes[each]) is type(outcomes[last]):
            last = each
            continue
        if first is not None and last is not None:
            yield first, last, outcomes[last]
        first = last = each
    if first is not None and last is not None:
        yield first, last, outcomes[last]
