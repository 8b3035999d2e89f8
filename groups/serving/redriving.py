"""Redrive: publishes a group's dead letters to their original topics. On the event loop.

    leased from the dead-letter topic -> published to its own topic, durably -> acknowledged

To put a letter back means to publish it to its original topic again. The group `GROUP.redrive` on
the dead-letter topic records which letters were put back. Each letter is published under its own
producer id. So if a crash prevents the acknowledgement, the letter is published again, and the log
stores it only once. Letters of one key stay in order. A letter is put back only if the group
subscribes to its original topic. Otherwise a client that may publish to the dead-letter topic could
write to any topic through a redrive.
"""

import asyncio
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic, time_ns

from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_check import LimitExceeded, check_batch
from holdfast.commitlog.format.batch_encoding import Rows, as_batch
from holdfast.commitlog.format.message_id import format_message_id
from holdfast.commitlog.format.priority import level_of_queue
from holdfast.consumequeue.errors import LimitReached, StoreError, TopicFull, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.publishing import StoredBatch
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.groups.core.requests import ReceiveRequest
from holdfast.groups.cursor.cursor import State
from holdfast.groups.errors import InvalidGroup, NoDeadLetters, RedriveRunning
from holdfast.groups.filter_text import filter_of
from holdfast.groups.service_types import Delivery, RedriveOptions, RedriveResult, Verb
from holdfast.groups.serving.group_changes import GroupChanges
from holdfast.groups.serving.group_registry import GroupRegistry
from holdfast.groups.serving.group_server import GroupServer
from holdfast.groups.serving.keyed_identity import keyed_producer_id
from holdfast.groups.serving.letters import NotADeadLetter, Origin, letters_condition, read_origin
from holdfast.groups.settings import GroupSettings, Subscription

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
#: If only letters at given offsets are requested, at most this many receives may find none of them.
#: Each receive reads a limited number of messages, and the next one continues there.
MAX_EMPTY = 100
#: A dry run reads at most this many letters in one read.
READ_AT_ONCE = 1_000


