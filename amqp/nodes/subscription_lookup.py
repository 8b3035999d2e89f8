"""A link without a source: a client looks up a durable subscription, to delete it or to see it.

The answer has the stored source. No messages come. If the client then closes the link, the
subscription is deleted; if it detaches the link, the subscription stays.
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.nodes.group_access import check_consume
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.terminus import COPY, OUTCOMES, TOPIC
from holdfast.amqp.termini.subscriptions import NEVER, SubscriptionName
from holdfast.amqp.wire.conditions import NOT_FOUND, LinkFailed
from holdfast.amqp.wire.performatives import Source
from holdfast.amqp.wire.types import Symbol


class SubscriptionLookup:
    """See the module. It implements `Source` of node.py."""

    def __init__(self, peer: Peer, link: OutgoingLink, name: SubscriptionName) -> None:
        self._peer, self._link, self._name = peer, link, name
        self._deleting: asyncio.Task[None] | None = None

    def stored_source(self) -> Source:
        """Return the source of the subscription. Raises LinkFailed if there is none, and Denied."""
        parts, group = self._peer.parts, self._name.group
        groups = parts.groups
        if not parts.subscriptions.exists(groups, self._name):
            raise LinkFailed(NOT_FOUND, "there is no subscription of this name")
        topics = tuple(groups.group_state(group).record.subscriptions)
        check_consume(self._peer, topics, group)
        return Source(
            topics[0],
            durable=2,
            expiry_policy=NEVER,
            distribution_mode=COPY,
            outcomes=OUTCOMES,
            capabilities=(Symbol(TOPIC),),
        )

    async def start(self) -> None:
        """There is nothing to prepare."""

    def credit_changed(self) -> None:
        """Answer a drain or an echo: no message comes."""
        if self._link.is_draining:
            self._link.drained()
            self._peer.flush()

    def room_changed(self) -> None:
        """There is nothing to send."""

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """There are no deliveries."""

    def stop(self, *, is_closed: bool) -> None:
        """If the client has closed the link, begin to delete the subscription."""
        if is_closed:
            parts = self._peer.parts
            parts.subscriptions.unsubscribe(self._name)
            work = parts.subscriptions.clean(parts.groups, self._name)
            self._deleting = asyncio.create_task(work, name="amqp-unsubscribe")

    async def finish(self) -> None:
        """Return once the subscription is deleted."""
        if self._deleting is not None:
            await asyncio.wait([self._deleting])
