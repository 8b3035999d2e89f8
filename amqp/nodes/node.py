"""What a link is attached to (a node), and what a node may use of its connection.

    Attach of a client -> `nodes/attaching.py` finds or makes the node -> events of the link

The connection (`amqp/protocol.py`) calls the methods of a node on the event loop, in the order of
the link's events. A node does not wait in these methods; what takes longer it does in tasks that
end with `stop`.

| node           | constructor                          | made by `nodes/attaching.py` for        |
|----------------|--------------------------------------|-----------------------------------------|
| PublishTarget  | `(peer, session, link, destination,` | a Destination, or None: the null target |
|                | `resumable)`                         |                                         |
| LeasedSource   | `(peer, link, wanted)`               | a FromGroup that is not browsed         |
| BrowsingSource | `(peer, link, wanted)`               | a FromGroup that is browsed             |
| CopiedSource   | `(peer, link, wanted)`               | a FromTopic                             |
| RequestTarget  | `(peer, session, link, answer)`      | the target `/management`                |
| ReplySource    | `(peer, link)`                       | the source `/management`                |
"""

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any, Protocol

import msgspec

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.engine.link import Link
from holdfast.amqp.engine.outgoing_link import Sent
from holdfast.amqp.nodes.filters import FilterBudget
from holdfast.amqp.nodes.modified_annotations import ModifiedAnnotations
from holdfast.amqp.nodes.suspended_links import SuspendedLinks
from holdfast.amqp.nodes.temporary import TemporaryNodes
from holdfast.amqp.termini.subscription_groups import SubscriptionGroups
from holdfast.amqp.wire.conditions import AmqpError
from holdfast.consumequeue.config import TopicsConfig
from holdfast.consumequeue.message_store import MessageStore
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.http_api.access.authorization import Access
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.limits.rate_limiter import PublishLimiter
from holdfast.http_api.metrics import TopicCounters
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import Peer as HttpPeer

Answer = Callable[[HttpPeer, str, str, bytes], AbstractAsyncContextManager[Reply]]
"""Answers a request of the HTTP API: its caller, method, path with query, and body. The limits
count the reply until the context ends."""


class BrokerParts(msgspec.Struct, frozen=True):
    """The parts of the broker that AMQP uses."""

    config: AmqpConfig
    store: MessageStore
    groups: GroupService
    hold: PullRequestHoldService
    access: Access
    topics_config: TopicsConfig
    groups_config: GroupsConfig
    publish_limiter: PublishLimiter
    """The limits on how much each client publishes. HTTP and AMQP share them."""
    topic_counters: Callable[[str], TopicCounters]
    """Returns the counters of a topic, by its name."""
    wall_us: Callable[[], int]
    temporary: TemporaryNodes
    answer: Answer | None = None
    """Answers requests to `/management`; None if the broker has no HTTP API."""
    filter_budget: FilterBudget = msgspec.field(default_factory=FilterBudget)
    subscriptions: SubscriptionGroups = msgspec.field(default_factory=SubscriptionGroups)
    modified: ModifiedAnnotations = msgspec.field(default_factory=ModifiedAnnotations)
    suspended: SuspendedLinks = msgspec.field(default_factory=SuspendedLinks)
    credit_granted: Callable[[], None] = lambda: None
    """Called for each grant of credit to a link on which a client publishes."""


class Peer(Protocol):
    """The client at the other end of a connection."""

    parts: BrokerParts
    principal: Principal
    client: str
    """The client's address, as the limits per client use it."""
    container_id: str
    replies: "list[ReplyLink]"
    """The links of the connection that receive replies of `/management`."""

    @property
    def remote(self) -> str:
        """The client's address, as the audit log has it."""

    @property
    def has_room(self) -> bool:
        """Whether the socket accepts more output now. If not, `room_changed` follows."""

    def flush(self) -> None:
        """Send the output of the engine at the end of this event loop iteration. A node calls this
        after it has used its link or session in a task or callback of its own."""

    def flush_now(self) -> None:
        """Send the output of the engine now, unless output waits already for the end of this event
        loop iteration. A node calls this for messages that a client waits for."""

    def detach(self, link: Link, error: AmqpError | None) -> None:
        """Detach a link for an error that its node found, or without one, and stop the node."""


class ReplyLink(Protocol):
    """A link that receives replies of `/management`."""

    name: str
    address: str | None
    """The address that the client gave as the target of the link."""

    def start(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run `serve`, which answers a request. It is cancelled when the link ends."""

    async def send(self, message: bytes) -> bool:
        """Send a reply as soon as the client takes it. Return False if the client did not take it
        in time, or cannot take it."""


class Target(Protocol):
    """A node to which a client sends messages."""

    def start(self) -> None:
        """Grant the first credit. Called when the attach was answered."""

    async def finish(self) -> None:
        """Return once every delivery that arrived has its outcome. Called before the broker
        stops, and after `stop`."""

    def deliveries_arrived(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries of the link, in order."""

    def sender_settled(self, deliveries: Sequence[tuple[int, Delivery]], state: Any) -> None:
        """The sender has settled deliveries (rcv-settle-mode second)."""

    def stop(self, *, is_closed: bool) -> None:
        """The link has ended. `is_closed` is False if the client may attach it again."""


class Source(Protocol):
    """A node from which a client receives messages."""

    async def start(self) -> None:
        """Prepare the node, before the attach is answered. Raises LinkFailed; then the attach is
        refused with this error, and only `stop` is called. `credit_changed` is called after the
        answer: the client may have given credit before."""

    async def finish(self) -> None:
        """Return once the tasks that `stop` began have ended. Called after `stop`."""

    def credit_changed(self) -> None:
        """The client changed the credit of the link, or asks for a drain."""

    def room_changed(self) -> None:
        """The window of the session or the socket has room again."""

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """The client gave the outcome of deliveries. With `is_settled`, the engine has forgotten
        these deliveries; otherwise the node settles them with `Session.dispose`."""

    def stop(self, *, is_closed: bool) -> None:
        """The link has ended. `is_closed` is False if the client may attach it again."""
