"""Makes the groups of subscriptions, counts their links, and deletes them. On the event loop.

A durable subscription is deleted when its last link is closed; a detached link keeps it. A volatile
one is deleted when its last link ends, for whatever reason. So a client that closes its link cannot
take away a subscription that other clients use.
"""

import asyncio
from collections import Counter
from contextlib import suppress

from holdfast.amqp.termini.subscriptions import VOLATILE_PREFIX, SubscriptionName
from holdfast.amqp.wire.conditions import NOT_ALLOWED, LinkFailed
from holdfast.consumequeue.errors import StateUnavailable, UnknownGroup
from holdfast.groups.service import GroupService
from holdfast.groups.settings import GroupSettings, Subscription


class SubscriptionGroups:
    """The subscriptions that have links, and those that are being deleted."""

    def __init__(self) -> None:
        self._links: Counter[str] = Counter()
        #: The groups that are to be deleted. Their subscriptions do not exist any more.
        self._deleting: set[str] = set()
        #: Only one subscription is made or deleted at a time, as in the group service.
        self._lock = asyncio.Lock()

    def exists(self, groups: GroupService, name: SubscriptionName) -> bool:
        """Return whether there is this subscription."""
        return groups.has_leases(name.group) and name.group not in self._deleting

    async def open(
        self, groups: GroupService, name: SubscriptionName, topic: str, condition: str | None,
        owner: str,
    ) -> None:  # fmt: skip
        """Add a link to a subscription; make its group if there is none. `link_ended` must follow.

        A subscription with another topic or filter is replaced, as JMS demands. If it has other
        links, LinkFailed is raised (amqp:not-allowed). Raises also what `put_group` and
        `delete_group` raise. After an exception no link was added.
        """
        settings = GroupSettings(topics={topic: Subscription(filter=condition)}, start="latest")
        async with self._lock:
            if self.exists(groups, name):
                record = groups.group_state(name.group).record
                if record.subscriptions != settings.topics:
                    if self._links[name.group]:
                        raise LinkFailed(
                            NOT_ALLOWED,
                            "the subscription has other consumers, with another topic or filter",
                        )
                    self._deleting.add(name.group)
            await self._delete_due(groups, name.group)
            if not groups.has_leases(name.group):
                await groups.put_group(name.group, settings, owner)
            self._links[name.group] += 1

    def link_ended(self, name: SubscriptionName, *, is_closed: bool) -> None:
        """Remove a link. `is_closed` is False if the client may attach it again. `clean` must
        follow."""
        self._links[name.group] -= 1
        if not self._links[name.group]:
            del self._links[name.group]
            if name.is_volatile or is_closed:
                self._deleting.add(name.group)

    def unsubscribe(self, name: SubscriptionName) -> None:
        """Delete a subscription, unless it has links. `clean` must follow."""
        if name.group not in self._links:
            self._deleting.add(name.group)

    async def clean(self, groups: GroupService, name: SubscriptionName) -> None:
        """Delete the group of a subscription that does not exist any more."""
        async with self._lock:
            # If the state cannot be stored, the next `open` tries it again.
            with suppress(StateUnavailable):
                await self._delete_due(groups, name.group)

    async def remove_leftovers(self, groups: GroupService) -> None:
        """Delete the volatile subscriptions of a broker that did not stop cleanly. If one cannot be
        deleted now, the next `open` or the next start deletes it."""
        for group in groups.groups():
            if group.startswith(VOLATILE_PREFIX):
                self._deleting.add(group)
                with suppress(StateUnavailable):
                    await self._delete_due(groups, group)

    async def _delete_due(self, groups: GroupService, group: str) -> None:
        if group in self._deleting:
            with suppress(UnknownGroup):
                await groups.delete_group(group)
            self._deleting.discard(group)
