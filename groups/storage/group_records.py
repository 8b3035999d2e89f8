"""The record of a group: how settings change it, and its form in the broker's state. Pure.

Values are msgpack maps. Unknown fields are ignored, and missing fields get their defaults. So older
and newer brokers can read each other's records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import msgpack
from msgspec import UNSET, Struct
from msgspec.structs import asdict

from holdfast.consumequeue.state.records import pack, reads
from holdfast.groups.config import SHORTEST_LEASE_MS, GroupConfig
from holdfast.groups.settings import (
    FairnessReply,
    GroupConfigReply,
    GroupSettings,
    Subscription,
    SubscriptionReply,
)

#: The fields of GroupConfig that are stored, under their own names. The others are not stored.
_STORED_FIELDS = tuple(
    each.name for each in fields(GroupConfig) if each.name not in ("has_dead_letters", "repeat_ms")
)


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """The settings of a group with leases. Group ids are never reused.

    `config.longest_lease_ms` is at least the longest lease that the group has ever given, because
    after a power loss the broker waits for this time, until all old leases have expired. So a
    changed record must be stored before the group gives a longer lease. `config.has_dead_letters`
    is true if there is a `dead_letter_topic`.
    """

    name: str
    group_id: int
    config: GroupConfig = field(default_factory=GroupConfig)
    topics: Mapping[int, Subscription] = field(default_factory=dict)
    """topic id -> settings, for the topics that the subscriptions match. Some topics may be
    deleted."""
    start: str = "earliest"
    """Where the group begins in queues for which it has no stored offset: "earliest" or
    "latest"."""
    dead_letter_topic: str | None = None
    """If it is None, messages that are rejected or fail too often are dropped."""
    created_timestamp_ms: int = 0
    subscriptions: Mapping[str, Subscription] = field(default_factory=dict)
    """Topic name or pattern -> settings. Old records do not have this field; then it is empty."""
    owner: str = ""
    """The principal that gave the subscriptions. Patterns match only topics that this principal may
    consume."""

    def apply(self, settings: GroupSettings, owner: str) -> "GroupRecord":
        """Return the record with the settings that are given; other fields are unchanged. `topics`
        is unchanged, too: the caller must find the topics that match the new subscriptions. `owner`
        is the owner of the given subscriptions."""
        given = _given(settings)
        if "topics" in given:
            given |= {"subscriptions": dict(given.pop("topics")), "owner": owner}
        fairness = given.pop("fairness", None)
        config = {} if fairness is None else _given(fairness)
        for name in _STORED_FIELDS:
            if name in given:
                config[name] = given.pop(name)
        if "backoff_ms" in config:
            config["backoff_ms"] = tuple(config["backoff_ms"])
        if self.config.max_in_flight_per_member == self.config.max_in_flight:
            # As long as only max_in_flight was given, it is also the limit of each member.
            most = config.get("max_in_flight", self.config.max_in_flight)
            config.setdefault("max_in_flight_per_member", most)
        config["has_dead_letters"] = (
            given.get("dead_letter_topic", self.dead_letter_topic) is not None
        )
        config["longest_lease_ms"] = max(
            self.config.longest_lease_ms, config.get("lease_ms", self.config.lease_ms)
        )
        return replace(self, config=replace(self.config, **config), **given)

    def describe_config(self) -> GroupConfigReply:
        """Return the settings as replies show them."""
        config = self.config
        return GroupConfigReply(
            topics={
                name: SubscriptionReply(each.weight, each.filter)
                for name, each in self.subscriptions.items()
            },
            fairness=FairnessReply(config.engine, config.cost),
            start=self.start,
            backoff_ms=list(config.backoff_ms),
            dead_letter_topic=self.dead_letter_topic,
            **{name: getattr(config, name) for name in _SHOWN_FIELDS},
        )


#: The settings that GroupConfig and GroupConfigReply have under the same name and with the same
#: type.
_SHOWN_FIELDS = (
    {each.name for each in fields(GroupConfig)} & {*GroupConfigReply.__struct_fields__}
) - {"backoff_ms"}


def _given(settings: Struct) -> dict[str, Any]:
    return {name: value for name, value in asdict(settings).items() if value is not UNSET}


def new_record(name: str, group_id: int, now_ms: int) -> GroupRecord:
    """Return the record of a new group, with default settings."""
    config = GroupConfig(longest_lease_ms=SHORTEST_LEASE_MS)
    return GroupRecord(name, group_id, config, created_timestamp_ms=now_ms)


def encode_group(group: GroupRecord) -> bytes:
    """Return the value of a group's record."""
    config = group.config
    return pack(
        {
            "group_id": group.group_id,
            **_stored_values(config),
            "topics": {topic_id: asdict(each) for topic_id, each in group.topics.items()},
            "start": group.start,
            "dead_letter_topic": group.dead_letter_topic,
            "created_ms": group.created_timestamp_ms,
            "subscriptions": {name: asdict(each) for name, each in group.subscriptions.items()},
            "owner": group.owner,
        }
    )


def _stored_values(config: GroupConfig) -> dict[str, Any]:
    values = {name: getattr(config, name) for name in _STORED_FIELDS}
    for name in ("auto_delete_after_ms", "last_value"):
        if not values[name]:  # then the record is as in release 0.1.0
            del values[name]
    return values


@reads("a group")
def decode_group(name: str, value: bytes) -> GroupRecord:
    """Return the group that a record describes."""
    found = msgpack.unpackb(value, strict_map_key=False)
    config = GroupConfig(**{each: found[each] for each in _STORED_FIELDS if each in found})
    dead_letter_topic = found["dead_letter_topic"]
    return GroupRecord(
        name,
        found["group_id"],
        replace(
            config,
            backoff_ms=tuple(config.backoff_ms),
            has_dead_letters=dead_letter_topic is not None,
        ),
        {
            int(topic_id): Subscription(each["weight"], each["filter"])
            for topic_id, each in found["topics"].items()
        },
        found["start"],
        dead_letter_topic,
        found["created_ms"],
        {
            str(topic): Subscription(each["weight"], each["filter"])
            for topic, each in found.get("subscriptions", {}).items()
        },
        str(found.get("owner", "")),
    )
