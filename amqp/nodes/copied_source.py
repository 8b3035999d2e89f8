"""A link that copies messages of a topic by offset: a stream, or a plain subscription of a topic.

    credit -> read from the offsets -> transfers -> read on -> at the end: hold until one arrives

The offsets belong to the link: they are not stored, and reading changes nothing for other readers.
The link sends messages again that the client releases, or modifies as failed, before it sends new
messages. For messages that wait, the link keeps only offsets, neither messages nor encoded bytes.
"""

import asyncio
from collections.abc import Sequence
from heapq import heappop, heappush
from itertools import chain
from typing import Any, NamedTuple

from holdfast.amqp.conditions_of import amqp_error
from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.messages.from_rows import RowEncoder
from holdfast.amqp.nodes.delivery_ages import runs
from holdfast.amqp.nodes.filters import End, Start
from holdfast.amqp.nodes.group_access import check_consume, ensure_topic
from holdfast.amqp.nodes.link_task import LinkTask, finish_drain
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.stored_message import read_message
from holdfast.amqp.nodes.terminus import FromTopic, Outcome, without_answer
from holdfast.amqp.wire.conditions import NOT_IMPLEMENTED, LinkFailed
from holdfast.amqp.wire.performatives import Modified, Released, TransactionalState
from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import LimitReached, OffsetTrimmed, UnknownTopic
from holdfast.consumequeue.reading.fetched import BatchSlice, MessageFilter
from holdfast.consumequeue.thread_calls import call_in_thread
from holdfast.consumequeue.topics import Topic, check_queue
from holdfast.groups.errors import GroupsStopping
from holdfast.holdservice.filters import is_parsed_quickly, parse_filter
from holdfast.holdservice.no_local import not_published_by
from holdfast.holdservice.pull_request_hold_service import Outcome as HoldOutcome

#: A read returns messages of at most this many bytes, or a single larger message.
SLICE_BYTES = 256 * 1024
#: At the end of the queues the link is held for this time. Then it looks for new queues.
HOLD_S = 60.0


class _Copy(NamedTuple):
    """A message that was sent, or that is to be sent again. The order is that of sending."""

    queue: int
    offset: int
    attempt: int
    failures: int


