"""What a principal (an authenticated caller) may do, and what an endpoint requires. Pure.

A grant is a verb, with the topics and groups that it covers:

    publish:TOPICS              send messages
    consume:TOPICS[:GROUPS]     read messages; read and store offsets of these groups
    admin:TOPICS[:GROUPS]       create, change, delete topics; reset offsets of these groups
    operate                     read metrics and information about the broker
    all                         all of the above, on everything

TOPICS and GROUPS are the beginning of a name (`orders.`), a whole name (`=orders`), or `*`. No verb
implies another verb. Without a grant, a request is denied.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

import msgspec

Verb = Literal["publish", "consume", "admin", "operate"]
VERBS: tuple[Verb, ...] = get_args(Verb)
#: Verbs that concern topics. A principal with any of them on a topic may see the topic.
TOPIC_VERBS: tuple[Verb, ...] = ("publish", "consume", "admin")
GROUP_VERBS: tuple[Verb, ...] = ("consume", "admin")

_NAMES = re.compile(r"\*|=?[A-Za-z0-9_.-]{1,127}", re.ASCII)

GRAMMAR = (
    "publish:TOPICS, consume:TOPICS[:GROUPS], admin:TOPICS[:GROUPS], operate or all, with TOPICS "
    "and GROUPS the beginning of a name, =NAME or *"
)


@dataclass(eq=False, repr=False)
class InvalidGrant(ValueError):
    """A text is not a valid grant. `reason` explains why."""

    text: str
    reason: str

    def __str__(self) -> str:
        return f"{self.text[:300]!r} is no grant: {self.reason}; write {GRAMMAR}"


class Names(msgspec.Struct, frozen=True):
    """A set of names: all names (`*`), one name (`=orders`), or all with a prefix (`orders.`)."""

    text: str

    def cover(self, name: str) -> bool:
        text = self.text
        if text == "*":
            return True
        return name == text[1:] if text[0] == "=" else name.startswith(text)


class Grant(msgspec.Struct, frozen=True):
    """One verb, with the topics and groups that it covers. `operate` has no topics or groups."""

    verb: Verb
    topics: Names | None = None
    groups: Names | None = None

    def __str__(self) -> str:
        return ":".join((self.verb, *(each.text for each in (self.topics, self.groups) if each)))

    def covers(self, topic: str | None, group: str | None) -> bool:
        """Return whether the grant covers this topic and this group. None is always covered."""
        if topic is not None and (self.topics is None or not self.topics.cover(topic)):
            return False
        return group is None or (self.groups is not None and self.groups.cover(group))


EVERY_NAME = Names("*")
EVERYTHING: tuple[Grant, ...] = (
    Grant("publish", Names("*")),
    Grant("consume", Names("*"), Names("*")),
    Grant("admin", Names("*"), Names("*")),
    Grant("operate"),
)


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Return the grants in a text: one grant, or several grants for "all".

    Raises InvalidGrant.
    """
    if text == "all":
        return EVERYTHING
    word, *names = text.split(":")
    verb = next((each for each in VERBS if each == word), None)
    if verb is None:
        raise InvalidGrant(text, f"there is no verb {word[:100]!r}")
    most = 0 if verb == "operate" else 1 if verb == "publish" else 2
    if len(names) > most:
        raise InvalidGrant(text, f"{verb} takes {('nothing', 'topics', 'topics and groups')[most]}")
    if most and not names:
        raise InvalidGrant(text, f"{verb} needs topics")
    for each in names:
        if not _NAMES.fullmatch(each):
            raise InvalidGrant(text, f"{each[:200]!r} is neither a name, its beginning nor *")
    return (Grant(verb, *map(Names, names)),)


class Principal(msgspec.Struct, frozen=True):
    """A caller, with its grants. `name` contains no secret, so it may be logged."""

    name: str
    grants: Sequence[Grant]
    publish_rates: tuple[int | None, int | None] | None = None
    """Messages per second, and bytes per second, that the principal may publish.

    In each of the two places, 0 means no limit, and None means the configured limit.
    """

    def may(
        self, verbs: tuple[Verb, ...], topic: str | None = None, group: str | None = None
    ) -> bool:
        """Return whether one grant with any of these verbs covers both the topic and the group.

        If the topic or the group is None, it is not checked.
        """
        # A plain loop, because every request runs this, and a generator takes twice the time.
        for grant in self.grants:  # noqa: SIM110
            if grant.verb in verbs and grant.covers(topic, group):
                return True
        return False

    def may_with_any_topic(self, verb: Verb, group: str) -> bool:
        """Return whether one grant with this verb covers all topics, and also the group."""
        return any(
            grant.verb == verb and grant.topics == EVERY_NAME and grant.covers(None, group)
            for grant in self.grants
        )


#: The caller of every request while authentication is off.
ANONYMOUS = Principal("anonymous", EVERYTHING)


class Exposure(Enum):
    """Who may use an endpoint."""

    NONE = "no caller"
    EVERYWHERE = "every caller, also a browser that follows a link of another site"
    PUBLIC = "every caller"
    AUTHENTICATED = "authenticated callers"
    GRANTED = "callers with a grant"


class RequiredPermission(msgspec.Struct, frozen=True):
    """What an endpoint requires of its caller.

    With `Exposure.GRANTED`, the caller must have one grant with any of `verbs` that covers both the
    topic and the group in the path.
    """

    exposure: Exposure
    verbs: tuple[Verb, ...] = ()

    def is_met_by(self, principal: Principal | None, path: Mapping[str, str]) -> bool:
        """Return whether `principal` may use the endpoint with these parameters in the path.

        `principal` is None if the caller is not authenticated.
        """
        if self.exposure is Exposure.GRANTED:
            return principal is not None and principal.may(
                self.verbs, path.get("topic"), path.get("group")
            )
        if self.exposure is Exposure.AUTHENTICATED:
            return principal is not None
        return self.exposure in (Exposure.PUBLIC, Exposure.EVERYWHERE)


NO_ACCESS = RequiredPermission(Exposure.NONE)
EVERYWHERE = RequiredPermission(Exposure.EVERYWHERE)
PUBLIC = RequiredPermission(Exposure.PUBLIC)
AUTHENTICATED = RequiredPermission(Exposure.AUTHENTICATED)


def require(*verbs: Verb) -> RequiredPermission:
    """Return the requirement that the caller has one of these verbs on the path's names."""
    return RequiredPermission(Exposure.GRANTED, verbs)
