"""The bytes of the state's records: topics, min offsets, stored offsets. Pure.

    topic/NAME             the topic
    next_topic_id          the id that the next new topic gets
    kept/TOPIC_ID          for each queue: the first offset kept
    lost/TOPIC_ID          for each queue: ranges of offsets whose messages are damaged or lost
    damage                 damaged places of the log whose queue is unknown
    offsets/GROUP/TOPIC_ID stored offsets with their version
    group/NAME             a group with leases: groups/storage/group_records.py
    next_group_id          the id that the next new group with leases gets
    receipt_key            the key that signs receipts: 32 random bytes, not msgpack
    incomplete             present if the state was read from a damaged log: records may be missing

Values are msgpack maps. Readers ignore unknown fields, so that newer versions can add fields. The
caller must verify checksums before decoding. If bytes with a valid checksum are not a valid record,
MalformedRecord is raised.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import wraps
from typing import ParamSpec, TypeVar

import msgpack

from holdfast.commitlog.format.priority import MAX_LEVELS
from holdfast.consumequeue.lost_ranges import LostRange, LostRanges
from holdfast.consumequeue.topics import Topic, TopicConfig

NEXT_TOPIC_ID = b"next_topic_id"
NEXT_GROUP_ID = b"next_group_id"
RECEIPT_KEY = b"receipt_key"
INCOMPLETE = b"incomplete"
DAMAGE = b"damage"

P = ParamSpec("P")
T = TypeVar("T")


@dataclass(eq=False, repr=False)
class MalformedRecord(Exception):
    """Bytes with a valid checksum that are not a valid record. `kind` names the expected kind."""

    kind: str
    reason: str

    def __str__(self) -> str:
        return f"a record of the state is not {self.kind} ({self.reason})"


def reads(kind: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Decorate a decoding function: raise MalformedRecord if it fails."""

    def decorate(decode: Callable[P, T]) -> Callable[P, T]:
        @wraps(decode)
        def checked(*args: P.args, **kwargs: P.kwargs) -> T:
            try:
                return decode(*args, **kwargs)
            except (ValueError, TypeError, KeyError, msgpack.UnpackException) as error:
                raise MalformedRecord(kind, f"{type(error).__name__}: {error}") from error

        return checked

    return decorate


@dataclass(frozen=True, slots=True)
class StoredOffsets:
    """A group's offsets on one topic. Each change increases the version; version 0 means that no
    offsets are stored."""

    offsets: dict[int, int] = field(default_factory=dict)
    version: int = 0


def topic_key(name: str) -> bytes:
    return f"topic/{name}".encode()


def group_key(name: str) -> bytes:
    return f"group/{name}".encode()


def kept_key(topic_id: int) -> bytes:
    return f"kept/{topic_id}".encode()


def lost_key(topic_id: int) -> bytes:
    return f"lost/{topic_id}".encode()


def offsets_key(group: str, topic_id: int) -> bytes:
    return f"offsets/{group}/{topic_id}".encode()


@reads("a key")
def parse_key(key: bytes) -> tuple[str, ...]:
    """Return a key's parts; the first part is the kind of record."""
    return tuple(key.decode().split("/"))


def encode_topic(topic: Topic) -> bytes:
    config = topic.config
    fields = {
        "topic_id": topic.topic_id,
        "queues": topic.queue_count,
        "durability": config.durability,
        "retention_ms": config.retention_ms,
        "retention_bytes": config.retention_bytes,
        "max_message_bytes": config.max_message_bytes,
        "created_ms": topic.created_timestamp_ms,
    }
    if config.max_bytes is not None:
        fields["max_bytes"] = config.max_bytes
    if topic.priority_levels > 1:
        fields["priority_levels"] = topic.priority_levels
    if topic.former_queue_counts:
        fields["former_queues"] = topic.former_queue_counts
    return pack(fields)


@reads("a topic")
def decode_topic(name: str, value: bytes) -> Topic:
    fields = dict(msgpack.unpackb(value))
    levels = int(fields.get("priority_levels", 1))
    if not 1 <= levels <= MAX_LEVELS or fields["queues"] % levels:
        raise ValueError(f"{fields['queues']} queues of {levels} levels")
    return Topic(
        name,
        fields["topic_id"],
        fields["queues"],
        TopicConfig(
            fields["durability"],
            fields["retention_ms"],
            fields["retention_bytes"],
            fields["max_message_bytes"],
            fields.get("max_bytes"),
        ),
        fields["created_ms"],
        levels,
        tuple(int(count) for count in fields.get("former_queues", ())),
    )


@reads("min offsets")
def decode_kept(value: bytes) -> dict[int, int]:
    """Return the first kept offsets of a topic's queues; a queue that is not included begins at
    0."""
    return dict(msgpack.unpackb(value, strict_map_key=False))


def encode_lost(lost: Mapping[int, LostRanges]) -> bytes:
    return pack(
        {
            queue: [
                [each.start_offset, each.end_offset, each.reason, each.accepted] for each in ranges
            ]
            for queue, ranges in lost.items()
        }
    )


@reads("lost ranges")
def decode_lost(value: bytes) -> dict[int, LostRanges]:
    fields = msgpack.unpackb(value, strict_map_key=False)
    return {
        int(queue): tuple(
            LostRange(int(start), int(end), str(reason), bool(accepted))
            for start, end, reason, accepted in ranges
        )
        for queue, ranges in dict(fields).items()
    }


def encode_damage(damage: Mapping[int, tuple[int, str]]) -> bytes:
    """Return the record of damaged places: physical offset -> (its end, reason)."""
    return pack([[start, end, reason] for start, (end, reason) in damage.items()])


@reads("damaged places")
def decode_damage(value: bytes) -> dict[int, tuple[int, str]]:
    """Return the damaged places: physical offset -> (its end, reason)."""
    found = msgpack.unpackb(value)
    return {int(start): (int(end), str(reason)) for start, end, reason in found}


def encode_offsets(stored: StoredOffsets) -> bytes:
    return pack({"version": stored.version, "offsets": stored.offsets})


@reads("stored offsets")
def decode_offsets(value: bytes) -> StoredOffsets:
    fields = msgpack.unpackb(value, strict_map_key=False)
    return StoredOffsets(fields["offsets"], fields["version"])


@reads("a number")
def decode_number(value: bytes) -> int:
    return int(msgpack.unpackb(value))


def pack(value: object) -> bytes:
    packed = msgpack.packb(value)
    assert isinstance(packed, bytes)
    return packed


encode_kept = encode_number = pack