class CopiedSource:
    """See the module. It implements `Source` of node.py."""

    def __init__(self, peer: Peer, link: OutgoingLink, wanted: FromTopic) -> None:
        self._peer, self._link, self._wanted = peer, link, without_answer(wanted)
        self._parts, self._config = peer.parts, peer.parts.config
        self._reading = peer.parts.store.reading
        #: Whether the client wants messages that are settled already (snd-settle-mode settled).
        self._is_settled = link.remote is not None and link.remote.snd_settle_mode == 1
        link.answers_echo = False
        self._work = LinkTask(peer, link, self._config.queue_credit, self._serve)
        self._topic: Topic
        self._filter: MessageFilter | None = None
        #: The characters of the filter that are counted.
        self._characters = 0
        #: For each queue, the next offset to read.
        self._offsets: dict[int, int] = {}
        #: The messages that the client has, by delivery-id.
        self._unsettled: dict[int, _Copy] = {}
        #: The messages to send again: a heap.
        self._returned: list[_Copy] = []
        self._running: asyncio.Task[None] | None = None

    # -- the methods of Source -----------------------------------------------------------------

    async def start(self) -> None:
        """Find the topic, and the offsets at which the copy begins."""
        wanted, store = self._wanted, self._parts.store
        try:
            check_consume(self._peer, (wanted.topic,), None)
            if wanted.is_made_by_need:
                await ensure_topic(self._peer, wanted.topic)
            topic = self._topic = store.table.get(wanted.topic)
            self._filter = await self._parse_filter()
            queues = range(topic.queue_count) if wanted.queue is None else (wanted.queue,)
            most = self._config.max_copied_queues
            if len(queues) > most:
                raise LimitReached("amqp.max_copied_queues", most)
            for queue in queues:
                check_queue(topic, queue)
                self._offsets[queue] = await self._offset_at(queue, wanted.start)
        except Exception as error:
            raise amqp_error(error, LinkFailed) from error

    async def _parse_filter(self) -> MessageFilter | None:
        tags, selector = self._wanted.tags, self._wanted.selector
        if self._wanted.is_no_local:
            selector = not_published_by(self._peer.container_id, selector)
        characters = len(tags or "") + len(selector or "")
        self._parts.filter_budget.take(self._peer.client, characters, self._config)
        self._characters = characters
        if is_parsed_quickly(tags, selector):
            return parse_filter(tags, selector)
        return await call_in_thread(parse_filter, tags, selector)

    def credit_changed(self) -> None:
        """The client changed the credit of the link, or asks for a drain or an echo."""
        link = self._link
        if link.owes_echo and not link.is_draining:
            link.available = self._count_available()
            link.send_flow()
            self._peer.flush()
        self._work.wake()

    def room_changed(self) -> None:
        """The window of the session or the socket has room again."""
        self._work.wake()

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """Forget messages. Keep the offsets of released and failed ones, to send these again."""
        if isinstance(state, TransactionalState):
            self._work.fail(LinkFailed(NOT_IMPLEMENTED, "this broker has no transactions"))
            return
        if not isinstance(state, Outcome):  # none, or only progress (received)
            if not is_settled:
                return
            state = self._wanted.default_outcome
        was_full = self._left() <= 0
        again, failed = _comes_again(state)
        ids = [delivery_id for delivery_id, _ in deliveries if delivery_id in self._unsettled]
        for delivery_id in ids:
            copy = self._unsettled.pop(delivery_id)
            if again:
                heappush(
                    self._returned,
                    copy._replace(attempt=copy.attempt + 1, failures=copy.failures + failed),
                )
        if not is_settled:
            for first, last in runs(ids):
                self._link.settle(first, last, state)
            self._peer.flush()
        self._link.delivery_room.give(len(ids))
        if was_full or self._returned:
            self._work.wake(is_due=True)

    def stop(self, *, is_closed: bool) -> None:
        """Forget everything."""
        if self._work.is_stopped:
            return
        self._running = self._work.stop()
        self._parts.filter_budget.give_back(self._peer.client, self._characters)
        self._link.forget(self._unsettled)
        self._link.delivery_room.give(len(self._unsettled))
        self._unsettled.clear()
        self._returned.clear()

    async def finish(self) -> None:
        """Return once the work of the link has ended."""
        running, self._running = self._running, None  # a cancelled task keeps its frames
        if running is not None:
            await asyncio.wait([running])

    # -- sending ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Read and send until there is no credit or no room."""
        link, work = self._link, self._work
        while not work.is_stopped:
            room = min(work.room(), self._left())
            if room and (await self._send_returned() or await self._read_and_send(room)):
                continue
            if link.is_draining:
                available = link.available = self._count_available()
                has_more = available > 0 and not work.room()
                if not finish_drain(self._peer, link, has_more=has_more):
                    return
            elif room:
                await self._hold(room)
            else:
                return

    def _left(self) -> int:
        """Return how many more messages the client may have without settling them."""
        if self._is_settled:
            return self._config.queue_credit
        left = self._config.max_unsettled - len(self._unsettled)
        return min(left - len(self._returned), self._link.delivery_room.left)

    def _room(self) -> int:
        """Return how many messages may be sent in this event loop iteration. Messages that come
        again are counted in `_left`, so they do not need further room of the link."""
        return max(0, min(self._work.room(), self._link.delivery_room.left))

    async def _read_and_send(self, room: int) -> bool:
        """Send the next messages. Return False if all queues are at their end."""
        topic, offsets = self._topic, self._offsets
        ready = {}
        for queue, offset in offsets.items():
            end = self._reading.max_offset((topic.topic_id, queue))
            if end is None:
                raise UnknownTopic(topic.name)
            if offset < end:
                ready[queue] = offset
        if not ready:
            return False
        found = await self._reading.read_many(
            topic, ready, max_messages=room, max_bytes=SLICE_BYTES, filter=self._filter
        )
        for queue, fetched in found.items():
            if isinstance(fetched, OffsetTrimmed):
                offsets[queue] = fetched.min_offset
                continue
            if isinstance(fetched, Exception):
                raise fetched
            stopped_at = None
            for part in chain.from_iterable(piece.slices() for piece in fetched.pieces):
                stopped_at = self._send_slice(queue, part)
                if stopped_at is not None:
                    break
            offsets[queue] = fetched.next_offset if stopped_at is None else stopped_at
        self._peer.flush_now()
        await self._work.let_output_leave()
        return True

    def _send_slice(self, queue: int, part: BatchSlice) -> int | None:
        """Send messages that have not expired. Return the first offset that could not be sent;
        None if all were sent."""
        batch, encoder = part.batch, None
        base, expire = batch.header.base_offset, batch.expires_timestamps_us is not None
        now_ms, link = self._parts.wall_us() // 1000, self._link
        room = self._room()
        for row in map(int, part.rows):
            if expire and 0 < batch.expires_at_ms(row) <= now_ms:
                continue
            if not room or link.is_partly_sent:
                return base + row
            room -= 1
            if encoder is None or row >= encoder.end_row:
                encoder = self._encoder(batch, row)
            self._send(encoder, row, _Copy(queue, base + row, 1, 0), now_ms)
        return None

    async def _send_returned(self) -> bool:
        """Send the first message that comes again. Return False if there is none."""
        if not self._returned:
            return False
        copy = self._returned[0]
        found = await read_message(self._parts.store, self._topic, copy.queue, copy.offset)
        if not self._returned or self._returned[0] != copy:
            return True  # an earlier message came back meanwhile
        if found is not None:
            if not self._room():
                return True
            batch, row = found
            self._send(self._encoder(batch, row), row, copy, self._parts.wall_us() // 1000)
            self._peer.flush()
        heappop(self._returned)
        return True

    def _encoder(self, batch: Batch, row: int) -> RowEncoder:
        return RowEncoder(batch, row, is_durable=self._topic.config.durability == "fsync")

    def _send(self, encoder: RowEncoder, row: int, copy: _Copy, now_ms: int) -> None:
        message = encoder.encode(row, copy.attempt, copy.failures, now_ms)
        delivery_id = self._link.send(message, settled=self._is_settled)
        if not self._is_settled:
            self._unsettled[delivery_id] = copy
            self._link.delivery_room.take(1)

    # -- the end of the queues -------------------------------------------------------------------

    async def _hold(self, room: int) -> None:
        """Wait until a message arrives in one of the queues."""
        topic = self._topic
        waits = {(topic.topic_id, queue): offset for queue, offset in self._offsets.items()}
        waiting = self._parts.hold.hold(
            waits, wait_s=HOLD_S, client=self._peer.client, filter=self._filter
        )
        held = await self._work.wait(room, waiting)
        if held.outcome is HoldOutcome.DELETED:
            raise UnknownTopic(topic.name)
        if held.outcome is HoldOutcome.DRAINING:
            raise GroupsStopping
        for (_, queue), offset in held.scanned.items():
            self._offsets[queue] = max(self._offsets[queue], offset)
        self._add_new_queues()

    def _add_new_queues(self) -> None:
        """Add the queues that the topic has got since the link was attached."""
        topic = self._parts.store.table.by_id(self._topic.topic_id)
        if topic is None or self._wanted.queue is not None:
            return
        self._topic = topic
        if topic.queue_count > self._config.max_copied_queues:
            raise LimitReached("amqp.max_copied_queues", self._config.max_copied_queues)
        for queue in range(len(self._offsets), topic.queue_count):
            self._offsets[queue] = self._reading.queue_state(topic, queue).min_offset

    def _count_available(self) -> int:
        """Return how many messages of the queues were not sent yet, or come again. The filter of
        the link is not applied."""
        topic_id, max_offset = self._topic.topic_id, self._reading.max_offset
        ends = ((max_offset((topic_id, queue)), at) for queue, at in self._offsets.items())
        return len(self._returned) + sum(end - at for end, at in ends if end is not None)

    async def _offset_at(self, queue: int, start: Start) -> int:
        """Return the offset at which the copy of a queue begins: an offset that the queue has, or
        its end."""
        topic, parts = self._topic, self._parts
        if start.timestamp_ms is not None:
            found = await parts.store.lookups.offset_by_time(
                topic, queue, start.timestamp_ms * 1000
            )
            return found[0]
        state = self._reading.queue_state(topic, queue)
        if start.offset is not None:
            return min(max(start.offset, state.min_offset), state.max_offset)
        if start.end is End.FIRST:
            return state.min_offset
        last = max(state.max_offset - 1, state.min_offset)
        return last if start.end is End.LAST else state.max_offset


def _comes_again(outcome: Outcome) -> tuple[bool, int]:
    """Return whether the link sends a message again after this outcome, and how many failures the
    outcome adds."""
    if isinstance(outcome, Released):
        return True, 0
    if isinstance(outcome, Modified) and not outcome.undeliverable_here:
        return True, 1 if outcome.delivery_failed else 0
    return False, 0