class Redriver:
    """The redrives of all groups, at most one per group at a time."""

    def __init__(self, store: MessageStore, registry: GroupRegistry, changes: GroupChanges) -> None:
        self._store = store
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
        group_server = self._registry.get(group)
        name = request.dead_letter_topic or group_server.record.dead_letter_topic
        if name is None:
            raise NoDeadLetters(group)
        dead = self._store.table.get(name)
        if dead.topic_id in group_server.core.topics:
            raise InvalidGroup("dead_letter_topic", "it is one of the group's own topics")
        progress = check_name("group", f"{group}.redrive")
        self._check_progress_group(progress, group)
        if group in self._running:
            raise RedriveRunning(group)
        self._running.add(group)
        try:
            if request.dry_run:
                return await self._count(group_server, dead, request, progress)
            return await self._put_back(group_server, dead, request, progress)
        finally:
            self._running.discard(group)

    # -- putting back ------------------------------------------------------------------------

    async def _put_back(
        self, group_server: GroupServer, dead: Topic, request: RedriveOptions, progress: str
    ) -> RedriveResult:
        served = await self._progress_group(
            progress, group_server.record.name, dead, group_server.record.owner
        )
        await served.leave(MEMBER)
        run = RedriveResult(dead.name)
        wanted = None if request.offsets is None else _AtOffsets.of(request.offsets)
        until_s = monotonic() + LONGEST_S
        empty = 0
        while run.total < request.limit:
            if self._is_ending or monotonic() >= until_s:
                run.more = True
                break
            received = await served.receive(
                ReceiveRequest(
                    MEMBER,
                    min(AT_ONCE, request.limit - run.total),
                    AT_ONCE_BYTES,
                    frozenset([dead.topic_id]),
                    wanted,
                    client=MEMBER,
                )
            )
            if received.deliveries:
                may_go_on = await self._put_back_together(
                    group_server, served, received.deliveries, run, request
                )
                if run.failure is not None:
                    break
                if not may_go_on:
                    run.more = True
                    break
                continue
            in_flight = served.core.in_flight
            if wanted is None and not in_flight.may_deliver_new and served.core.available():
                # So many stuck letters are delayed that no other letter may be delivered.
                if not run.total:
                    raise LimitReached(*in_flight.limit_of_returned)
                run.more = True
                break
            if wanted is None or not _is_any_left(served, dead, wanted):
                break
            empty += 1  # the next receive continues where this one stopped
            if empty == MAX_EMPTY:
                run.more = True
                break
            await asyncio.sleep(0)
        else:
            run.more = True
        run.stuck = _count_stuck(served, dead, wanted)
        return run

    async def _put_back_together(
        self,
        group_server: GroupServer,
        served: GroupServer,
        deliveries: Sequence[Delivery],
        run: RedriveResult,
        request: RedriveOptions,
    ) -> bool:
        """Publish these letters, all letters of one topic together, and acknowledge those that were
        stored. Return False if `request.published` says that the caller must stop publishing."""
        by_topic: dict[int, tuple[Topic, list[Delivery], list[Rows]]] = {}
        stuck: list[Delivery] = []
        for each in deliveries:
            opened = self._open(group_server, each.batch, each.row, request)
            if opened is None:
                stuck.append(each)
                continue
            topic, origin = opened
            rows = self._rows(group_server, each, topic, origin)
            try:
                check_batch(as_batch(rows), self._store.publishing.limits(topic))
            except LimitExceeded as error:
                run.fail(_id_of(each), error)
                break  # later letters of the same key must not overtake this letter
            _, letters, of_topic = by_topic.setdefault(topic.topic_id, (topic, [], []))
            letters.append(each)
            of_topic.append(rows)
        stored: list[Delivery] = []
        may_go_on = True
        for topic, letters, of_topic in by_topic.values():
            counted, full = self._enter(topic, of_topic)
            fitting = of_topic[: len(counted)]
            published: Sequence[StoredBatch] = ()
            try:
                if fitting:
                    published = await self._store.publishing.publish(
                        topic, fitting, durability="fsync"
                    )
            except (StoreError, LogError, OSError) as error:
                run.fail(_id_of(letters[0]), error)
                break
            finally:
                self._store.topic_room.leave(topic, sum(counted))
            stored += letters[: len(published)]
            if request.published is not None and published:
                size = sum([each.total_size for each in fitting])
                may_go_on &= request.published(len(published), size)
            new = sum(not each.duplicate for each in published)
            if new:
                run.topics[topic.name] = run.topics.get(topic.name, 0) + new
            if full is not None:
                run.fail(_id_of(letters[len(fitting)]), full)
                break
        await self._settle(served, deliveries, stored, stuck)
        return may_go_on

    def _enter(self, topic: Topic, rows: Sequence[Rows]) -> tuple[list[int], TopicFull | None]:
        """Reserve room for letters, in order, in case the topic has a `max_bytes`. Return the
        number of bytes reserved for each letter, to be given back with `leave`. If there is no room
        for a letter, stop and also return the error."""
        counted = []
        for each in rows:
            try:
                counted.append(self._store.topic_room.enter(topic, each.total_size))
            except TopicFull as full:
                return counted, full
        return counted, None

    async def _settle(
        self,
        served: GroupServer,
        deliveries: Sequence[Delivery],
        stored: Sequence[Delivery],
        stuck: Sequence[Delivery],
    ) -> None:
        """Acknowledge the stored letters, delay the stuck letters, and release all others."""
        await _settle_letters(served, Verb.NACK, stuck, delay_ms=STUCK_MS)
        settled = {_place(each) for each in (*stored, *stuck)}
        await _settle_letters(
            served, Verb.RELEASE, [each for each in deliveries if _place(each) not in settled]
        )
        await _settle_letters(served, Verb.ACK, stored)

    def _open(
        self, group_server: GroupServer, batch: Batch, row: int, request: RedriveOptions
    ) -> tuple[Topic, Origin] | None:
        """Return the topic to which a letter goes and the origin of the letter. Return None if the
        letter is stuck: it does not name its origin, or the group does not have the topic now, or
        the caller may not publish to the topic."""
        try:
            origin = read_origin(batch, row)
            topic = self._store.table.get(origin.topic)
        except (NotADeadLetter, UnknownTopic):
            return None
        if request.may_publish is not None and not request.may_publish(topic.name):
            return None
        return (topic, origin) if topic.topic_id in group_server.core.topics else None

    def _rows(
        self, group_server: GroupServer, letter: Delivery, topic: Topic, origin: Origin
    ) -> Rows:
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
                self._registry.receipt_key,
                "redrive",
                f"{group_server.record.name} {_id_of(letter)}",
            ),
            producer_epoch=BROKER_EPOCH,
        )

    # -- counting ----------------------------------------------------------------------------

    async def _count(
        self, group_server: GroupServer, dead: Topic, request: RedriveOptions, progress: str
    ) -> RedriveResult:
        """Return the result that a redrive would have, without changing anything."""
        run = RedriveResult(dead.name)
        served = self._registry.by_name.get(progress)
        wanted = filter_of(letters_condition(group_server.record.name))
        until_s = monotonic() + LONGEST_S
        for queue in range(dead.queue_count):
            only = None if request.offsets is None else set(request.offsets.get(queue, ()))
            if only is not None and not only:
                continue
            lane = None
            if served is not None and dead.topic_id in served.core.topics:
                lane = served.core.topics[dead.topic_id].lanes.get(queue)
            offset = self._store.reading.queue_state(dead, queue).min_offset
            if lane is not None:
                offset = max(offset, lane.cursor.floor)
            while offset < self._store.reading.queue_state(dead, queue).max_offset:
                if self._is_ending or monotonic() >= until_s:
                    run.more = True
                    return run
                fetched = await self._store.reading.read(
                    dead,
                    queue,
                    offset,
                    max_messages=READ_AT_ONCE,
                    max_bytes=AT_ONCE_BYTES,
                    filter=wanted,
                    skip_corrupt=True,
                )
                for each in fetched.slices:
                    for row in each.rows:
                        at = each.batch.header.base_offset + row
                        if only is not None and at not in only:
                            continue
                        if lane is not None and lane.cursor.state(at) is State.DONE:
                            continue
                        if run.total >= request.limit:
                            run.more = True
                            return run
                        opened = self._open(group_server, each.batch, row, request)
                        if opened is None:
                            run.stuck += 1
                        else:
                            name = opened[0].name
                            run.topics[name] = run.topics.get(name, 0) + 1
                offset = fetched.next_offset
                await asyncio.sleep(0)
        return run

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
                f"the group {progress!r}, which would keep which letters were put back, is in use "
                "for something else; delete it or give that group another name",
            )

    async def _progress_group(
        self, progress: str, group: str, dead: Topic, owner: str
    ) -> GroupServer:
        served = self._registry.by_name.get(progress)
        if served is None or dead.topic_id not in served.core.topics:
            names = () if served is None else tuple(served.record.subscriptions)
            subscription = Subscription(filter=letters_condition(group))
            settings = GroupSettings(
                topics=dict.fromkeys((*names, dead.name), subscription),
                max_attempts=0,
                start="earliest",
            )
            await self._changes.put(progress, settings, owner)
            served = self._registry.get(progress)
        return served


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


async def _settle_letters(
    served: GroupServer, verb: Verb, letters: Sequence[Delivery], *, delay_ms: int | None = None
) -> None:
    receipts = [each.receipt for each in letters if each.receipt is not None]
    if receipts:
        await served.settle(
            verb, receipts, delay_ms=delay_ms, lease_ms=None, used_ms=None, cumulative=False
        )


def _place(letter: Delivery) -> tuple[int, int]:
    return letter.queue, letter.offset


def _id_of(letter: Delivery) -> str:
    return format_message_id(letter.topic.topic_id, letter.queue, letter.offset)
