"""Republishes dead letters: the broker does this, a limited number of letters per request."""

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import msgspec

from holdfast.client.consume.group_requests import group_path, send_json
from holdfast.client.errors import ApiError, HoldfastError
from holdfast.client.transport.requests import Transport, check_name

#: How long the broker may take for one request, in addition to the normal request timeout.
_WAIT_S = 20.0


class NoDeadLetters(HoldfastError):
    """The group has no dead-letter topic, or only stores offsets."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"{self.group} has no dead-letter topic; give it one with "
            f"`holdfast group create {self.group} --dead-letter-topic NAME`"
        )


class Redriven(NamedTuple):
    """How many dead letters were republished, by topic. `stuck` is the number of letters that
    stayed: they do not record their original topic, or the group does not subscribe to it."""

    dead_letter_topic: str
    topics: dict[str, int]
    stuck: int

    @property
    def total(self) -> int:
        """How many letters were republished."""
        return sum(self.topics.values())


class _Reply(msgspec.Struct):
    dead_letter_topic: str
    topics: dict[str, int]
    stuck: int
    more: bool


def redrive_group(group: str) -> str:
    """Return the name of the group that records which letters were republished."""
    return f"{group}.redrive"


def dead_letter_filter(group: str) -> str:
    """Return the filter that selects a group's dead letters."""
    return f"`holdfast-dead-group` = '{group}'"


def dead_letter_topic(group: str, described: Mapping[str, object]) -> str:
    """Return the dead-letter topic from a group's description. Raises NoDeadLetters."""
    config = described.get("config")
    topic = config.get("dead_letter_topic") if isinstance(config, Mapping) else None
    if not isinstance(topic, str):
        raise NoDeadLetters(group)
    return topic


async def redrive(
    transport: Transport, group: str, most: int | None, *, dry_run: bool = False
) -> Redriven:
    """Republish a group's dead letters, at most `most`, keeping the order of each key; with
    `dry_run` only count them. The first letter that cannot be republished ends the redrive, and
    its error is raised."""
    check_name("group", redrive_group(group))
    if most is not None and most < 1:
        raise ValueError("a redrive puts back at least one message; leave max_messages out for all")
    topics: Counter[str] = Counter()
    while True:
        reply = await _redrive_once(transport, group, most, topics.total(), dry_run=dry_run)
        topics.update(reply.topics)
        # A dry run is only one request: a second request would count the same letters again.
        if dry_run or not reply.more or (most is not None and topics.total() >= most):
            return Redriven(reply.dead_letter_topic, dict(topics), reply.stuck)


async def _redrive_once(
    transport: Transport, group: str, most: int | None, done: int, *, dry_run: bool
) -> _Reply:
    body: dict[str, object] = {"dry_run": dry_run}
    if most is not None:
        body["limit"] = min(most - done, _LIMIT)
    try:
        reply = await send_json(
            transport, "POST", f"{group_path(group)}/redrive", body, wait_s=_WAIT_S
        )
    except ApiError as error:
        if error.type in ("no-dead-letters", "group-without-leases"):
            raise NoDeadLetters(group) from error
        raise
    return reply.json(_Reply)


#: At most this many letters are requested at a time. The broker's limit for one request is higher,
#: unless an operator has lowered that limit.
_LIMIT = 1_000
