"""Requests to groups and their answers, for the layers above. Plain data.

The names are those of the HTTP API. Times are in milliseconds, rates in messages a second.
"""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import NamedTuple

import msgspec
import numpy as np

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import Topic
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.core.requests import MayConsume, ReceiveRequest, UnitLimit
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.settings import Subscription
from holdfast.groups.storage.group_records import GroupRecord

__all__ = ["MayConsume", "Receipt", "ReceiveRequest", "Status", "UnitLimit", "Verb"]

SeekTarget = str | int | Mapping[str, Mapping[int, int]]
"""Target of a seek: "earliest", "latest", a time in milliseconds, or topic -> queue -> offset."""

CheckTopic = Callable[[str], None]
"""A function that raises an exception if the caller may not access this topic."""


def allow_all(name: str) -> None:
    """Allow everything: this check never raises an exception."""


class ChangeChecks(msgspec.Struct, frozen=True):
    """The checks that a change of a group makes before anything changes. Each gets a name, and
    raises an exception if the caller may not make the change."""

    topic: CheckTopic = allow_all
    """Gets every topic that the group has when the change begins."""
    dead_letters: CheckTopic = allow_all
    """Gets a new dead-letter topic."""
    loser: Callable[[str], None] = allow_all
    """Gets every other group that would lose a topic: when a topic becomes a dead-letter topic,
    groups that have the topic because of a pattern lose it."""


MayPublish = Callable[[str], bool]
"""A function that returns whether the caller may publish to this topic."""


CountPublished = Callable[[int, int], bool]
"""A function that counts published messages, given their number and bytes. It returns False if the
caller must stop publishing for now."""


class GroupState(msgspec.Struct, frozen=True):
    """A group's record, and its topics by name: those that match its subscriptions now."""

    record: GroupRecord
    topics: Mapping[str, Subscription]


class Holder(NamedTuple):
    """The member that holds a message, and when its lease ends. `member` is None if the message may
    be leased since before a restart. `until_ms` is None if the lease has no deadline."""

    member: str | None
    until_ms: int | None


class Delivery(msgspec.Struct, frozen=True, gc=False):
    """One message: a row of a stored batch. `receipt` is None if the message is already settled, or
    was only shown (browse). `attempt` counts deliveries from 1. `failures` counts only the earlier
    deliveries that ended with a nack. `holder` is set if a browse shows a leased message."""

    topic: Topic
    queue: int
    offset: int
    batch: Batch
    row: int
    receipt: str | Receipt | None
    attempt: int
    redelivered: bool
    failures: int = 0
    holder: Holder | None = None


class BatchPart(msgspec.Struct):
    """The deliveries of one batch, sorted by row."""

    deliveries: list[Delivery]
    #: The index of each delivery in the original sequence.
    places: Sequence[int]
    #: The row of each delivery in the batch. If the rows have no gaps, they are a range.
    rows: range | list[int]

    def body_bytes(self) -> int:
        """Return the total size of the bodies of these messages."""
        batch = self.deliveries[0].batch
        if batch.header.message_count == 1:
            return batch.header.body_bytes
        offsets = batch.body_offsets
        if isinstance(self.rows, range):
            return int(offsets[self.rows.stop] - offsets[self.rows.start])
        rows = np.asarray(self.rows)
        return int((offsets[rows + 1] - offsets[rows]).sum())


def batch_parts(deliveries: Sequence[Delivery]) -> list[BatchPart]:
    """Return one part for each batch, in the order in which the batches first occur."""
    if len(deliveries) == 1:
        row = deliveries[0].row
        return [BatchPart([*deliveries], (0,), range(row, row + 1))]
    places: dict[int, list[int]] = {}
    start = 0
    for batch, some in groupby([id(each.batch) for each in deliveries]):
        end = start + len(list(some))
        places.setdefault(batch, []).extend(range(start, end))
        start = end
    return [_part(deliveries, of_batch) for of_batch in places.values()]


