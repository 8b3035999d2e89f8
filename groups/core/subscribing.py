"""Which topics a group subscribes to: by name, and by pattern. Pure.

A subscription is a topic's name, or a pattern in which `*` matches any text and `?` matches one
character. A name has precedence over patterns. A longer pattern has precedence over a shorter one;
of patterns with the same length the alphabetically first has precedence. The broker's own topics
and dead-letter topics match no pattern.
"""

import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping
from functools import lru_cache
from typing import Generic, NamedTuple, Protocol, TypeVar

from holdfast.consumequeue.errors import InvalidName
from holdfast.consumequeue.topics import Topic, check_name

T = TypeVar("T")

_PATTERN = re.compile(r"[A-Za-z0-9_.*?-]{1,127}", re.ASCII)


def is_pattern(name: str) -> bool:
    """Return whether a subscription is a pattern, not a topic's name."""
    return "*" in name or "?" in name


def check_subscription(name: str) -> str:
    """Return the subscription if it is a valid name or pattern. Raises InvalidName."""
    if not is_pattern(name):
        return check_name("topic", name)
    if not _PATTERN.fullmatch(name) or name.startswith("__"):
        raise InvalidName("topic", name)
    return name


def matches(pattern: str, topic: str) -> bool:
    """Return whether a topic's name matches the pattern.

    The algorithm follows all possible matches at once, as bits of a number: bit i means that the
    part of the pattern read so far matches the first i characters of the name. Each character of
    the pattern costs a shift and an "and". No pattern is compiled or cached, and there is no
    backtracking.
    """
    if topic.startswith("__"):
        return False
    places, all_places = _places_of(topic)
    reached = 1
    for sign in pattern:
        if sign == "*":
            reached = all_places ^ (
                (reached ^ (reached - 1)) >> 1
            )  # the lowest set bit and all above
        elif sign == "?":
            reached = reached << 1 & all_places
        else:
            reached = reached << 1 & places.get(sign, 0)
        if not reached:
            return False
    return reached >> len(topic) == 1


class Slicing(Protocol):
    """Splits a loop over many patterns between event loop iterations (consumequeue/slices.py)."""

    def slices(self, items: Iterable[str]) -> AsyncIterator[list[str]]:
        """Yield all items, in slices that fit into one iteration."""


class Subscriptions(Generic[T]):
    """A group's subscriptions, to find the one that applies to a topic. Immutable."""

    def __init__(self, given: Mapping[str, T]) -> None:
        self.given = given
        patterns = sorted(filter(is_pattern, given), key=lambda each: (-len(each), each))
        self.patterns = tuple(patterns)

    async def find(self, topic: str, turn: Slicing) -> tuple[str, T] | None:
        """Return the subscription that applies to a topic; None if there is none. `turn` splits the
        loop over the patterns between event loop iterations."""
        found = self.given.get(topic)
        if found is not None:
            return topic, found
        async for patterns in turn.slices(self.patterns):
            for pattern in patterns:
                if matches(pattern, topic):
                    return pattern, self.given[pattern]
        return None

    async def match(
        self,
        topic: Topic,
        turn: Slicing,
        *,
        was_matched: bool,
        is_dead_letters: bool,
        may_match: Callable[[str], bool],
    ) -> "Match[T] | None":
        """Return how a topic matches the subscriptions; None if it does not match.

        A topic whose name is a subscription always matches. A topic that a pattern matches needs
        also `may_match(name)`, unless the group had the topic before (`was_matched`).
        """
        holds = await self.find(topic.name, turn)
        if holds is None:
            return None
        name, wanted = holds
        if name == topic.name:
            return Match(0, topic.topic_id, topic.name, wanted)
        if is_dead_letters:
            return None
        if was_matched:
            return Match(1, topic.topic_id, topic.name, wanted)
        return Match(2, topic.topic_id, topic.name, wanted) if may_match(topic.name) else None


class Match(NamedTuple, Generic[T]):
    """A topic that matches a group's subscriptions, and the subscription that applies (`wanted`).
    `rank` is 0 if the topic is named, 1 if the group had it because of a pattern, and 2 if only a
    pattern matches it. If too many topics match, the topics that the group had have precedence,
    then lower ranks, then older topics."""

    rank: int
    topic_id: int
    name: str
    wanted: T


@lru_cache(64)
def _places_of(topic: str) -> tuple[Mapping[str, int], int]:
    """Return for each character of a name a number in which bit i + 1 is set if the character is
    at index i. Also return a number in which the bits 0 to `len(topic)` are set."""
    places: dict[str, int] = {}
    for index, character in enumerate(topic):
        places[character] = places.get(character, 0) | 2 << index
    return places, (2 << len(topic)) - 1
