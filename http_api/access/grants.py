"""What somebody may do, and what an endpoint asks for. Pure.

A grant is a verb, with the topics and the groups that it is good for:

    publish:TOPICS              send messages
    consume:TOPICS[:GROUPS]     read messages; read and store those groups' offsets
    admin:TOPICS[:GROUPS]       create, change, delete topics; reset those groups' offsets
    operate                     read metrics and what the broker is
    all                         each of these, on everything

TOPICS and GROUPS are the beginning of a name (`orders.`), a whole name (`=orders`), or `*`. No verb
implies another. What is not granted is denied.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Literal, get_args

Verb = Literal["publish", "consume", "admin", "operate"]
VERBS: tuple[Verb, ...] = get_args(Verb)
#: Verbs that are about topics: with any of them a topic may be seen.
TOPIC_VERBS: tuple[Verb, ...] = ("publish", "consume", "admin")
GROUP_VERBS: tuple[Verb, ...] = ("consume", "admin")

_NAMES = re.compile(r"\*|=?[A-Za-z0-9_.-]{1,127}", re.ASCII)

GRAMMAR = (
    "publish:TOPICS, consume:TOPICS[:GROUPS], admin:TOPICS[:GROUPS], operate or all, with TOPICS "
    "and GROUPS the beginning of a name, =NAME or *"
)


class InvalidGrant(ValueError):
    """A text that is no grant. `reason` says what is wrong with it."""

    def __init__(self, text: str, reason: str) -> None:
        super().__init__(text, reason)
        self.text = text
        self.reason = reason

    def __str__(self) -> str:
        return f"{self.text[:300]!r} is no grant: {self.reason}; write {GRAMMAR}"


@dataclass(frozen=True, slots=True)
class Names:
    """Some names: all (`*`), one (`=orders`), or those that begin with a text (`orders.`)."""

    text: str

    def cover(self, name: str) -> bool:
        """Whether `name` is one of them."""
        text = self.text
        if text == "*":
            return True
        return name == text[1:] if text[0] == "=" else name.startswith(text)


@dataclass(frozen=True, slots=True)
class Grant:
    """One verb and what it is good for. `operate` has neither topics nor groups."""

    verb: Verb
    topics: Names | None = None
    groups: Names | None = None

    def __str__(self) -> str:
        return ":".join((self.verb, *(each.text for each in (self.topics, self.groups) if each)))

    def covers(self, topic: str | None, group: str | None) -> bool:
        """Whether it is good for this topic and this group; None: for any one."""
        if topic is not None and (self.topics is None or not self.topics.cover(topic)):
            return False
        return group is None or (self.groups is not None and self.groups.cover(group))


EVERYTHING: tuple[Grant, ...] = (
    Grant("publish", Names("*")),
    Grant("consume", Names("*"), Names("*")),
    Grant("admin", Names("*"), Names("*")),
    Grant("operate"),
)


def parse_grants(text: str) -> tuple[Grant, ...]:
    """Return the grants that a text stands for: one, or for `all` several.

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


@dataclass(frozen=True, slots=True)
class Principal:
    """Somebody who asks, as far as the broker knows them. `name` is fit for logs."""

    name: str
    grants: Sequence[Grant]

    def may(
        self, verbs: tuple[Verb, ...], topic: str | None = None, group: str | None = None
    ) -> bool:
        """Whether one grant with any of these verbs covers both the topic and the group.

        None stands for any: then one that they may do something with is enough.
        """
        # A plain loop: every request comes by here, and a generator costs twice as much.
        for grant in self.grants:  # noqa: SIM110
            if grant.verb in verbs and grant.covers(topic, group):
                return True
        return False


#: Everybody, while nobody is asked who they are.
ANYONE = Principal("anonymous", EVERYTHING)


class Door(Enum):
    """How an endpoint's door stands."""

    SHUT = "nobody"
    OPEN = "everybody, known or not"
    KNOWN = "whoever is known"
    GRANTED = "whoever was granted it"


@dataclass(frozen=True, slots=True)
class Need:
    """What an endpoint asks of whoever calls it. Of the topic and the group that its path names
    both must be granted, together with any one of `verbs`."""

    door: Door
    verbs: tuple[Verb, ...] = ()

    def is_met(self, principal: Principal | None, path: Mapping[str, str]) -> bool:
        """Whether `principal` (None: unknown) may enter at this path."""
        if self.door is Door.GRANTED:
            return principal is not None and principal.may(
                self.verbs, path.get("topic"), path.get("group")
            )
        if self.door is Door.KNOWN:
            return principal is not None
        return self.door is Door.OPEN


NOBODY = Need(Door.SHUT)
OPEN = Need(Door.OPEN)
KNOWN = Need(Door.KNOWN)


def granted(*verbs: Verb) -> Need:
    """Return the need of any one of these verbs, on the path's topic and group."""
    return Need(Door.GRANTED, verbs)
