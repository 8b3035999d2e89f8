"""A link that browses a group: it gets messages that no member has leased, without a lease.

    credit -> browse the group -> transfers -> browse on -> at the end: hold until messages arrive

Browsing changes nothing for the members of the group and for other browsers. The link gets each
message at most once, even if a member releases the message later. Outcomes that the client gives
have no effect.
"""

import asyncio
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import islice
from typing import Any

from holdfast.amqp.conditions_of import amqp_error
from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.messages.from_rows import RowEncoder
from holdfast.amqp.nodes.delivery_ages import runs
from holdfast.amqp.nodes.group_access import ensure_group, make_member, may_consume
from holdfast.amqp.nodes.link_task import LinkTask, finish_drain
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.stored_message import topic_to_show
from holdfast.amqp.nodes.terminus import FromGroup, Outcome, without_answer
from holdfast.amqp.wire.conditions import LinkFailed
from holdfast.amqp.wire.performatives import Received as Progress
from holdfast.consumequeue.errors import StateUnavailable, StoreError, UnknownGroup
from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.errors import GroupsStopping
from holdfast.groups.service_types import Delivery, ReceiveRequest
from holdfast.holdservice.no_local import not_published_by
from holdfast.holdservice.pull_request_hold_service import Outcome as HoldOutcome

#: A browse returns messages of at most this many bytes, or a single larger message.
SLICE_BYTES = 256 * 1024
#: At the end of the group the link is held for this time. Then it looks for new topics.
HOLD_S = 60.0


