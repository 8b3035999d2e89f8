"""Redrive: publishes a group's dead letters to their original topics. On the event loop.

    lease from the dead-letter topic -> publish to the original topic, durably -> acknowledge

To put a letter back means to publish it to its original topic again. The group `GROUP.redrive` on
the dead-letter topic records which letters were put back. Each letter is published under its own
producer id. So if a crash prevents the acknowledgement, the letter is published again, and the log
stores it only once. Letters of one key stay in order. A letter is put back only if the group
subscribes to its original topic. Otherwise a client that may publish to the dead-letter topic could
write to any topic through a redrive.
"""

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time_ns

from holdfast.commitlog.append.appender import AppendResult
from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_check import LimitExceeded, check_batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.commitlog.format.priority import level_of_queue
from holdfast.consumequeue.errors import LimitReached, StoreError, TopicFull, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.groups.core.requests import ReceiveRequest
from holdfast.groups.cursor.cursor import Cursor, State
from holdfast.groups.errors import InvalidGroup, NoDeadLetters, RedriveRunning
from holdfast.groups.service_types import (
    ChangeChecks,
    Delivery,
    RedriveOptions,
    RedriveResult,
    Verb,
)
from holdfast.groups.serving.group_changes import GroupChanges
from holdfast.groups.serving.group_registry import GroupRegistry
from holdfast.groups.serving.group_server import GroupServer, SharedParts
from holdfast.groups.serving.letters import (
    NotADeadLetter,
    Origin,
    keyed_producer_id,
    letters_condition,
    read_origin,
)
from holdfast.groups.serving.parsed_filters import filter_of
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.groups.storage.group_records import GroupRecord

#: The member that leases the letters. Each redrive first makes it leave, so that the letters that
#: an earlier redrive still leases are available at once.
MEMBER = "redrive"
#: At most this many letters are published together.
AT_ONCE = 64
#: The letters that are published together have about this many bytes at most.
AT_ONCE_BYTES = 4 * 1024 * 1024
#: A letter that cannot be put back is delayed by this time.
STUCK_MS = 60_000
#: After this time a request puts no further letters back.
LONGEST_S = 10.0
#: If a request lists the offsets of letters, a redrive ends after this many receives without such a
#: letter. Each receive reads a limited number of messages; the next receive continues where it
#: stopped.
MAX_EMPTY = 100
#: A dry run reads at most this many letters in one read.
READ_AT_ONCE = 1_000


class Redriver:
    """The redrives of all groups, at most one per group at a time."""

    def __init__(self, shared: SharedParts, registry: GroupRegistry, changes: GroupChanges) -> None:
        self._shared = shared
        self._registry = registry
        self._changes = changes
        self._running: set[str] = set()
        self._is_ending = False

    def drain(self) -> None:
        """Make running redrives end: they put no further letters back."""
        self._is_ending = True

    async def redrive(self, group: str, request: RedriveOptions) -> RedriveResult:
        """Put letters back; in a dry run only count them. The first letter that cannot be published
        because of an error ends the redrive. The result then has this error as `failure`, and
        counts the letters that were put back before.

        Raises UnknownGroup, UnknownTopic, NoDeadLetters, RedriveRunning, InvalidName, InvalidGroup,
        LimitReached, StateUnavailable.
        """
        source = self._registry.get(group)
        name = request.dead_letter_topic or source.record.dead_letter_topic
        if name is None:
            raise NoDeadLetters(group)
        dead = self._shared.store.table.get(name)
        if dead.topic_id in source.core.topics:
            raise InvalidGroup("dead_letter_topic", "it is one of the group's own topics")
        progress = check_name("group", f"{group}.redrive")
        self._check_progress_group(progress, group)
        if group in self._running:
            raise RedriveRunning(group)
        self._running.add(group)
        until_s = monotonic() + LONGEST_S
        run = _Redrive(
            self._shared.store,
            self._shared.receipt_key,
            source,
            dead,
            request,
            is_over=lambda: self._is_ending or monotonic() >= until_s,
        )
        try:
            if request.dry_run:
                await run.count(self._registry.by_name.get(progress))
            else:
                await run.put_back(await self._progress_group(progress, source.record, dead))
        finally:
            self._running.discard(group)
        return run.result

    # -- the group that records which letters were put back --------------------------------------

    def _check_progress_group(self, progress: str, group: str) -> None:
        """Raise InvalidGroup if a group named `progress` exists and is used for something else."""
        served = self._registry.by_name.get(progress)
        if served is None:
            return
        condition = letters_condition(group)
        is_ours = served.record.config.mode == "competing" and all(
            each.filter == condition for each in served.record.topics.values()
        )
        if not is_ours:
            raise InvalidGroup(
                "group",
                f"the group {progress!r}, in which a redrive records its progress, is in use for "
                "something else; delete it or give that group another name",
            )

    async def _progress_group(self, progress: str, source: GroupRecord, dead: Topic) -> GroupServer:
        """Return the group named `progress`, with the dead-letter topic. Create it if necessary."""
        served = self._registry.by_name.get(progress)
        if served is None or dead.topic_id not in served.core.topics:
            names = () if served is None else tuple(served.record.subscriptions)
            subscription = Subscription(filter=letters_condition(source.name))
            settings = GroupSettings(
                topics=dict.fromkeys((*names, dead.name), subscription),
                max_attempts=0,
                start="earliest",
            )
            await self._changes.put(progress, settings, source.owner, ChangeChecks())
            served = self._registry.get(progress)
        return served


