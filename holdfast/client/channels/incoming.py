"""The receiving links of a channel: of consumers, and of `get`. For the loop thread."""

import asyncio
from collections import deque
from collections.abc import Callable
from typing import Any

from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.wire.performatives import Released
from holdfast.client.channels.channel_session import ChannelSession
from holdfast.client.errors import ClientClosed
from holdfast.client.session.links import LinkEnd


class Incoming(LinkEnd):
    """A link whose messages wait for an outcome. `outstanding` counts them, and `unconfirmed` those
    whose outcome the broker has not confirmed."""

    def __init__(self, owner: ChannelSession, *, settled: bool = False) -> None:
        super().__init__(owner.session)
        self.owner = owner
        self.is_settled = settled
        self.outstanding = 0
        self.unconfirmed = 0

    def received(self, deliveries: list[Delivery]) -> None:
        """Count deliveries, and pass them on."""
        self.outstanding += len(deliveries)
        if not self.is_settled:
            self.owner.unsettled |= dict.fromkeys((each.id for each in deliveries), self)
        self.accept(deliveries)

    def accept(self, deliveries: list[Delivery]) -> None:
        """Take the deliveries."""
        raise NotImplementedError

    def settled(self, delivery_id: int) -> None:
        """Record that the broker has settled a delivery."""
        self.owner.confirm(delivery_id, self)

    def renew(self) -> None:
        """Grant the credit that outcomes have made free."""

    def confirmed(self) -> None:
        """Continue after the broker has confirmed an outcome."""


class ConsumerLink(Incoming):
    """The link of a consumer on one connection.

    At most `credit` messages are outstanding: sent by the broker, and not yet settled. A slow
    callback so holds back only its own consumer. Without `auto_flow`, only `add_credit` grants.
    """

    def __init__(
        self,
        owner: ChannelSession,
        credit: int,
        deliver: Callable[["ConsumerLink", list[Delivery]], None],
        when_ended: Callable[["ConsumerLink", Exception], None],
        *,
        settled: bool,
        auto_flow: bool,
    ) -> None:
        super().__init__(owner, settled=settled)
        self.is_cancelled = False
        self._credit = credit
        self._deliver = deliver
        self._when_ended = when_ended
        self._auto_flow = auto_flow

    @property
    def credit(self) -> int:
        """How many messages the broker may send at the moment."""
        link: IncomingLink = self._link
        return link.credit

    def accept(self, deliveries: list[Delivery]) -> None:
        """Give deliveries to the callbacks, or back if the consumer is cancelled."""
        if self.is_cancelled:
            self.give_back(deliveries)
        else:
            self._deliver(self, deliveries)

    def add_credit(self, count: int) -> None:
        """Let the broker send more messages than it may send at the moment."""
        if not self.has_ended and not self.is_cancelled and count:
            self._link.grant(self.credit + count)
            self._session.flush()

    def finish(self, count: int) -> None:
        """Record that the callbacks of messages that need no outcome have ended."""
        self.outstanding -= count
        if 2 * self.credit <= self._credit:
            self.renew()

    def renew(self) -> None:
        """Grant the credit that is free, and detach a cancelled link that owes nothing and waits
        for no confirmation: the broker confirms nothing on a detached link."""
        if self.has_ended:
            return
        if self.is_cancelled:
            if not self.outstanding and not self.unconfirmed:
                self._link.detach()
                self._session.flush()
                super().ended(ClientClosed())
            return
        room = self._credit - self.outstanding
        if self._auto_flow and room > self.credit:
            self.add_credit(room - self.credit)

    def confirmed(self) -> None:
        """Detach a cancelled link with its last confirmation."""
        if self.is_cancelled:
            self.renew()

    def cancel(self) -> None:
        """Take the credit back; detach once every outcome is confirmed. May be repeated."""
        self.is_cancelled = True
        if not self.has_ended:
            self._link.grant(0)
            self._session.flush()
            self.renew()

    def give_back(self, deliveries: list[Delivery]) -> None:
        """Release deliveries that no callback will see."""
        if self.is_settled:
            self.outstanding -= len(deliveries)
            return
        for each in deliveries:
            self.owner.settle(each.id, Released())

    def ended(self, error: Exception) -> None:
        """Record the end of the link, and report it."""
        if not self.has_ended:
            super().ended(error)
            self._when_ended(self, error)


class GetLink(Incoming):
    """The link that fetches single messages of a group."""

    def __init__(self, owner: ChannelSession) -> None:
        super().__init__(owner)
        self._arrived: deque[Delivery] = deque()
        self._changed = asyncio.Event()

    def accept(self, deliveries: list[Delivery]) -> None:
        """Keep a delivery until `fetch` takes it."""
        self._arrived.extend(deliveries)
        self._changed.set()

    def drained(self) -> None:
        """Wake `fetch`."""
        self._changed.set()

    def ended(self, error: Exception) -> None:
        """Record the end of the link, and wake `fetch`."""
        super().ended(error)
        self._arrived.clear()
        self._changed.set()

    async def fetch(self, timeout_s: float | None) -> Delivery | None:
        """Return the next message. Return None if the group has none for `timeout_s`; None waits
        without end. Raises the error that ended the link. Cancelling loses no message."""
        self._check_open()
        link: Any = self._link
        loop = asyncio.get_running_loop()
        ends_s = None if timeout_s is None else loop.time() + timeout_s
        try:
            if not self._arrived:
                self._grant(1, drain=timeout_s == 0)
            while not self._arrived:
                self._changed.clear()
                is_draining = link.is_draining
                try:
                    async with asyncio.timeout_at(None if is_draining else ends_s):
                        await self._changed.wait()
                except TimeoutError:
                    self._grant(1, drain=True)
                self._check_open()
                if is_draining and not link.is_draining:
                    break
            return self._arrived.popleft() if self._arrived else None
        finally:
            if not self.has_ended and link.credit:
                self._grant(0)

    def _grant(self, credit: int, *, drain: bool = False) -> None:
        self._link.grant(credit, drain=drain)
        self._session.flush()
