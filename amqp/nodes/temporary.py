"""Temporary nodes: topics and groups that belong to a connection, and end with it.

    attach with a dynamic source or target -> topic (and group) `__amqp.ID` -> address `/temp/ID`

A client uses them for replies. Every client that knows the address may send to it; only the
connection that made the node may receive from it. HTTP refuses the names of the topics and groups.
A node is deleted, with its messages, when its lifetime policy says so, and at the latest when its
connection ends. What a killed broker leaves is deleted at the next start.
"""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from secrets import token_hex
from typing import Any, NamedTuple

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.link import Link
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_FOUND,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    RESOURCE_LOCKED,
    LinkFailed,
)
from holdfast.amqp.wire.performatives import (
    DeleteOnClose,
    DeleteOnNoLinks,
    DeleteOnNoLinksOrMessages,
    DeleteOnNoMessages,
)
from holdfast.amqp.wire.types import Described, Symbol
from holdfast.consumequeue.errors import (
    InvalidName,
    StateUnavailable,
    StoreError,
    UnknownGroup,
    UnknownTopic,
)
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic
from holdfast.groups.service import GroupService
from holdfast.groups.settings import GroupSettings, Subscription

#: The address of a node, and the name of its topic and group, without the id.
ADDRESS_PREFIX, NAME_PREFIX = "/temp/", "__amqp."
LIFETIME_POLICY = Symbol("lifetime-policy")
TEMPORARY_QUEUE, TEMPORARY_TOPIC = "temporary-queue", "temporary-topic"

LifetimePolicy = DeleteOnClose | DeleteOnNoLinks | DeleteOnNoMessages | DeleteOnNoLinksOrMessages
#: The policies by their descriptors (parts 3.5.10 to 3.5.13 of the specification).
_POLICIES: dict[Any, LifetimePolicy] = {
    0x2B: DeleteOnClose(),
    0x2C: DeleteOnNoLinks(),
    0x2D: DeleteOnNoMessages(),
    0x2E: DeleteOnNoLinksOrMessages(),
    "amqp:delete-on-close:list": DeleteOnClose(),
    "amqp:delete-on-no-links:list": DeleteOnNoLinks(),
    "amqp:delete-on-no-messages:list": DeleteOnNoMessages(),
    "amqp:delete-on-no-links-or-messages:list": DeleteOnNoLinksOrMessages(),
}
_UNTIL_NO_LINKS = (DeleteOnNoLinks, DeleteOnNoLinksOrMessages)
_UNTIL_NO_MESSAGES = (DeleteOnNoMessages, DeleteOnNoLinksOrMessages)
#: How often the broker looks whether a node still has messages, if only they keep it.
_LOOK_S = 1.0


Detach = Callable[[LinkFailed], None]
"""Detaches a link. The error is for a link that receives from the node."""


class Asked(NamedTuple):
    """What a client asks for with a dynamic source or target."""

    is_topic: bool
    """Whether each receiver gets a copy of every message. Otherwise the receivers share them."""
    policy: LifetimePolicy


def read_dynamic(properties: dict[Any, Any] | None, capabilities: tuple[Any, ...]) -> Asked:
    """Return what a dynamic source or target asks for: by default a queue that is deleted when its
    link closes. Raises LinkFailed (amqp:invalid-field)."""
    policy: LifetimePolicy | None = DeleteOnClose()
    given = (properties or {}).get(LIFETIME_POLICY)
    if given is not None:
        policy = _POLICIES.get(given.descriptor) if isinstance(given, Described) else None
    if policy is None:
        raise LinkFailed(INVALID_FIELD, "the lifetime-policy is none of the specification")
    is_topic = TEMPORARY_TOPIC in capabilities or "topic" in capabilities
    return Asked(is_topic, policy)