class _Redrive:
    """One redrive of the letters of the group `source` in the topic `dead`. `is_over` returns
    whether it must end: the broker stops, or the redrive takes too long."""

    def __init__(
        self,
        store: MessageStore,
        key: bytes,
        source: GroupServer,
        dead: Topic,
        request: RedriveOptions,
        *,
        is_over: Callable[[], bool],
    ) -> None:
        self.result = RedriveResult(dead.name)
        self._store = store
        self._key = key
        self._source = source
        self._dead = dead
        self._request = request
        self._is_over = is_over

    # -- putting back ------------------------------------------------------------------------

    async def put_back(self, progress: GroupServer) -> None:
        """Put letters back. `progress` is the group that records which letters were put back."""
        await progress.leave(MEMBER)
        offsets = self._request.offsets
        wanted = None if offsets is None else _AtOffsets.of(offsets)
        self.result.more |= await self._put_back_all(progress, wanted)
        self.result.stuck = _count_stuck(progress, self._dead, wanted)

    async def _put_back_all(self, progress: GroupServer, wanted: "_AtOffsets | None") -> bool:
        """Put letters back. Return whether there may be more letters."""
        result, empty = self.result, 0
        while result.total < self._request.limit:
            if self._is_over():
                return True
            received = await progress.receive(
                ReceiveRequest(
                    MEMBER,
                    min(AT_ONCE, self._request.limit - result.total),
                    AT_ONCE_BYTES,
                    frozenset([self._dead.topic_id]),
                    wanted,
                    client=MEMBER,
                )
            )
            if received.deliveries:
                may_continue = await self._put_back_together(progress, received.deliveries)
                if result.failure is not None or not may_continue:
                    return True
                continue
            in_flight = progress.core.in_flight
            if wanted is None and not in_flight.may_deliver_new and progress.core.available():
                # So many stuck letters are delayed that no other letter may be delivered.
                if not result.total:
                    raise LimitReached(*in_flight.limit_of_returned)
                return True
            if wanted is None or not _is_any_left(progress, self._dead, wanted):
                return False
            empty += 1  # the next receive continues where this one stopped
            if empty == MAX_EMPTY:
                return True
            await asyncio.sleep(0)
        return True

    async def _put_back_together(
        self, progress: GroupServer, deliveries: Sequence[Delivery]
    ) -> bool:
        """Publish these letters, all letters of one topic together, and acknowledge those that were
        stored. If letters are to be discarded, only acknowledge them. Return False if the caller
        must stop publishing."""
        if self._request.discard:
            self.result.discarded += len(deliveries)
            await _settle(progress, deliveries, deliveries, ())
            return True
        by_topic, stuck = self._sort(deliveries)
        stored: list[Delivery] = []
        may_continue = True
        for topic, letters in by_topic.values():
            counted, full = self._reserve(topic, letters)
            fitting = [rows for _, rows in letters[: len(counted)]]
            published: Sequence[AppendResult] = ()
            try:
                if fitting:
                    published = await self._store.publishing.publish(
                        topic, fitting, durability="fsync"
                    )
            except (StoreError, LogError, OSError) as error:
                self.result.fail(_id_of(letters[0][0]), error)
                break
            finally:
                self._store.topic_room.leave(topic, sum(counted))
            stored += [letter for letter, _ in letters[: len(published)]]
            if self._request.published is not None and published:
                size = sum([each.total_size for each in fitting])
                may_continue &= self._request.published(len(published), size)
            self._count_put_back(topic, sum(not each.duplicate for each in published))
            if full is not None:
                self.result.fail(_id_of(letters[len(fitting)][0]), full)
                break
        await _settle(progress, deliveries, stored, stuck)
        return may_continue

    def _sort(
        self, deliveries: Sequence[Delivery]
    ) -> tuple[dict[int, tuple[Topic, list[tuple[Delivery, Rows]]]], list[Delivery]]:
        """Return the letters of each topic, each with the message to publish, and the stuck
        letters. If a message exceeds a limit, record the failure and return no later letters."""
        by_topic: dict[int, tuple[Topic, list[tuple[Delivery, Rows]]]] = {}
        stuck: list[Delivery] = []
        for each in deliveries:
            opened = self._open(each.batch, each.row)
            if opened is None:
                stuck.append(each)
                continue
            topic, origin = opened
            rows = self._rows(each, topic, origin)
            try:
                check_batch(as_batch(rows), self._store.publishing.limits(topic))
            except LimitExceeded as error:
                self.result.fail(_id_of(each), error)
                break  # later letters of the same key must not overtake this letter
            by_topic.setdefault(topic.topic_id, (topic, []))[1].append((each, rows))
        return by_topic, stuck

    def _reserve(
        self, topic: Topic, letters: Sequence[tuple[Delivery, Rows]]
    ) -> tuple[list[int], TopicFull | None]:
        """If the topic has a `max_bytes`, reserve room for letters, in order. Return the number of
        bytes reserved for each letter, to be given back with `leave`. If there is no room for a
        letter, stop and also return the error."""
        counted = []
        for _, rows in letters:
            try:
                counted.append(self._store.topic_room.enter(topic, rows.total_size))
            except TopicFull as full:
                return counted, full
        return counted, None

    def _count_put_back(self, topic: Topic, count: int) -> None:
        if count:
            self.result.topics[topic.name] = self.result.topics.get(topic.name, 0) + count

    def _open(self, batch: Batch, row: int) -> tuple[Topic, Origin] | None:
        """Return the topic to which a letter goes and the origin of the letter. Return None if the
        letter is stuck: it does not name its origin, or the group does not have the topic now, or
        the caller may not publish to the topic."""
        try:
            origin = read_origin(batch, row)
            topic = self._store.table.get(origin.topic)
        except (NotADeadLetter, UnknownTopic):
            return None
        may_publish = self._request.may_publish
        if may_publish is not None and not may_publish(topic.name):
            return None
        return (topic, origin) if topic.topic_id in self._source.core.topics else None

    def _rows(self, letter: Delivery, topic: Topic, origin: Origin) -> Rows:
        """Return the original message, to be published again.

        In a topic without priority levels, a message with a key goes to the queue of its key. Any
        other message goes to its original queue, if the topic has that queue, and otherwise to
        another queue of the same priority level.
        """
        batch, row = letter.batch, letter.row
        key = batch.key(row)
        levels, queue = topic.priority_levels, origin.queue
        if queue >= topic.queue_count or (key is not None and levels == 1):
            index = 0 if key is None else queue_for_key(key, topic.queues_per_level)
            queue = index * levels + level_of_queue(queue, levels)
        return Rows(
            queue_id=queue,
            bodies=[batch.body(row)],
            born_timestamp_us=time_ns() // 1000,
            keys=[key],
            tags=[batch.tag(row)],
            properties=[origin.properties or None],
            producer_id=keyed_producer_id(
                self._key, "redrive", f"{self._source.record.name} {_id_of(letter)}"
            ),
            producer_epoch=BROKER_EPOCH,
            envelopes=[batch.envelope(row)],
        )

    # -- counting ----------------------------------------------------------------------------

    async def count(self, progress: GroupServer | None) -> None:
        """Set the result to what a redrive would return, and change nothing else."""
        for queue in range(self._dead.queue_count):
            lane = None
            if progress is not None:
                lane = progress.core.lane((self._dead.topic_id, queue))
            if not await self._count_queue(queue, None if lane is None else lane.cursor):
                self.result.more = True
                return

    async def _count_queue(self, queue: int, cursor: Cursor | None) -> bool:
        """Count the letters of a queue. Return False if there may be more letters."""
        offsets, dead = self._request.offsets, self._dead
        only = None if offsets is None else set(offsets.get(queue, ()))
        if only is not None and not only:
            return True
        wanted = filter_of(letters_condition(self._source.record.name))
        offset = self._store.reading.queue_state(dead, queue).min_offset
        if cursor is not None:
            offset = max(offset, cursor.floor)
        while offset < self._store.reading.queue_state(dead, queue).max_offset:
            if self._is_over():
                return False
            fetched = await self._store.reading.read(
                dead,
                queue,
                offset,
                max_messages=READ_AT_ONCE,
                max_bytes=AT_ONCE_BYTES,
                filter=wanted,
                skip_corrupt=True,
            )
            for batch, row in ((each.batch, row) for each in fetched.slices for row in each.rows):
                at = batch.header.base_offset + row
                if only is not None and at not in only:
                    continue
                if cursor is not None and cursor.state(at) is State.DONE:
                    continue
                if self.result.total >= self._request.limit:
                    return False
                opened = None if self._request.discard else self._open(batch, row)
                if self._request.discard:
                    self.result.discarded += 1
                elif opened is None:
                    self.result.stuck += 1
                else:
                    self._count_put_back(opened[0], 1)
            offset = fetched.next_offset
            await asyncio.sleep(0)
        return True


