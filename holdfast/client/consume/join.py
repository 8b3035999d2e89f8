"""Joins a group: gets the settings that a member must know before it receives. If no group with
leases exists, it is created."""

from typing import Any

import msgspec

from holdfast.client.consume import group_requests
from holdfast.client.consume.group_requests import encode_topics
from holdfast.client.consume.options import ConsumeOptions
from holdfast.client.errors import UnknownGroup
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import RetryPolicy


class _Fairness(msgspec.Struct):
    cost: str = "count"


class GroupFacts(msgspec.Struct):
    """The settings of a group that matter to its members."""

    mode: str = "competing"
    lease_ms: int = 30_000
    fairness: _Fairness = msgspec.field(default_factory=_Fairness)

    @property
    def is_keyed(self) -> bool:
        """Whether the messages of a key are delivered in order."""
        return self.mode == "keyed"

    @property
    def shares_time(self) -> bool:
        """Whether topics share the group's processing time (fairness cost "time")."""
        return self.fairness.cost == "time"


async def join(
    transport: Transport, options: ConsumeOptions, policy: RetryPolicy | None
) -> GroupFacts:
    """Return a group's settings. First create the group with the consumer's topics if it does not
    exist or only stores offsets. Raises HoldfastError."""
    facts = await _fetch_facts(transport, options.group, policy)
    if facts is None:
        settings: dict[str, Any] = {"topics": encode_topics(options.topics)}
        if options.start is not None:
            settings["start"] = options.start
        await group_requests.put_group(transport, options.group, settings, policy)
        facts = await _fetch_facts(transport, options.group, policy)
    return facts or GroupFacts()


async def _fetch_facts(
    transport: Transport, group: str, policy: RetryPolicy | None
) -> GroupFacts | None:
    """Return the settings of a group with leases; None for any other group."""
    try:
        described = await group_requests.describe_group(transport, group, policy)
    except UnknownGroup:
        return None
    config = described.get("config")
    return None if config is None else msgspec.convert(config, GroupFacts)
