"""A link that receives messages of a group under leases: the link is a member of the group.

    credit -> a receive request, which waits at the group -> deliveries -> transfers -> the next one
    disposition of the client -> the group records the outcome -> after its commit, the broker's
    disposition, settled; the broker sends none if the client's was settled already

The link has at most one receive request at the group. It asks for at most as many messages as it
can send now: the smallest of its credit, `queue_credit` and the room of the session. It does not
ask while the socket has no room. When the answer comes, other links of the session may have used up
the session's window. Then the link keeps the offsets of the messages until the window opens, and
drops the messages themselves. A flow that reduces the credit cancels the request; the link gives
messages beyond the credit back.
"""

import asyncio
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from contextlib import suppress
from functools import partial
from itertools import islice
from math import inf
from typing import Any

from holdfast.amqp.conditions_of import amqp_error
from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.messages.from_rows import RowEncoder
from holdfast.amqp.nodes.delivery_ages import DeliveryAges, runs
from holdfast.amqp.nodes.group_access import ensure_group, make_member, may_consume
from holdfast.amqp.nodes.link_task import LinkTask
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.settling import annotations_of, settlement_of
from holdfast.amqp.nodes.stored_message import Unsent, read_message, topic_to_show
from holdfast.amqp.nodes.terminus import FromGroup, Outcome, without_answer
from holdfast.amqp.wire.conditions import (
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    RESOURCE_LIMIT_EXCEEDED,
    LinkFailed,
)
from holdfast.amqp.wire.performatives import Accepted, Released, TransactionalState
from holdfast.amqp.wire.types import Symbol
from holdfast.consumequeue.errors import StateUnavailable, StoreError, UnknownGroup
from holdfast.groups.service_types import Delivery, Receipt, ReceiveRequest, Status, Verb
from holdfast.holdservice.no_local import not_published_by

#: An ask returns messages of at most this many bytes, or a single larger message.
SLICE_BYTES = 256 * 1024
#: At most this many messages are settled with one call.
SETTLED_AT_ONCE = 256
#: The property of a flow that tells a consumer of a single active group whether it is active.
ACTIVE = Symbol("rabbitmq:active")
_ACCEPTED = Accepted()


