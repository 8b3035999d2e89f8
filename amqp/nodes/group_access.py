"""Prepares a link's access to a group: checks grants, creates the group, makes a member name.

The rules are those of the HTTP API: to receive from a group, a principal must have the verb
`consume` for the group together with each topic that is asked for. To make the topic of a group,
it must have the verb `admin`.
"""

import re
from dataclasses import dataclass, field
from secrets import token_hex

from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.temporary import NAME_PREFIX
from holdfast.amqp.nodes.terminus import FromGroup
from holdfast.consumequeue.topics import Topic
from holdfast.groups.errors import NotSubscribed
from holdfast.groups.service_types import GroupState
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.http_api.access.authorization import Access, check_may_create, missing_grant
from holdfast.http_api.access.grants import ANONYMOUS, GROUP_VERBS, Principal, Verb

#: How much of the client's container-id the name of a member has.
_READABLE_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class MayConsume:
    """Decides from which topics a link may get messages. Objects of the same principal and group
    are equal."""

    name: str
    group: str
    principal: Principal = field(compare=False)
    access: Access = field(compare=False)

    def __call__(self, topic: str) -> bool:
        is_valid = self.access.is_still_valid(self.principal)
        return is_valid and self.principal.may(("consume",), topic, self.group)


def may_consume(peer: Peer, group: str) -> MayConsume | None:
    """Return the object that decides which topics the client may consume with a group. Return None
    if the client may consume all topics."""
    principal = peer.principal
    if principal is ANONYMOUS or group.startswith(NAME_PREFIX):
        return None
    return MayConsume(principal.name, group, principal, peer.parts.access)


def make_member(container_id: str) -> str:
    """Return a new member name, which begins with the readable part of the client's container-id.
    Every link is a member of its own."""
    readable = re.sub(r"[^A-Za-z0-9_.-]+", "-", container_id)[:_READABLE_CHARACTERS]
    return f"amqp:{readable}:{token_hex(8)}"


async def ensure_group(peer: Peer, wanted: FromGroup) -> GroupState:
    """Return the group that a link asks for. If its address allows that and it does not exist,
    make it: a competing group that begins at the earliest message of the topic of the same name.

    Raises Denied, UnknownGroup, UnknownTopic, NotSubscribed, LimitReached, StateUnavailable.
    """
    groups, name = peer.parts.groups, wanted.group
    if name.startswith(NAME_PREFIX):
        return groups.group_state(name)  # only the node's connection gets here
    if not peer.principal.may(("consume",), None, name):
        raise missing_grant(peer.principal, ("consume",), group=name)
    if not groups.has_leases(name) and wanted.is_made_by_need:
        check_consume(peer, (name,), name, GROUP_VERBS)
        await ensure_topic(peer, name)
        settings = GroupSettings(topics={name: Subscription()}, start="earliest")
        state, _ = await groups.put_group(name, settings, peer.principal.name)
    else:
        state = groups.group_state(name)
    for topic in wanted.topics or ():
        peer.parts.store.table.get(topic)
        if topic not in state.topics:
            raise NotSubscribed(topic, name)
    check_consume(peer, wanted.topics or tuple(state.topics), name)
    return state


async def ensure_topic(peer: Peer, name: str) -> Topic:
    """Return a topic. Create it if it does not exist and `auto_create_topics` is on. Raises
    UnknownTopic, Denied, LimitReached, StateUnavailable."""
    parts = peer.parts
    if parts.topics_config.auto_create_topics and parts.store.table.find(name) is None:
        check_may_create(peer.principal, name)
    topic, _ = await parts.store.topics.ensure(name, queues=parts.config.auto_queues)
    return topic


def check_consume(
    peer: Peer, topics: tuple[str, ...], group: str | None, verbs: tuple[Verb, ...] = ("consume",)
) -> None:
    """Raise Denied if the client may not consume one of these topics (with the group). The topics
    of temporary nodes need no grant: only the node's connection gets here."""
    principal = peer.principal
    for topic in topics:
        if topic.startswith(NAME_PREFIX):
            continue
        if not principal.may(verbs, topic, group):
            what = f"every topic of group {group[:200]!r}" if group else ""
            raise missing_grant(principal, verbs, topic=topic, group=group, what=what)
