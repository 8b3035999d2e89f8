"""A link of a subscription: makes the subscription, and deletes it if it ends with the link."""

from collections.abc import Coroutine
from typing import Any

from msgspec.structs import replace

from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.nodes.group_access import check_consume, ensure_topic
from holdfast.amqp.nodes.leased_source import LeasedSource
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.terminus import FromSubscription
from holdfast.holdservice.no_local import not_published_by


async def open_subscription(
    peer: Peer, link: OutgoingLink, wanted: FromSubscription
) -> LeasedSource:
    """Return the node of a link to a subscription. The subscription is made if it does not exist,
    and so is a missing topic if `topics.auto_create_topics` is on and the address names it without
    "/topics/".

    The principal must have the grant to consume the topic with the subscription's group. Raises
    Denied, UnknownTopic, LinkFailed and the errors of `put_group`.
    """
    parts, name, condition = peer.parts, wanted.subscription, wanted.condition
    subscriptions = parts.subscriptions
    check_consume(peer, (wanted.topic,), name.group)
    if not str(wanted.answer.address).startswith("/topics/"):
        await ensure_topic(peer, wanted.topic)
    parts.store.table.get(wanted.topic)
    if wanted.is_no_local:
        condition = not_published_by(peer.container_id, condition)
    await subscriptions.open(parts.groups, name, wanted.topic, condition, peer.principal.name)

    def on_stop(is_closed: bool) -> Coroutine[Any, Any, None]:
        subscriptions.link_ended(name, is_closed=is_closed)
        return subscriptions.clean(parts.groups, name)

    # The group applies the filter, so messages that do not match do not remain in it.
    of_link = replace(wanted, condition=None, is_no_local=False)
    return LeasedSource(peer, link, of_link, on_stop=on_stop)
