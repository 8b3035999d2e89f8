"""Which groups and topics a request about a group may touch.

What the path names, the door has seen to. A group's topics stand in the request, or in the group
itself: of each the token must grant something, in one grant with the group.
"""

from collections.abc import Iterable
from typing import Any

from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.groups.service_types import GroupState
from holdfast.http_api.access.door import lacks
from holdfast.http_api.access.grants import Verb
from holdfast.http_api.call import Call
from holdfast.http_api.context import ApiContext
from holdfast.http_api.problems import Problem


def leased_group(context: ApiContext, group: str) -> GroupState:
    """Return a group that has leases. Raises UnknownGroup, or Problem (group-without-leases) for
    one that only stores offsets."""
    if context.groups.has_leases(group):
        return context.groups.group_state(group)
    context.store.group_topics(group)
    raise Problem(
        "group-without-leases",
        f"the group {group!r} only stores offsets; PUT /v1/groups/{group} with its topics makes "
        "it one that leases messages, from these offsets on",
        group=group,
    )


def is_group(context: ApiContext, group: str) -> bool:
    """Whether there is a group of this name, of either kind."""
    if context.groups.has_leases(group):
        return True
    try:
        context.store.group_topics(group)
    except UnknownGroup:
        return False
    return True


def check_named(call: Call[Any], verbs: tuple[Verb, ...], topics: Iterable[str]) -> None:
    """Pass a request that names these topics. Raises Denied."""
    group = call.path["group"]
    for topic in topics:
        if not call.principal.may(verbs, topic, group):
            raise lacks(call.principal, verbs, topic=topic, group=group)


def check_subscribed(call: Call[Any], verbs: tuple[Verb, ...], topics: Iterable[str]) -> None:
    """Pass a request that is about all that a group subscribes to; a refusal does not say what
    that is. Raises Denied."""
    group = call.path["group"]
    for topic in topics:
        if not call.principal.may(verbs, topic, group):
            what = f"every topic of group {group[:200]!r}"
            raise lacks(call.principal, verbs, group=group, what=what)


def check_dead_letters(call: Call[Any], topic: str) -> None:
    """Pass one who lets the broker publish to a topic for them. Raises Denied."""
    principal = call.principal
    if not principal.may(("publish",), topic):
        raise lacks(principal, ("publish",), topic=topic)
    try:
        call.context.store.topic(topic)
    except UnknownTopic:
        if not principal.may(("admin",), topic):
            raise lacks(principal, ("admin",), topic=topic) from None