@dataclass(frozen=True, slots=True)
class _AtOffsets:
    """A MessageFilter that matches messages at given offsets."""

    places: frozenset[tuple[int, int]]
    """(queue, offset) of each message."""
    queues: Mapping[int, Collection[int]] = field(compare=False)

    @classmethod
    def of(cls, offsets: Mapping[int, Collection[int]]) -> "_AtOffsets":
        places = frozenset((queue, each) for queue, some in offsets.items() for each in some)
        return cls(places, offsets)

    def may_match(self, tag_summary: int) -> bool:
        return True

    def cost_us(self, messages: int, text_bytes: int) -> float:
        return 0.2 * messages

    def matching_rows(self, batch: Batch, start_row: int, end_row: int) -> Sequence[int]:
        queue, base = batch.header.queue_id, batch.header.base_offset
        return [row for row in range(start_row, end_row) if (queue, base + row) in self.places]


def _is_any_left(served: GroupServer, dead: Topic, wanted: _AtOffsets) -> bool:
    """Return whether any of these letters could still be leased. This is possible after an empty
    receive, because a receive reads only a limited number of messages."""
    topic = served.core.topics.get(dead.topic_id)
    lanes = {} if topic is None else topic.lanes
    return any(
        queue in lanes
        and lanes[queue].cursor.floor <= offset < lanes[queue].cursor.end
        and lanes[queue].cursor.state(offset) is State.AVAILABLE
        for queue, offset in wanted.places
    )


