"""Encodes and decodes the records of groups in the broker's state. Pure.

Values are msgpack maps. Unknown fields are ignored, and missing fields get their defaults. So older
and newer brokers can read each other's records.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import msgpack

from holdfast.consumequeue.state.records import pack, reads
from holdfast.groups.config import GroupConfig, TopicSpec

#: The fields of GroupConfig that are stored, under their own names. The others are not stored.
_CONFIG_FIELDS = tuple(
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
    topics: Mapping[int, TopicSpec] = field(default_factory=dict)
    """topic id -> settings, for the topics that the subscriptions match. Some topics may be
    deleted."""
    start: str = "earliest"
    """Where the group begins in queues for which it has no stored offset: "earliest" or
    "latest"."""
    dead_letter_topic: str | None = None
    created_timestamp_ms: int = 0
    subscriptions: Mapping[str, TopicSpec] = field(default_factory=dict)
    """Topic name or pattern -> settings. Old records do not have this field; then it is empty."""
    owner: str = ""
    """The principal that gave the subscriptions. Patterns match only topics that this principal may
    consume."""


def encode_group(group: GroupRecord) -> bytes:
    """Return the value of a group's record."""
    config = group.config
    return pack(
        {
            "group_id": group.group_id,
            **{name: getattr(config, name) for name in _CONFIG_FIELDS},
            "topics": {
                topic_id: {"weight": each.weight, "filter": each.filter}
                for topic_id, each in group.topics.items()
            },
            "start": group.start,
            "dead_letter_topic": group.dead_letter_topic,
            "created_ms": group.created_timestamp_ms,
            "subscriptions": {
                name: {"weight": each.weight, "filter": each.filter}
                for name, each in group.subscriptions.items()
            },
            "owner": group.owner,
        }
    )


@reads("a group")
def decode_group(name: str, value: bytes) -> GroupRecord:
    """Return the group that a record describes."""
    found = msgpack.unpackb(value, strict_map_key=False)
    config = GroupConfig(**{each: found[each] for each in _CONFIG_FIELDS if each in found})
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
            int(topic_id): TopicSpec(each["weight"], each["filter"])
            for topic_id, each in found["topics"].items()
        },
        found["start"],
        dead_letter_topic,
        found["created_ms"],
        {
            str(topic): TopicSpec(each["weight"], each["filter"])
            for topic, each in found.get("subscriptions", {}).items()
        },
        str(found.get("owner", "")),
    )