@dataclass(eq=False)
class TemporaryNode:
    """One temporary node. `name` is that of its topic, and of its group if it is a queue."""

    name: str
    address: str
    owner: object
    """The connection that made the node."""
    client: str
    """The address of the client, for the limit per client."""
    is_topic: bool
    policy: LifetimePolicy
    maker: Link
    """The link that made the node."""
    making: asyncio.Task[None] | None = None
    topic: Topic | None = None
    """None while the node is being made."""
    links: dict[Link, Detach] = field(default_factory=dict)
    """The attached links, and those whose attach is being answered."""
    is_deleted: bool = False
    is_watched: bool = False
    """Whether a task waits until the node has no messages."""

    @property
    def capabilities(self) -> tuple[Symbol]:
        """What the node is, as the answer to an attach says it."""
        return (Symbol(TEMPORARY_TOPIC if self.is_topic else TEMPORARY_QUEUE),)

    def answer(self) -> dict[str, Any]:
        """Return the fields of the answered source or target that describe the node."""
        return {
            "address": self.address,
            "dynamic": True,
            "dynamic_node_properties": {LIFETIME_POLICY: self.policy},
            "capabilities": self.capabilities,
        }


class TemporaryNodes:
    """The temporary nodes of all connections. Belongs to the event loop."""

    def __init__(self, store: MessageStore, groups: GroupService, config: AmqpConfig) -> None:
        self._store, self._groups, self._config = store, groups, config
        self._by_name: dict[str, TemporaryNode] = {}
        self._of_link: dict[Link, TemporaryNode] = {}
        self._of_client: Counter[str] = Counter()
        self._of_owner: dict[object, set[TemporaryNode]] = {}
        self._changes: set[asyncio.Task[None]] = set()
        """The nodes that are being made or deleted."""
        self._watches: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._by_name)

    def find(self, node_id: str) -> TemporaryNode:
        """Return the node with the address `/temp/NODE_ID`. Raises LinkFailed (amqp:not-found)."""
        node = self._by_name.get(NAME_PREFIX + node_id)
        if node is None or node.topic is None or node.is_deleted:
            raise LinkFailed(NOT_FOUND, f"there is no temporary node {ADDRESS_PREFIX + node_id!r}")
        return node

    def find_own(self, node_id: str, owner: object) -> TemporaryNode:
        """Return a node from which a connection may receive.

        Raises LinkFailed: amqp:not-found, or amqp:resource-locked if another connection made it.
        """
        node = self.find(node_id)
        if node.owner is not owner:
            raise LinkFailed(RESOURCE_LOCKED, "only the connection that made the node may receive")
        return node

    async def make(
        self, owner: object, client: str, link: Link, detach: Detach, asked: Asked
    ) -> TemporaryNode:
        """Make a node for a link. `link_ended` must follow, also after an exception.

        Raises LinkFailed (amqp:resource-limit-exceeded), LimitReached, StateUnavailable.
        """
        config = self._config
        if len(self) >= config.max_temporary_nodes:
            raise _too_many("max_temporary_nodes", config.max_temporary_nodes)
        if self._of_client[client] >= config.max_client_temporary_nodes:
            raise _too_many("max_client_temporary_nodes", config.max_client_temporary_nodes)
        node_id = token_hex(16)
        name = NAME_PREFIX + node_id
        node = TemporaryNode(
            name, ADDRESS_PREFIX + node_id, owner, client, asked.is_topic, asked.policy, link
        )
        self._by_name[name] = node
        self._of_client[client] += 1
        self._of_owner.setdefault(owner, set()).add(node)
        self.link_begins(node, link, detach)
        node.making = self._run(self._make(node), self._changes)
        await asyncio.shield(node.making)
        return node

    async def _make(self, node: TemporaryNode) -> None:
        fields = {"durability": "written", "retention_ms": self._config.temporary_retention_ms}
        topic, _ = await self._store.topics.create(node.name, queues=1, fields=fields, own=True)
        if not node.is_topic:
            settings = GroupSettings(topics={node.name: Subscription()}, start="earliest")
            await self._groups.put_group(node.name, settings, own=True)
        node.topic = topic

    def link_begins(self, node: TemporaryNode, link: Link, detach: Detach) -> None:
        """Count a link of a node. `link_ended` must follow. `detach` is called if the node is
        deleted before."""
        node.links[link] = detach
        self._of_link[link] = node

    def link_ended(self, link: Link) -> None:
        """A link has ended: if it was the last reason for its node, delete the node. Do nothing
        for a link that has no temporary node."""
        node = self._of_link.pop(link, None)
        if node is not None:
            del node.links[link]
            self._review(node)

    def connection_ended(self, owner: object) -> None:
        """Delete the nodes of a connection."""
        for node in list(self._of_owner.get(owner, ())):
            self._delete_soon(node)

    async def finish(self, timeout_s: float) -> None:
        """Wait at most `timeout_s` until the deletions that have begun have ended. No connection
        may be left. The next start deletes what is left."""
        for watch in self._watches:
            watch.cancel()
        if self._changes:
            await asyncio.wait(self._changes, timeout=timeout_s)

    async def remove_leftovers(self) -> None:
        """Delete the temporary nodes of a broker that did not stop cleanly. If the state cannot be
        stored now, the next start deletes them."""
        with suppress(StateUnavailable):
            for group in self._groups.groups():
                if group.startswith(NAME_PREFIX):
                    await self._groups.delete_group(group)
            for topic in self._store.table.all():
                if topic.name.startswith(NAME_PREFIX):
                    await self._store.topics.delete(topic.name)

    # -- the end of a node ---------------------------------------------------------------------

    def _review(self, node: TemporaryNode) -> None:
        """Delete a node if its lifetime has ended. If only its messages keep it, wait for them."""
        if node.is_deleted or node.maker in node.links:
            return
        if isinstance(node.policy, _UNTIL_NO_LINKS) and node.links:
            return
        if not isinstance(node.policy, _UNTIL_NO_MESSAGES) or node.is_topic:
            self._delete_soon(node)
        elif not node.is_watched:
            node.is_watched = True
            self._run(self._await_no_messages(node), self._watches)

    async def _await_no_messages(self, node: TemporaryNode) -> None:
        """Wait until all messages of a queue are settled. Then delete it, unless it has links and
        its policy keeps it for them."""
        while await self._has_messages(node):  # noqa: ASYNC110 - settling reports nothing
            await asyncio.sleep(_LOOK_S)
        node.is_watched = False
        if not (isinstance(node.policy, _UNTIL_NO_LINKS) and node.links):
            self._delete_soon(node)

    async def _has_messages(self, node: TemporaryNode) -> bool:
        if node.topic is None or node.is_deleted:
            return False
        try:
            floors = await self._groups.floors(node.name, node.name)
        except StoreError:  # it was deleted meanwhile
            return False
        end = self._store.reading.max_offset((node.topic.topic_id, 0))
        return end is not None and floors.get(0, 0) < end

    def _delete_soon(self, node: TemporaryNode) -> None:
        if node.is_deleted:
            return
        node.is_deleted = True
        gone = LinkFailed(RESOURCE_DELETED, "the temporary node has ended")
        for detach in list(node.links.values()):
            detach(gone)
        self._run(self._delete(node), self._changes)

    async def _delete(self, node: TemporaryNode) -> None:
        """Delete the group and the topic. If the state cannot be stored, the next start does it."""
        if node.making is not None:
            await asyncio.wait([node.making])
        with suppress(StateUnavailable):
            with suppress(UnknownGroup, InvalidName):
                await self._groups.delete_group(node.name)
            with suppress(UnknownTopic, InvalidName):
                await self._store.topics.delete(node.name)
        del self._by_name[node.name]
        nodes = self._of_owner[node.owner]
        nodes.discard(node)
        if not nodes:
            del self._of_owner[node.owner]
        self._of_client[node.client] -= 1
        if not self._of_client[node.client]:
            del self._of_client[node.client]

    def _run(
        self, work: Coroutine[Any, Any, None], tasks: set[asyncio.Task[None]]
    ) -> asyncio.Task[None]:
        task = asyncio.get_running_loop().create_task(work, name="amqp-temporary")
        tasks.add(task)
        task.add_done_callback(tasks.discard)
        return task


def _too_many(setting: str, limit: int) -> LinkFailed:
    return LinkFailed(
        RESOURCE_LIMIT_EXCEEDED, f"there are amqp.{setting} ({limit}) temporary nodes already"
    )
