"""What the state's records say of groups with leases, in bytes. Pure.

Values are msgpack maps; unknown fields are ignored, and one that is not there has its default, so
that older and newer brokers read each other's.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace

import msgpack

from holdfast.consumequeue.state_records import pack, reads
from holdfast.groups.config import GroupConfig

#: Fields of GroupConfig that a record has under their own names; the others follow from it.
_CONFIG_FIELDS = tuple(
    each.name for each in fields(GroupConfig) if each.name not in ("has_dead_letters", "repeat_ms")
)


@dataclass(frozen=True, slots=True)
class Subscription:
    """What a group wants of one topic."""

    weight: int = 1
    filter: str | None = None


@dataclass(frozen=True, slots=True)
class GroupRecord:
    """A group with leases, as it was put. The id is never used again.

    `config.longest_lease_ms` is the longest lease that it has ever given, not the longest that it
    might: after a power loss that long is waited for leases of before. Whoever gives a longer one
    stores a new record first. `config.has_dead_letters` says whether there is a
    `dead_letter_topic`.
    """

    name: str
    group_id: int
    config: GroupConfig = field(default_factory=GroupConfig)
    topics: Mapping[int, Subscription] = field(default_factory=dict)
    """By topic id."""
    start: str = "earliest"
    """Where it began on queues that it had no stored offset for: "earliest" or "latest"."""
    dead_letter_topic: str | None = None
    created_timestamp_ms: int = 0


def encode_group(group: GroupRecord) -> bytes:
    """Return a group's record."""
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
            int(topic_id): Subscription(each["weight"], each["filter"])
            for topic_id, each in found["topics"].items()
        },
        found["start"],
        dead_letter_topic,
        found["created_ms"],
    )
