"""Check the access of requests about a group: may the caller use the group with its topics?

`Access.check` has already checked the group, whose name is in the path. The topics are in the
request's body, or are those of the group itself. For each topic, one grant of the token must cover
both the topic and the group.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.groups.service_types import GroupState
from holdfast.http_api.access.authorization import Access, missing_grant
from holdfast.http_api.access.grants import Principal, Verb
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.wire.problems import Problem


@dataclass(frozen=True, slots=True)
class MayConsume:
    """A function object that decides which topics a request may consume with a group.

    Two objects of the same token and group are equal. If `access` is set, each call also checks
    that the token is still valid.
    """

    name: str
    group: str
    principal: Principal = field(compare=False)
    access: Access | None = field(compare=False)

    def __call__(self, topic: str) -> bool:
        """Return whether messages of this topic may be sent to the client."""
        if self.access is not None and not self.access.is_still_valid(self.principal):
            return False
        return self.principal.may(("consume",), topic, self.group)


def leased_group(context: ApiContext, group: str) -> GroupState:
    """Return the state of a group with leases.

    Raises UnknownGroup, or Problem (group-without-leases) for a group that only stores offsets.
    """
    check_has_leases(context, group)
    return context.groups.group_state(group)


def check_has_leases(context: ApiContext, group: str) -> None:
    """Raise the errors of `leased_group`."""
    if context.groups.has_leases(group):
        return
    context.store.offsets.group_topics(group)
    raise Problem(
        "group-without-leases",
        f"the group {group!r} only stores offsets; PUT /v1/groups/{group} with its topics makes "
        "it a group that leases messages, starting at these offsets",
        group=group,
    )


def topics_with_offsets(context: ApiContext, group: str) -> list[str]:
    """Return the topics on which a group has stored offsets, whether it has leases or not."""
    try:
        return list(context.store.offsets.group_topics(group))
    except UnknownGroup:
        return []


def check_named(call: Call[Any], verbs: tuple[Verb, ...], topics: Iterable[str]) -> None:
    """Raise Denied if the caller lacks access to one of the topics that a request names."""
    group = call.path["group"]
    for topic in topics:
        if not call.principal.may(verbs, topic, group):
            raise missing_grant(call.principal, verbs, topic=topic, group=group)


def check_subscribed(call: Call[Any], verbs: tuple[Verb, ...], topics: Iterable[str]) -> None:
    """Raise Denied if the caller lacks access to one of a group's topics.

    The error reveals no topic names.
    """
    group = call.path["group"]
    for topic in topics:
        if not call.principal.may(verbs, topic, group):
            what = f"every topic of group {group[:200]!r}"
            raise missing_grant(call.principal, verbs, group=group, what=what)


def check_any_subscribed(call: Call[Any], verbs: tuple[Verb, ...], topics: Iterable[str]) -> None:
    """Raise Denied if a group has topics, but the token grants none of them.

    This is for requests that only affect the topics that the token grants. The error reveals no
    topic names.
    """
    group, topics = call.path["group"], list(topics)
    if topics and not any(call.principal.may(verbs, topic, group) for topic in topics):
        raise missing_grant(
            call.principal, verbs, group=group, what=f"a topic of group {group[:200]!r}"
        )


def check_dead_letters(call: Call[Any], topic: str) -> None:
    """Raise Denied if the caller may not make a topic the dead-letter topic of a group.

    The caller needs the verb `publish` on the topic, and `admin` if the topic does not exist yet.
    """
    principal = call.principal
    if not principal.may(("publish",), topic):
        raise missing_grant(principal, ("publish",), topic=topic)
    try:
        call.context.store.table.get(topic)
    except UnknownTopic:
        if not principal.may(("admin",), topic):
            raise missing_grant(principal, ("admin",), topic=topic) from None


def check_publishing(call: Call[Any], topics: Iterable[str]) -> None:
    """Raise Denied if the caller may not publish to one of a group's topics.

    The error reveals no topic names.
    """
    group = call.path["group"]
    for topic in topics:
        if not call.principal.may(("publish",), topic):
            what = f"every topic of group {group[:200]!r}"
            raise missing_grant(call.principal, ("publish",), group=group, what=what)