def _part(deliveries: Sequence[Delivery], places: list[int]) -> BatchPart:
    part = [deliveries[place] for place in places]
    rows = [each.row for each in part]
    in_order = sorted(rows)
    if rows != in_order:
        places = sorted(places, key=lambda place: deliveries[place].row)
        part, rows = [deliveries[place] for place in places], in_order
    if rows[-1] - rows[0] == len(rows) - 1:
        return BatchPart(part, places, range(rows[0], rows[-1] + 1))
    return BatchPart(part, places, rows)


class Received(msgspec.Struct, frozen=True):
    """The answer to a receive. It has no messages if none came in time, or if the member is not the
    active member, or if it has just become the active member."""

    deliveries: list[Delivery]
    #: An upper bound of the number of messages that were still available.
    available: int = 0
    #: Whether the member may get messages.
    active: bool = True
    #: If true, the member has just become the active member; its next request gets messages.
    notice: bool = False
    #: How long the request waited.
    held_s: float = 0.0

    def receipts(self) -> list[str | Receipt]:
        """Return the receipts of the leased messages, as the request asked for them."""
        return [each.receipt for each in self.deliveries if each.receipt is not None]


@dataclass(frozen=True, slots=True)
class RedriveOptions:
    """A request to put dead letters back, that is to publish them to their original topics."""

    #: At most this many letters are put back.
    limit: int
    #: The topic of the letters. If it is None, it is the group's dead-letter topic.
    dead_letter_topic: str | None = None
    #: queue -> offsets of the letters to put back. If it is None, all letters are put back.
    offsets: Mapping[int, Sequence[int]] | None = None
    #: If true, only count the letters.
    dry_run: bool = False
    #: If true, the letters are not published, and will never be put back.
    discard: bool = False
    #: If it is None, letters may go to every topic of the group.
    may_publish: MayPublish | None = field(default=None, compare=False)
    #: Called for letters that were put back: it counts them as publishes of the caller.
    published: CountPublished | None = field(default=None, compare=False)


class RedriveResult(msgspec.Struct):
    """The result of a redrive."""

    dead_letter_topic: str
    #: topic name -> how many letters were put back to it. Letters that an earlier redrive had
    #: already put back are not counted.
    topics: dict[str, int] = msgspec.field(default_factory=dict)
    #: How many letters cannot be put back: they do not name their topic, or the group does not
    #: subscribe to it, or the caller may not publish to it.
    stuck: int = 0
    #: How many letters were discarded.
    discarded: int = 0
    #: If true, there may be more letters, which this redrive has not reached.
    more: bool = False
    #: The id of the letter at which `failure` occurred.
    failed_id: str = ""
    #: The error that ended the redrive.
    failure: Exception | None = None

    @property
    def total(self) -> int:
        """How many letters were put back, or discarded."""
        return sum(self.topics.values()) + self.discarded

    def fail(self, letter_id: str, error: Exception) -> None:
        """Record a failure and set `more`. Later failures are ignored."""
        if self.failure is None:
            self.failed_id, self.failure, self.more = letter_id, error, True


@dataclass(slots=True)
class GroupCounters:
    """Counts of all groups together since the broker started."""

    delivered_total: int = 0
    redelivered_total: int = 0
    #: (verb, status) -> count; both are values of the enums.
    settled_total: Counter[tuple[str, str]] = field(default_factory=Counter)
    dead_letters_total: int = 0
    #: reason -> the number of dead letters that are not kept in a dead-letter topic.
    letters_not_kept_total: Counter[str] = field(default_factory=Counter)
    undelivered_total: int = 0
    commits_total: int = 0
    commit_failures_total: int = 0


@dataclass(slots=True)
class GroupServiceStats(GroupCounters):
    """Figures of all groups: the counts, and current values."""

    expired_leases_total: int = 0
    groups: int = 0
    waiting: int = 0
    in_flight: int = 0
    #: The groups that may not lease new messages now: they have `max_in_flight` leases, or the
    #: number of returned messages has reached its limit.
    at_limit: list[str] = field(default_factory=list)