class BrowsingSource:
    """See the module. It implements `Source` of node.py."""

    def __init__(self, peer: Peer, link: OutgoingLink, wanted: FromGroup) -> None:
        self._peer, self._link, self._wanted = peer, link, without_answer(wanted)
        self._parts, self._config = peer.parts, peer.parts.config
        self._member = make_member(peer.container_id)
        self._may_consume = may_consume(peer, wanted.group)
        self._condition = wanted.condition
        if wanted.is_no_local:
            self._condition = not_published_by(peer.container_id, wanted.condition)
        #: The characters of the filter that are counted.
        self._characters = 0
        #: The parsed filter. It is kept so that the group does not parse it for each ask.
        self._filter: object = None
        self._is_settled = link.remote is not None and link.remote.snd_settle_mode == 1
        link.answers_echo = False
        self._work = LinkTask(peer, link, self._config.queue_credit, self._serve)
        #: For each queue of the group, the offset after the last message that was sent.
        self._places: dict[QueueKey, int] = {}
        #: The ids of the deliveries that the client has.
        self._unsettled: set[int] = set()
        self._leaving: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Find the group, and make it if the address allows that."""
        try:
            await self._parse_filter()
            await ensure_group(self._peer, self._wanted)
            await self._parts.groups.receive(self._wanted.group, self._request(0))
        except Exception as error:
            raise amqp_error(error, LinkFailed) from error

    async def _parse_filter(self) -> None:
        text = self._condition
        if text is not None:
            self._parts.filter_budget.take(self._peer.client, len(text), self._config)
            self._characters = len(text)
            self._filter = (await self._parts.groups.registry.filters.parse([text]))[text]

    def credit_changed(self) -> None:
        """The client changed the credit of the link, or asks for a drain or an echo."""
        link = self._link
        if link.owes_echo and not link.is_draining:
            with suppress(StoreError):  # the group was deleted, or a topic
                link.available = self._parts.groups.available(self._wanted.group, self._request(0))
            link.send_flow()
            self._peer.flush()
        self._work.wake()

    def room_changed(self) -> None:
        """The window of the session or the socket has room again."""
        self._work.wake()

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """Forget deliveries. If the client has not settled them, settle them now."""
        if isinstance(state, Progress) and not is_settled:
            return
        was_full = self._left() <= 0
        ids = [delivery_id for delivery_id, _ in deliveries if delivery_id in self._unsettled]
        self._unsettled.difference_update(ids)
        if not is_settled:
            outcome = state if isinstance(state, Outcome) else self._wanted.default_outcome
            for first, last in runs(ids):
                self._link.settle(first, last, outcome)
            self._peer.flush()
        self._link.delivery_room.give(len(ids))
        if was_full:
            self._work.wake()

    def stop(self, *, is_closed: bool) -> None:
        """Forget the place in the group."""
        if self._work.is_stopped:
            return
        running = self._work.stop()
        self._parts.filter_budget.give_back(self._peer.client, self._characters)
        self._link.forget(self._unsettled)
        self._link.delivery_room.give(len(self._unsettled))
        self._unsettled.clear()
        self._leaving = asyncio.create_task(self._leave(running), name="amqp-leave")

    async def finish(self) -> None:
        """Return once the link has left its group."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    async def _leave(self, running: "asyncio.Task[None] | None") -> None:
        if running is not None:
            await asyncio.wait([running])
        with suppress(UnknownGroup, StateUnavailable):
            await self._parts.groups.leave(self._wanted.group, self._member)

    # -- sending ---------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Browse and send until there is no credit or no room."""
        link, work = self._link, self._work
        is_at_end, ends = False, {}
        while not work.is_stopped:
            room = min(work.room(), self._left())
            if room and not is_at_end:
                ends = self._ends()
                shown = await self._parts.groups.receive(self._wanted.group, self._request(room))
                is_at_end = not shown.deliveries
                self._send(shown.deliveries)
                self._peer.flush()
                await work.let_output_leave()
            elif link.is_draining:
                if not finish_drain(self._peer, link, has_more=not (is_at_end or work.room())):
                    return
            elif room:
                await self._hold(room, ends)
                is_at_end = False
            else:
                return

    def _left(self) -> int:
        """Return how many more messages the client may have without settling them."""
        left = self._config.max_unsettled - len(self._unsettled)
        return min(left, self._link.delivery_room.left)

    def _request(self, most: int) -> ReceiveRequest:
        """Return a browse of at most `most` messages."""
        wanted = self._wanted
        return ReceiveRequest(
            self._member,
            most,
            max_bytes=SLICE_BYTES,
            client=self._peer.client,
            browse=True,
            topic_names=wanted.topics,
            filter_text=self._condition,
            may_consume=self._may_consume,
        )

    def _send(self, deliveries: Sequence[Delivery]) -> None:
        """Send the messages that were not sent before, as far as there is credit and room."""
        now_ms = self._parts.wall_us() // 1000
        for each in deliveries:
            key = each.topic.topic_id, each.queue
            if each.offset < self._places.get(key, 0):
                continue
            if not self._work.room() or not self._link.delivery_room.left:
                self._member = make_member(self._peer.container_id)  # begin at the floors again
                return
            is_durable = each.topic.config.durability == "fsync"
            topic = topic_to_show(each.topic, self._wanted.group)
            encoder = RowEncoder(each.batch, each.row, is_durable=is_durable, topic=topic)
            message = encoder.encode(each.row, each.attempt, each.failures, now_ms)
            delivery_id = self._link.send(message, settled=self._is_settled)
            self._places[key] = each.offset + 1
            if not self._is_settled:
                self._unsettled.add(delivery_id)
                self._link.delivery_room.take(1)

    def _ends(self) -> dict[QueueKey, int]:
        """Return the ends of the group's queues, of at most `max_copied_queues`."""
        store, wanted = self._parts.store, self._wanted
        names = wanted.topics or self._parts.groups.group_state(wanted.group).topics
        topics = [topic for topic in map(store.table.find, names) if topic is not None]
        keys = ((topic.topic_id, queue) for topic in topics for queue in range(topic.queue_count))
        return {
            key: store.reading.max_offset(key) or 0
            for key in islice(keys, self._config.max_copied_queues)
        }

    async def _hold(self, room: int, ends: Mapping[QueueKey, int]) -> None:
        """Wait until a message arrives after these ends of queues."""
        work, hold = self._work, self._parts.hold
        if not ends:
            await work.wait(room, asyncio.sleep(HOLD_S))
            return
        held = await work.wait(room, hold.hold(ends, wait_s=HOLD_S, client=self._peer.client))
        if held.outcome is HoldOutcome.DRAINING:
            raise GroupsStopping
