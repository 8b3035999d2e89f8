"""Makes the node of a link: checks the grants, finds the topic or group, answers the attach.

| terminus of the broker                      | node                                        |
|---------------------------------------------|---------------------------------------------|
| target with an address                      | PublishTarget; creates a missing topic      |
| target without an address                   | PublishTarget; each message names its topic |
| target `/management`                        | RequestTarget                               |
| source: see `terminus.py`                   | LeasedSource, CopiedSource, BrowsingSource  |
| source `/management`                        | ReplySource                                 |
| no source                                   | SubscriptionLookup                          |
| dynamic, or of a temporary node             | the same nodes, on a TemporaryNode          |
| coordinator of transactions                 | refused: amqp:not-implemented               |
"""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

from msgspec.structs import replace

from holdfast.amqp.engine.incoming_link import IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink
from holdfast.amqp.engine.resumption import Resumable
from holdfast.amqp.engine.session import Session
from holdfast.amqp.nodes.addresses import Address, Kind, parse_address
from holdfast.amqp.nodes.browsing_source import BrowsingSource
from holdfast.amqp.nodes.copied_source import CopiedSource
from holdfast.amqp.nodes.group_access import ensure_topic
from holdfast.amqp.nodes.leased_source import LeasedSource
from holdfast.amqp.nodes.management import open_replies, open_requests
from holdfast.amqp.nodes.node import Peer, Source, Target
from holdfast.amqp.nodes.publish_target import (
    Destination,
    PublishTarget,
    address_of,
    destination_of,
)
from holdfast.amqp.nodes.stored_copies import MAYBE_STORED, find_copies
from holdfast.amqp.nodes.subscribing import open_subscription
from holdfast.amqp.nodes.subscription_lookup import SubscriptionLookup
from holdfast.amqp.nodes.suspended_links import LinkKey
from holdfast.amqp.nodes.temporary import TemporaryNode, read_dynamic
from holdfast.amqp.nodes.terminus import FromGroup, FromSubscription, Wanted, read_source
from holdfast.amqp.termini.subscriptions import looked_up, subscription_of
from holdfast.amqp.wire import performatives
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_ALLOWED,
    NOT_IMPLEMENTED,
    LinkFailed,
)
from holdfast.amqp.wire.performatives import Attach, Coordinator
from holdfast.commitlog.format.session_ids import publisher_hash
from holdfast.consumequeue.topics import check_queue
from holdfast.http_api.access.authorization import missing_grant

_QUEUE, _TOPIC = "queue", "topic"
#: A link has at most 1.5 times its credit of messages without outcome. The copies of this many
#: times the credit suffice for eight links of a client to one topic.
_COPIES_PER_CREDIT = 12
#: The longest address. The broker keeps it while the link is attached.
_MAX_ADDRESS_CHARACTERS = 1024


async def make_target(peer: Peer, session: Session, link: IncomingLink) -> tuple[Target, Attach]:
    """Return the node to which a client sends, and the answer to its attach.

    Raises LinkFailed, or an error that `amqp_error` translates: the link is to be refused.
    """
    attach = _attach_of(link)
    given = attach.target
    if isinstance(given, Coordinator):
        raise LinkFailed(NOT_IMPLEMENTED, "this broker has no transactions")
    if given is None:
        given = performatives.Target()
    destination: Destination | None = None
    capabilities: tuple[str, ...] = ()
    # For the anonymous relay, which is the only sender of many programs: a message above the limit
    # of its topic is rejected, and the link goes on.
    link.max_message_bytes = peer.parts.config.max_incoming_bytes
    if given.dynamic:
        made = await _make_temporary(peer, link, given)
        given = given._replace(**made.answer())
        destination, capabilities = destination_of(made), given.capabilities
    elif given.address is not None:
        address = parse_address(_text(given.address))
        if address.kind is Kind.MANAGER:
            return open_requests(peer, session, link)
        destination = await _find_destination(peer, link, address)
        capabilities = _capabilities(peer, given, address)
    if destination is not None:
        link.max_message_bytes = destination.topic.config.max_message_bytes
    resumable = await _resumable(peer, link)
    copies: Sequence[bytes] = ()
    if destination is not None:
        copies = await _find_copies(peer, attach, destination, resumable)
    node = PublishTarget(peer, session, link, destination, resumable, copies)
    answer = Attach(
        link.name,
        link.handle,
        link.role,
        attach.snd_settle_mode,
        attach.rcv_settle_mode,
        attach.source,
        given._replace(
            dynamic_node_properties=given.dynamic_node_properties if given.dynamic else None,
            capabilities=capabilities,
        ),
        max_message_size=link.max_message_bytes,
        unsettled={
            tag: None if state is MAYBE_STORED else state for tag, state in resumable.states.items()
        }
        or None,
    )
    return node, answer