class LeasedSource:
    """See the module. It implements `Source` of node.py."""

    def __init__(
        self,
        peer: Peer,
        link: OutgoingLink,
        wanted: FromGroup,
        *,
        on_stop: Callable[[bool], Coroutine[Any, Any, None]] | None = None,
    ) -> None:
        """`on_stop` is called with `is_closed` when the link ends. What it returns is run when the
        link has left the group."""
        self._on_stop = on_stop
        self._peer, self._link, self._wanted = peer, link, without_answer(wanted)
        self._parts, self._config = peer.parts, peer.parts.config
        self._groups = peer.parts.groups
        self._member = make_member(peer.container_id)
        self._may_consume = may_consume(peer, wanted.group)
        self._condition = wanted.condition
        if wanted.is_no_local:
            self._condition = not_published_by(peer.container_id, wanted.condition)
        #: The size of the filter in characters. It counts against the limit of all filters.
        self._characters = 0
        #: The parsed filter. It is kept so that the group does not parse it for each ask.
        self._filter: object = None
        #: Whether the client wants messages that are settled already (snd-settle-mode settled).
        self._is_settled = link.remote is not None and link.remote.snd_settle_mode == 1
        link.answers_echo = False
        self._work = LinkTask(peer, link, self._config.queue_credit, self._serve)
        self._loop = asyncio.get_running_loop()
        #: The leases of the messages that the client has, by delivery-id, in the order sent.
        self._unsettled: dict[int, Receipt] = {}
        self._ages = DeliveryAges(self._config.delivery_timeout_ms / 1000)
        self._timeout: asyncio.TimerHandle | None = None
        #: Messages that the group delivered, but for which the session's window had no room any
        #: more, because other links of the session used it meanwhile.
        self._unsent: list[Unsent] = []
        #: Pre-settled links only: annotations that an outcome `modified` gave to a message, kept
        #: from the acknowledgement of the message until it is sent.
        self._modified: dict[Receipt, bytes] = {}
        self._leaving: asyncio.Task[None] | None = None
        self._is_single_active = False
        self._is_active = True
        self._reported_active: bool | None = None

    # -- the methods of Source -----------------------------------------------------------------

    async def start(self) -> None:
        """Become a member of the group; make the group if the address allows that."""
        try:
            await self._parse_filter()
            state = await ensure_group(self._peer, self._wanted)
            self._is_single_active = state.record.config.mode == "single_active"
            group, member = self._wanted.group, self._member
            self._is_active = self._groups.join(group, member, self._activity_changed)
            await self._groups.receive(group, self._request(0, 0.0))  # checks the filter
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
        self._report_activity()
        self._give_back_unsent(self._link.credit)
        if self._link.owes_echo and not self._link.is_draining:
            self._count_available()
            self._link.send_flow()
            self._peer.flush()
        self._work.wake()

    def room_changed(self) -> None:
        """The window of the session or the socket has room again."""
        self._work.wake()

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """Settle messages as `settling.py` describes. If the client has not settled a delivery,
        send the settlement to the client once the outcome is durable."""
        if isinstance(state, TransactionalState):
            self._work.fail(LinkFailed(NOT_IMPLEMENTED, "this broker has no transactions"))
            return
        if not isinstance(state, Outcome):  # none, or only progress (received)
            if not is_settled:
                return
            state = self._wanted.default_outcome
        unsettled = self._unsettled
        ids = [delivery_id for delivery_id, _ in deliveries if delivery_id in unsettled]
        receipts = [*map(unsettled.pop, ids)]
        self._link.delivery_room.give(len(ids))
        try:
            for first in range(0, len(ids), SETTLED_AT_ONCE):
                part = slice(first, first + SETTLED_AT_ONCE)
                _, durable = self._begin_settling(state, receipts[part], waits=not is_settled)
                if is_settled:
                    continue
                answer = partial(self._answer_settled, ids[part], state)
                if durable is None:
                    answer(None)
                else:
                    durable.add_done_callback(answer)
        except UnknownGroup as error:
            self._work.fail(LinkFailed(RESOURCE_DELETED, str(error)))

    def stop(self, *, is_closed: bool) -> None:
        """Leave the group. Unsettled messages get the default outcome of the link, but this alone
        makes no message a dead letter (`_end_unsettled`)."""
        if self._work.is_stopped:
            return
        running = self._work.stop()
        self._parts.filter_budget.give_back(self._peer.client, self._characters)
        if self._timeout is not None:
            self._timeout.cancel()
        receipts = list(self._unsettled.values())
        self._link.forget(self._unsettled)
        self._link.delivery_room.give(len(receipts))
        self._unsettled.clear()
        self._give_back_unsent(0)
        # Leaving the group would release the messages too, but later than this iteration.
        with suppress(UnknownGroup):
            for first in range(0, len(receipts), SETTLED_AT_ONCE):
                self._end_unsettled(receipts[first : first + SETTLED_AT_ONCE])
        last = None if self._on_stop is None else self._on_stop(is_closed)
        self._leaving = asyncio.create_task(self._leave(running, last), name="amqp-leave")

    def _end_unsettled(self, receipts: Sequence[Receipt]) -> None:
        """Give messages whose link has ended the default outcome of the link.

        Clients such as Qpid JMS ask for the outcome modified(delivery-failed), but most of these
        messages are ones that the client had prefetched and that no program saw. Therefore the
        failure that would make a message a dead letter is not counted.
        """
        groups, group, outcome = self._groups, self._wanted.group, self._wanted.default_outcome
        ended: dict[bool, list[Receipt]] = {True: [], False: []}
        """Whether the failure is not counted -> the messages."""
        is_failure = settlement_of(outcome, self._config.modified_backoff).verb is Verb.NACK
        for each in receipts:
            ended[is_failure and groups.would_die(group, each)].append(each)
        for is_spared, some in ended.items():
            if some:
                self._begin_settling(Released() if is_spared else outcome, some)

    async def finish(self) -> None:
        """Return once the link has left its group."""
        if self._leaving is not None:
            await asyncio.wait([self._leaving])

    async def _leave(
        self, running: "asyncio.Task[None] | None", last: Coroutine[Any, Any, None] | None
    ) -> None:
        if running is not None:
            await asyncio.wait([running])
        with suppress(UnknownGroup, StateUnavailable):
            await self._groups.leave(self._wanted.group, self._member)
        if last is not None:
            await last

    # -- asking ----------------------------------------------------------------------------------

    async def _serve(self) -> None:
        """Ask and send until there is no credit or no room."""
        link, work, receive = self._link, self._work, self._groups.receive
        group = self._wanted.group
        while not work.is_stopped:
            if self._unsent and not await self._send_unsent():
                return
            room = min(work.room(), link.delivery_room.left)
            if room and not link.is_draining:
                waiting = receive(group, self._request(room, inf))
                received = await work.wait(room, waiting)
                await self._send(received.deliveries)
            elif room:
                received = await receive(group, self._request(room, 0.0))
                await self._send(received.deliveries)
                if not received.deliveries and link.is_draining:
                    self._finish_drain(is_empty=True)
            elif not link.is_draining or not self._finish_drain():
                return

    def _finish_drain(self, *, is_empty: bool = False) -> bool:
        """Give back the credit that is left. Return False if the link must first get room for a
        message that the credit covers."""
        link = self._link
        may_send = link.credit > 0 and link.delivery_room.left > 0
        has_more = self._count_available() > 0 and may_send and not is_empty
        if has_more or link.is_partly_sent:
            return False
        link.drained()
        self._peer.flush()
        return True

    def _request(self, most: int, wait_s: float) -> ReceiveRequest:
        """Return an ask for at most `most` messages."""
        wanted = self._wanted
        return ReceiveRequest(
            self._member,
            most,
            max_bytes=SLICE_BYTES,
            bound=True,
            receipt_values=True,
            client=self._peer.client,
            wait_s=wait_s,
            topic_names=wanted.topics,
            filter_text=self._condition,
            may_consume=self._may_consume,
        )

    def _count_available(self) -> int:
        """Count the messages that the link could get, for the next flow."""
        try:
            available = self._groups.available(self._wanted.group, self._request(0, 0.0))
        except StoreError:  # the group was deleted, or a topic
            available = 0
        self._link.available = available
        return available

    def _activity_changed(self, is_active: bool) -> None:
        self._is_active = is_active
        self._report_activity()

    def _report_activity(self) -> None:
        """Tell a consumer of a single active group if it has become active or inactive."""
        is_changed = self._is_active is not self._reported_active
        if self._is_single_active and is_changed and self._link.is_attached:
            self._reported_active = self._is_active
            self._count_available()
            self._link.send_flow({ACTIVE: self._is_active})
            self._peer.flush()

    # -- sending ---------------------------------------------------------------------------------

    async def _send(self, deliveries: Sequence[Delivery]) -> None:
        """Send messages as far as the window has room now. Keep the other messages until it has."""
        if not deliveries:
            return
        if not self._peer.has_room:
            self._give_back(deliveries)
            return
        if self._is_settled:
            deliveries = await self._settle_before_sending(deliveries)
        count = self._send_now(deliveries)
        if count < len(deliveries):  # other links have used up the room meanwhile
            end = count + self._link.delivery_room.left
            self._give_back(deliveries[end:])
            self._unsent += map(_unsent, deliveries[count:end])
        self._peer.flush_now()
        await self._work.let_output_leave()

    async def _settle_before_sending(self, deliveries: Sequence[Delivery]) -> Sequence[Delivery]:
        """Acknowledge messages durably before they are sent. So each of them is sent at most once,
        even if the broker crashes. Return the messages that were acknowledged."""
        receipts = [each.receipt for each in deliveries if isinstance(each.receipt, Receipt)]
        if modified := self._parts.modified:
            found = ((each, modified.find(each)) for each in receipts)
            self._modified |= {receipt: each for receipt, each in found if each}
        statuses, durable = self._begin_settling(_ACCEPTED, receipts)
        if durable is not None:
            settled = await asyncio.shield(durable)
            statuses = statuses or settled
        pairs = zip(deliveries, statuses, strict=True)
        return [each for each, status in pairs if status is Status.DONE]

    async def _send_unsent(self) -> bool:
        """Send the messages that wait for the window. Return False if the link must wait again."""
        self._give_back_unsent(self._link.delivery_room.left)
        room = self._work.room()
        waiting = self._unsent[:room]
        del self._unsent[:room]
        deliveries = []
        for each in waiting:
            found = await read_message(self._parts.store, each.topic, each.queue, each.offset)
            place = each.topic, each.queue, each.offset
            if found is not None:
                deliveries.append(
                    Delivery(*place, *found, each.receipt, each.attempt, False, each.failures)
                )
            elif each.receipt is not None:  # the group finds out that the message cannot be read
                self._groups.release_undelivered(self._wanted.group, [each.receipt])
        if self._work.is_stopped:
            return False
        count = self._send_now(deliveries)
        self._unsent[:0] = map(_unsent, deliveries[count:])
        self._peer.flush()
        return not self._unsent

    def _send_now(self, deliveries: Sequence[Delivery]) -> int:
        """Send messages in this event loop iteration. Return how many were sent. Raises LinkFailed
        if a message is larger than the client accepts."""
        link, is_settled = self._link, self._is_settled
        room = min(link.sendable, link.delivery_room.left)
        messages = self._encode(deliveries[:room])
        receipts: list[Any] = [each.receipt for each in deliveries[: len(messages)]]
        count = 0
        ids: Sequence[int] = ()
        while count < len(messages) and not link.is_partly_sent:
            ids = link.send_run(messages[count:], settled=is_settled)
            ids = ids or [link.send(messages[count], settled=is_settled)]
            if not is_settled:
                self._unsettled.update(zip(ids, receipts[count:], strict=False))
                link.delivery_room.take(len(ids))
            count += len(ids)
        if self._modified:
            for receipt in receipts[:count]:
                self._modified.pop(receipt, None)
        if ids and not is_settled:
            self._ages.add(self._loop.time(), ids[-1])
            if self._timeout is None:
                self._check_age()
        return count

    def _encode(self, deliveries: Sequence[Delivery]) -> list[bytes]:
        """Return the messages as they are delivered now. Deliveries of several batches may
        alternate: each batch keeps its encoder."""
        group, now_ms = self._wanted.group, self._parts.wall_us() // 1000
        encoders: dict[int, RowEncoder] = {}
        messages: list[bytes] = []
        while (start := len(messages)) < len(deliveries):
            each = deliveries[start]
            batch, row, attempt, receipt = each.batch, each.row, each.attempt, each.receipt
            encoder = encoders.get(id(batch))
            if encoder is None or not encoder.first_row <= row < encoder.end_row:
                encoder = encoders[id(batch)] = RowEncoder(
                    *(batch, row),
                    is_durable=each.topic.config.durability == "fsync",
                    topic=topic_to_show(each.topic, group),
                    most=len(deliveries) - start,
                )
            if attempt == 1 and start + 1 < len(deliveries):
                end_row = row + _count_run(deliveries, start, encoder.end_row - row)
                messages += encoder.encode_run(row, end_row, now_ms)
                continue
            changes = b""
            if attempt > 1 and isinstance(receipt, Receipt):
                changes = self._modified.get(receipt) or self._parts.modified.find(receipt)
            messages.append(encoder.encode(row, attempt, each.failures, now_ms, changes))
        return messages

    def _give_back_unsent(self, kept: int) -> None:
        """Give the messages that wait for the window back, except the first `kept`. Messages that
        were acknowledged stay."""
        if not self._is_settled:
            rest = [self._unsent.pop() for _ in range(len(self._unsent) - kept)]
            self._give_back(rest)

    def _give_back(self, deliveries: Iterable[Delivery | Unsent]) -> None:
        receipts = [each.receipt for each in deliveries if each.receipt is not None]
        if receipts:
            self._groups.release_undelivered(self._wanted.group, receipts)

    # -- settling --------------------------------------------------------------------------------

    def _begin_settling(
        self, outcome: Outcome, receipts: Sequence[Receipt], *, waits: bool = True
    ) -> "tuple[list[Status], asyncio.Future[Any] | None]":
        how = settlement_of(outcome, self._config.modified_backoff)
        annotations = annotations_of(outcome)
        if annotations and how.verb in (Verb.NACK, Verb.RELEASE):
            self._keep_annotations(annotations, receipts)
        begun = self._groups.begin_settling(
            *(self._wanted.group, how.verb, receipts),
            delay_ms=how.delay_ms,
            reason=how.reason,
            waits=waits,
        )
        if self._parts.modified:
            self._drop_annotations(receipts)
        return begun

    def _keep_annotations(
        self, annotations: Mapping[Any, Any], receipts: Sequence[Receipt]
    ) -> None:
        """Keep the annotations of an outcome, before the messages can be delivered again. Ignore
        receipts that are stale: other links may have their messages."""
        parts, groups, group = self._parts, self._groups, self._wanted.group
        leased = [each for each in receipts if groups.is_leased(group, each)]
        client, config = self._peer.client, self._config
        parts.modified.keep(client, group, leased, annotations, config, groups.may_return)

    def _drop_annotations(self, receipts: Sequence[Receipt]) -> None:
        """Drop the annotations of those messages that are settled for good now."""
        modified, groups, group = self._parts.modified, self._groups, self._wanted.group
        found = [each for each in receipts if modified.find(each)]
        modified.drop([each for each in found if not groups.may_return(group, each)])

    def _answer_settled(
        self, ids: Sequence[int], state: Outcome, durable: "asyncio.Future[Any] | None"
    ) -> None:
        """Tell the client that its outcome of these deliveries is durable."""
        if self._work.is_stopped:
            self._link.forget(ids)
            return
        error = None if durable is None else durable.exception()
        if error is not None:
            assert isinstance(error, Exception)
            self._work.fail(amqp_error(error, LinkFailed))
            return
        for first, last in runs(ids):
            self._link.settle(first, last, state)
        self._peer.flush()

    def _check_age(self) -> None:
        """Detach the link if its oldest unsettled message is too old. Otherwise set the timer to
        the time at which it may be too old."""
        self._timeout = None
        oldest = next(iter(self._unsettled), None)
        if oldest is None:
            return
        timeout_ms = self._config.delivery_timeout_ms
        left_s = self._ages.sent_s(oldest) + timeout_ms / 1000 - self._loop.time()
        if left_s > 0:
            self._timeout = self._loop.call_later(left_s, self._check_age)
            return
        self._work.fail(
            LinkFailed(
                RESOURCE_LIMIT_EXCEEDED,
                f"a message was not settled within {timeout_ms} ms (amqp.delivery_timeout_ms); "
                "all unsettled messages of the link return to the group",
            )
        )


def _unsent(delivery: Delivery) -> Unsent:
    receipt = delivery.receipt if isinstance(delivery.receipt, Receipt) else None
    place = delivery.topic, delivery.queue, delivery.offset
    return Unsent(*place, delivery.attempt, delivery.failures, receipt)


def _count_run(deliveries: Sequence[Delivery], start: int, most: int) -> int:
    """Return how many deliveries from `start` on are of successive rows of one batch, and their
    first ones; at most `most`. The delivery at `start` must be a first one."""
    batch, row = deliveries[start].batch, deliveries[start].row
    for count, each in enumerate(islice(deliveries, start, start + most)):
        if each.batch is not batch or each.row != row + count or each.attempt != 1:
            return count
    return min(most, len(deliveries) - start)
