"""What a member has to know of its group before it asks for messages: learnt from the broker, and
the group made where there is none with leases."""

from typing import Any

import msgspec

from holdfast.client import group_requests
from holdfast.client.consume_options import ConsumeOptions
from holdfast.client.errors import UnknownGroup
from holdfast.client.group_requests import topic_terms
from holdfast.client.requests import Requests
from holdfast.client.retry import RetryPolicy


class _Fairness(msgspec.Struct):
    cost: str = "count"


class GroupFacts(msgspec.Struct):
    """A group as far as it matters to its members."""

    mode: str = "competing"
    lease_ms: int = 30_000
    fairness: _Fairness = msgspec.field(default_factory=_Fairness)

    @property
    def is_keyed(self) -> bool:
        """Whether messages of one key come in their order."""
        return self.mode == "keyed"

    @property
    def shares_time(self) -> bool:
        """Whether topics share the time that is worked on their messages."""
        return self.fairness.cost == "time"


async def join(
    transport: Requests, options: ConsumeOptions, policy: RetryPolicy | None
) -> GroupFacts:
    """Return what a group is; one that is not there, or only stores offsets, is made of the topics
    first. Raises HoldfastError."""
    facts = await _facts(transport, options.group, policy)
    if facts is None:
        settings: dict[str, Any] = {"topics": topic_terms(options.topics)}
        if options.start is not None:
            settings["start"] = options.start
        await group_requests.put_group(transport, options.group, settings, policy)
        facts = await _facts(transport, options.group, policy)
    return facts or GroupFacts()


async def _facts(transport: Requests, group: str, policy: RetryPolicy | None) -> GroupFacts | None:
    """Return what a group with leases is, None for any other."""
    try:
        described = await group_requests.describe_group(transport, group, policy)
    except UnknownGroup:
        return None
    config = described.get("config")
    return None if config is None else msgspec.convert(config, GroupFacts)