async def _find_copies(
    peer: Peer, attach: Attach, destination: Destination, resumable: Resumable
) -> Sequence[bytes]:
    """Return the digests of messages that the client may have sent on an earlier link. If there are
    any, add those deliveries of its map whose outcomes neither end knows to `resumable`."""
    tags = [
        tag
        for tag, state in (attach.unsettled or {}).items()
        if state is None and tag not in resumable.states
    ]
    parts = peer.parts
    if not tags or not parts.config.resume_timeout_ms:
        return ()
    async with parts.suspended.search(peer.client):
        most = min(
            _COPIES_PER_CREDIT * parts.config.publish_credit,
            parts.suspended.room(peer.client, parts.config) - len(tags),
        )
        copies = await find_copies(
            parts.store, destination.topic, publisher_hash(peer.container_id), most,
            queue=destination.queue, tag=destination.tag,
        )  # fmt: skip
    if copies:
        for tag in tags:
            resumable.keep(tag, MAYBE_STORED)
    return copies


async def _resumable(peer: Peer, link: IncomingLink) -> Resumable:
    """Return the deliveries that the client may resume: those of its map that this end has, too."""
    attach = _attach_of(link)
    key = LinkKey(peer.principal.name, peer.container_id, link.name)
    now_s = asyncio.get_running_loop().time()
    resumable = await peer.parts.suspended.take(key, address_of(attach), now_s)
    resumable.sender_attached(attach.unsettled, is_incomplete=attach.incomplete_unsettled)
    return resumable


async def make_source(peer: Peer, link: OutgoingLink) -> tuple[Source, Attach]:
    """Return the node from which a client receives, and the answer to its attach.

    Raises LinkFailed, or an error that `amqp_error` translates: the link is to be refused.
    """
    attach = _attach_of(link)
    given = attach.source
    if attach.unsettled:
        raise LinkFailed(
            NOT_IMPLEMENTED,
            "this broker resumes no deliveries to a receiver: they have returned to their group, "
            "or come again from the topic; attach the link without the map unsettled",
        )
    node: Source
    if given is None:
        lookup = SubscriptionLookup(peer, link, looked_up(peer.container_id, link.name))
        return lookup, _source_answer(link, lookup.stored_source())
    if given.dynamic:
        made = await _make_temporary(peer, link, given)
        wanted = _from_temporary(made, given)
        wanted = replace(wanted, answer=wanted.answer._replace(**made.answer()))
    else:
        address = parse_address(_text(given.address))
        if address.kind is Kind.MANAGER:
            return open_replies(peer, link)
        wanted = _read_source(peer, link, given, address)
    if isinstance(wanted, FromSubscription):
        node = await open_subscription(peer, link, wanted)
    elif not isinstance(wanted, FromGroup):
        node = CopiedSource(peer, link, wanted)
    elif wanted.is_browsed:
        node = BrowsingSource(peer, link, wanted)
    else:
        node = LeasedSource(peer, link, wanted)
    try:
        await node.start()
    except BaseException:
        node.stop(is_closed=False)
        raise
    return node, _source_answer(link, wanted.answer)


