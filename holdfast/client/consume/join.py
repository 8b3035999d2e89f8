"""How a consumer joins a group: its own options, and the group's settings that it must know."""

import os
import secrets
import socket
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.client.consume.group_requests import GroupRequests, encode_topics
from holdfast.client.errors import UnknownGroup
from holdfast.client.transport.requests import drop_none
from holdfast.client.values import SerialBy


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumeOptions:
    """Options of a consumer; `AsyncClient.consume` documents each."""

    group: str
    topics: Sequence[str]
    member: str
    max_in_flight: int
    concurrency: int
    serial_by: SerialBy | None
    start: str | None
    follow: bool
    wait_for_delayed: bool
    filter: str | None
    #: The session whose messages the member does not get.
    no_local: str | None
    lease_ms: int | None
    settled: bool
    max_bytes: int
    wait_ms: int
    ack_batch: int
    ack_interval_ms: float


class _Fairness(msgspec.Struct):
    cost: str = "count"


class GroupFacts(msgspec.Struct):
    """The settings of a group that matter to its members. In a keyed group, the messages of a key
    are delivered in order. With the fairness cost "time", topics share processing time."""

    mode: str = "competing"
    lease_ms: int = 30_000
    fairness: _Fairness = msgspec.field(default_factory=_Fairness)

    @property
    def is_keyed(self) -> bool:
        return self.mode == "keyed"

    @property
    def shares_time(self) -> bool:
        return self.fairness.cost == "time"


async def join(group: GroupRequests, options: ConsumeOptions) -> GroupFacts:
    """Return a group's settings. If the group does not exist or only stores offsets, create it with
    the consumer's topics first. Raises HoldfastError."""
    facts = await _fetch_facts(group)
    if facts is None:
        await group.put(drop_none(topics=encode_topics(options.topics), start=options.start))
        facts = await _fetch_facts(group)
    return facts or GroupFacts()


async def _fetch_facts(group: GroupRequests) -> GroupFacts | None:
    """Return the settings of a group with leases; None for any other group."""
    try:
        config = (await group.describe()).get("config")
    except UnknownGroup:
        return None
    return None if config is None else msgspec.convert(config, GroupFacts)


def make_member_name() -> str:
    """Return a unique name for a member: host, process id and a random part."""
    host = "".join(c for c in socket.gethostname() if c.isascii() and (c.isalnum() or c in "-."))
    return f"{host[:80]}-{os.getpid()}-{secrets.token_hex(4)}"