def _count_stuck(served: GroupServer, dead: Topic, wanted: _AtOffsets | None) -> int:
    """Return how many of the wanted letters are delayed because they could not be put back. The
    group `served` has no other delayed messages."""
    lanes = served.lanes_of(dead.topic_id)
    if wanted is None:
        return sum(len(lane.cursor.delays) for lane in lanes)
    return sum(
        (lane.key[1], offset) in wanted.places for lane in lanes for offset in lane.cursor.delays
    )


async def _settle(
    progress: GroupServer,
    deliveries: Sequence[Delivery],
    stored: Sequence[Delivery],
    stuck: Sequence[Delivery],
) -> None:
    """Acknowledge the stored letters, delay the stuck letters, and release all others."""
    settled = {_place(each) for each in (*stored, *stuck)}
    others = [each for each in deliveries if _place(each) not in settled]
    for verb, letters, terms in (
        (Verb.NACK, stuck, {"delay_ms": STUCK_MS}),
        (Verb.RELEASE, others, {}),
        (Verb.ACK, stored, {}),
    ):
        receipts = [each.receipt for each in letters if each.receipt is not None]
        if receipts:
            await progress.settle(verb, receipts, terms)


def _place(letter: Delivery) -> tuple[int, int]:
    return letter.queue, letter.offset


def _id_of(letter: Delivery) -> str:
    return format_message_id(letter.topic.topic_id, letter.queue, letter.offset)