def _source_answer(link: OutgoingLink, source: performatives.Source) -> Attach:
    attach = _attach_of(link)
    return Attach(
        link.name,
        link.handle,
        link.role,
        attach.snd_settle_mode,
        attach.rcv_settle_mode,
        source,
        attach.target if isinstance(attach.target, performatives.Target) else None,
        initial_delivery_count=0,
    )


def _capabilities(peer: Peer, given: performatives.Target, address: Address) -> tuple[str, ...]:
    """Return what the node of a target is: a queue or a topic, or a temporary one."""
    if address.kind is Kind.TEMP:
        return peer.parts.temporary.find(address.name).capabilities
    is_topic = address.kind is Kind.TOPIC or _TOPIC in given.capabilities
    return (_TOPIC if is_topic else _QUEUE,)


async def _make_temporary(
    peer: Peer,
    link: IncomingLink | OutgoingLink,
    given: performatives.Source | performatives.Target,
) -> TemporaryNode:
    asked = read_dynamic(given.dynamic_node_properties, given.capabilities)
    detach = _detach(peer, link)
    return await peer.parts.temporary.make(peer, peer.client, link, detach, asked)


def _detach(peer: Peer, link: IncomingLink | OutgoingLink) -> Callable[[LinkFailed], None]:
    """Return a function that detaches a link, for the end of its temporary node.

    The detach of a sending link has no error: it is normal that a client which got its replies
    ends before its server closes the link, and many client libraries end the whole program for an
    error of a link.
    """

    def detach(error: LinkFailed) -> None:
        if link.is_attached:
            peer.detach(link, None if isinstance(link, IncomingLink) else error)
            peer.flush()

    return detach


def _from_temporary(node: TemporaryNode, given: performatives.Source) -> Wanted:
    """Return what a link gets from a temporary node, with the filters and the mode that it asks
    for: a share of the messages of a queue, or a copy of a topic's."""
    kind = Kind.TOPIC if node.is_topic else Kind.GROUP
    source = given._replace(address=node.address, dynamic=False, capabilities=())
    return read_source(source, Address(kind, node.name))


def _read_source(
    peer: Peer, link: OutgoingLink, given: performatives.Source, address: Address
) -> Wanted:
    """Return what a link gets from the node with an address."""
    if address.kind is not Kind.TEMP:
        subscription = subscription_of(peer.container_id, link.name, given)
        return read_source(given, address, subscription)
    node = peer.parts.temporary.find_own(address.name, peer)
    peer.parts.temporary.link_begins(node, link, _detach(peer, link))
    return _from_temporary(node, given)


async def _find_destination(peer: Peer, link: IncomingLink, address: Address) -> Destination:
    """Return where messages of a link go. Make the topic if that is allowed."""
    if address.kind is Kind.GROUP:
        raise LinkFailed(NOT_ALLOWED, "clients publish to topics, not to groups")
    if address.kind is Kind.TEMP:
        node = peer.parts.temporary.find(address.name)
        peer.parts.temporary.link_begins(node, link, _detach(peer, link))
        return destination_of(node)
    if not peer.principal.may(("publish",), address.name):
        raise missing_grant(peer.principal, ("publish",), topic=address.name)
    topic = await ensure_topic(peer, address.name)
    if address.queue is not None:
        check_queue(topic, address.queue)
    return Destination(topic, address.queue, address.tag)


def _attach_of(link: IncomingLink | OutgoingLink) -> Attach:
    assert link.remote is not None
    return link.remote


def _text(address: Any) -> str:
    if not isinstance(address, str) or not 0 < len(address) <= _MAX_ADDRESS_CHARACTERS:
        raise LinkFailed(
            INVALID_FIELD, f"an address is a text of 1 to {_MAX_ADDRESS_CHARACTERS} characters"
        )
    return address
