"""A producer's batch from its first message to its outcome. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.commitlog.format.batch_encoding import encode_batch


@dataclass(frozen=True, slots=True)
class Stored:
    """Where a batch was stored: its message i has the offset base_offset + i."""

    topic_id: int
    base_offset: int
    durable: bool


class PendingBatch:
    """Messages of one queue that are being collected or sent.

    There is one column per field of the messages. A column other than `bodies` may be shorter than
    `bodies`, or None as a whole: the values that it does not contain are None.
    """

    __slots__ = (
        "bodies",
        "born_timestamp_us",
        "expires_timestamps_us",
        "is_failure_seen",
        "is_open",
        "keys",
        "message_count",
        "outcome",
        "owner",
        "properties",
        "queue",
        "size_bytes",
        "tags",
        "waiter",
    )

    def __init__(self, queue: int, born_timestamp_us: int, owner: Any) -> None:
        self.queue = queue
        self.born_timestamp_us = born_timestamp_us
        self.bodies: list[bytes] = []
        self.keys: list[str | None] | None = None
        self.tags: list[str | None] | None = None
        self.properties: list[Mapping[str, str] | None] | None = None
        self.expires_timestamps_us: list[int | None] | None = None
        self.size_bytes = 0
        self.is_open = True
        #: Set when the batch is closed. It stays when settling removes the messages.
        self.message_count = 0
        #: None until the batch is settled.
        self.outcome: Stored | Exception | None = None
        #: Whether a caller has read the batch's failure.
        self.is_failure_seen = False
        #: The producer of the batch.
        self.owner = owner
        #: The event for which the producer's callers wait; only the producer uses it.
        self.waiter: Any = None

    def encode(self, *, producer_id: int, sequence: int) -> bytes:
        """Return the batch encoded for the broker."""
        expires = _pad_column(self.expires_timestamps_us, len(self.bodies))
        return encode_batch(
            self.bodies,
            keys=_pad_column(self.keys, len(self.bodies)),
            tags=_pad_column(self.tags, len(self.bodies)),
            properties=_pad_column(self.properties, len(self.bodies)),
            born_timestamp_us=self.born_timestamp_us,
            expires_timestamps_us=None if expires is None else [each or 0 for each in expires],
            queue_id=self.queue,
            producer_id=producer_id,
            sequence=sequence,
        )


def _pad_column(column: list[Any] | None, count: int) -> list[Any] | None:
    return None if column is None else column + [None] * (count - len(column))
