"""What the state's records say, in bytes: topics, kept ranges, stored offsets. Pure.

    topic/NAME             the topic
    next_topic_id          the id that the next new topic gets
    kept/TOPIC_ID          per queue: the first offset kept
    offsets/GROUP/TOPIC_ID stored offsets with their version
    incomplete             it was read from a damaged log: records may be missing

Values are msgpack maps; unknown fields are kept out of the way of older readers by being
ignored.
"""

from dataclasses import dataclass, field

import msgpack

from holdfast.consumequeue.topics import Topic, TopicConfig

NEXT_TOPIC_ID = b"next_topic_id"
INCOMPLETE = b"incomplete"


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets on one topic. The version grows with each change; 0: none stored."""

    offsets: dict[int, int] = field(default_factory=dict)
    version: int = 0


def topic_key(name: str) -> bytes:
    """Return the key of a topic's record."""
    return f"topic/{name}".encode()


def kept_key(topic_id: int) -> bytes:
    """Return the key of a topic's kept ranges."""
    return f"kept/{topic_id}".encode()


def offsets_key(group: str, topic_id: int) -> bytes:
    """Return the key of a group's offsets on a topic."""
    return f"offsets/{group}/{topic_id}".encode()


def parse_key(key: bytes) -> tuple[str, ...]:
    """Return a key's parts, the first being the kind of record."""
    return tuple(key.decode().split("/"))


def encode_topic(topic: Topic) -> bytes:
    """Return a topic's record."""
    config = topic.config
    return _pack(
        {
            "topic_id": topic.topic_id,
            "queues": topic.queue_count,
            "durability": config.durability,
            "retention_ms": config.retention_ms,
            "retention_bytes": config.retention_bytes,
            "max_message_bytes": config.max_message_bytes,
            "created_ms": topic.created_timestamp_ms,
        }
    )


def decode_topic(name: str, value: bytes) -> Topic:
    """Return the topic that a record describes."""
    fields = msgpack.unpackb(value)
    return Topic(
        name,
        fields["topic_id"],
        fields["queues"],
        TopicConfig(
            fields["durability"],
            fields["retention_ms"],
            fields["retention_bytes"],
            fields["max_message_bytes"],
        ),
        fields["created_ms"],
    )


def encode_kept(min_offsets: dict[int, int]) -> bytes:
    """Return the record of where a topic's queues begin."""
    return _pack(min_offsets)


def decode_kept(value: bytes) -> dict[int, int]:
    """Return where a topic's queues begin; a queue not named begins at 0."""
    return dict(msgpack.unpackb(value, strict_map_key=False))


def encode_offsets(stored: StoredOffsets) -> bytes:
    """Return the record of a group's offsets."""
    return _pack({"version": stored.version, "offsets": stored.offsets})


def decode_offsets(value: bytes) -> StoredOffsets:
    """Return a group's offsets."""
    fields = msgpack.unpackb(value, strict_map_key=False)
    return StoredOffsets(fields["offsets"], fields["version"])


def encode_number(number: int) -> bytes:
    """Return the record of one number."""
    return _pack(number)


def decode_number(value: bytes) -> int:
    """Return the number of a record."""
    return int(msgpack.unpackb(value))


def _pack(value: object) -> bytes:
    packed = msgpack.packb(value)
    assert isinstance(packed, bytes)
    return packed
