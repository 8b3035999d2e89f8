"""A link on which a client publishes: transfers become stored messages, and outcomes follow.

    deliveries of one read -> columns -> one `Rows` for each queue -> one publish
                           -> stored or failed -> one disposition for a run of delivery-ids

A link that is lost may be attached again: the node keeps the tags and states of the deliveries that
are not settled, and the next node of the link gets them. So no message is stored twice, if
its sender asks for rcv-settle-mode second. With rcv-settle-mode first, the broker settles a
delivery with its outcome; if the outcome is lost, the sender has to send the message again. Then,
and after a restart of the broker, copies in the log are looked for (stored_copies.py).

The messages of one link keep their order within a queue. A link may have at most 1.5 times
`publish_credit` messages that are unconfirmed or that it may still send, whether or not the sender
wants an outcome. So a slow topic stops only its own links: they get no further credit until
messages are stored. Other links continue.
"""

import asyncio
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from itertools import groupby, takewhile
from typing import Any, NamedTuple

from holdfast.amqp.conditions_of import amqp_error, publish_outcome
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.resumption import Resumable
from holdfast.amqp.engine.session import Session
from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.messages.to_rows import Columns, Rules, column, to_columns
from holdfast.amqp.nodes.addresses import Kind, parse_address
from holdfast.amqp.nodes.group_access import ensure_topic
from holdfast.amqp.nodes.node import Peer
from holdfast.amqp.nodes.stored_copies import MAYBE_STORED, digest_of
from holdfast.amqp.nodes.suspended_links import LinkKey, publishes_ended
from holdfast.amqp.nodes.temporary import TemporaryNode
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_DELETED,
    AmqpError,
    LinkFailed,
)
from holdfast.amqp.wire.performatives import Accepted, Attach, Rejected, Released
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import queue_for_key
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.format.priority import DEFAULT_PRIORITY, queue_of
from holdfast.commitlog.format.session_ids import publisher_hash
from holdfast.consumequeue.errors import StoreError, UnknownTopic
from holdfast.consumequeue.publishing import BegunPublish
from holdfast.consumequeue.topics import Topic, check_queue
from holdfast.groups.serving.letters import RESERVED_PREFIX
from holdfast.http_api.access.authorization import Denied, missing_grant
from holdfast.http_api.limits.rate_limiter import limited_name

#: Several messages are published together only if they have at most this many bytes: then they fit
#: in a segment of any size.
PUBLISH_BYTES = 256 * 1024
#: A link gets no credit for this time after messages were released: the sender would send them
#: again immediately.
RETRY_S = 1.0

_ACCEPTED = Accepted()
#: The value of rcv-settle-mode with which the receiver settles after the sender.
_SECOND = 1


class Destination(NamedTuple):
    """Where messages go: the topic, one of its queues (None: chosen for each message), and the tag
    that they get (None: their subject)."""

    topic: Topic
    queue: int | None = None
    tag: str | None = None


def destination_of(node: TemporaryNode) -> Destination:
    """Return where messages to a temporary node go, which has been made."""
    assert node.topic is not None
    return Destination(node.topic)


class PublishTarget:
    """Implements Target. With the destination None, each message names its own in `properties.to`.

    Call `start` once the link is attached. The owner has checked that the client may publish to the
    topic of the destination.
    """

    def __init__(
        self,
        peer: Peer,
        session: Session,
        link: IncomingLink,
        destination: Destination | None,
        resumable: Resumable | None = None,
        copies: Sequence[bytes] = (),
    ) -> None:
        """`resumable` has the deliveries of an earlier link that the client may resume on this
        one. If the state of one is MAYBE_STORED, its message is stored unless its digest is in
        `copies`, once for each delivery."""
        self._peer = peer
        self._session = session
        self._link = link
        self._destination = destination
        self._parts = peer.parts
        self._credit = peer.parts.config.publish_credit
        self._publisher = publisher_hash(peer.container_id)
        self._client = limited_name(peer.client, peer.principal)
        attach = link.remote
        self._settles_second = attach is not None and attach.rcv_settle_mode == _SECOND
        self._loop = asyncio.get_running_loop()
        self.unconfirmed = 0
        """The messages that have arrived and have no outcome yet. With rcv-settle-mode second, also
        those that the sender has not settled."""
        self._awaited: dict[int, tuple[bytes, Any]] = {}
        """Delivery-id -> (tag, outcome) of the deliveries that the sender has not settled."""
        self._publishes: dict[asyncio.Future[None], Sequence[Delivery]] = {}
        self._resumable = Resumable() if resumable is None else resumable
        """The deliveries that the client may resume. After `stop`, those of this link, too."""
        self._counted = 0
        """How many of them are counted against the limits of suspended links, with the copies."""
        self._copies = Counter(copies)
        self._count_resumable(len(self._resumable) + len(copies))
        self._relayed: list[Delivery] = []
        """The deliveries that wait, in order, until the topic of the first one is created."""
        self._given_address = address_of(attach)
        self._turn = 0
        """The queue, within a priority level, of the last messages without a key."""
        self._non_durable = None if peer.parts.config.non_durable == "topic" else "written"
        self._pause: asyncio.TimerHandle | None = None
        self._is_stopped = False

    def start(self) -> None:
        """Grant the first credit."""
        if self._destination is not None:
            self._parts.store.topics.deleted_listeners.append(self._topic_deleted)
            if self._parts.store.table.by_id(self._destination.topic.topic_id) is None:
                self._loop.call_soon(self._detach_deleted)  # deleted while the attach waited
        self._renew_credit()

    def stop(self, *, is_closed: bool) -> None:
        """End the node. Publishes that have begun go on; `finish` waits for them."""
        if self._is_stopped:
            return
        self._is_stopped = True
        if self._destination is not None:
            self._parts.store.topics.deleted_listeners.remove(self._topic_deleted)
        if self._pause is not None:
            self._pause.cancel()
            self._pause = None
        self._count_resumable(-self._counted)
        if is_closed:
            self._resumable = Resumable()
        else:
            self._suspend()

    def _count_resumable(self, change: int) -> None:
        self._counted += change
        self._parts.suspended.count(self._peer.client, change)

    def _suspend(self) -> None:
        """Keep the deliveries that are not settled: the client may attach the link again."""
        resumable, peer = self._resumable, self._peer
        resumable.forget_all(MAYBE_STORED)  # the next link searches for copies again
        for deliveries in self._publishes.values():
            for each in deliveries:
                if not each.is_settled:
                    resumable.keep(each.tag)
        for tag, outcome in self._awaited.values():
            resumable.keep(tag, outcome)
        key = LinkKey(peer.principal.name, peer.container_id, self._link.name)
        self._parts.suspended.keep(
            key, peer.client, self._given_address, resumable, self._publishes, self._parts.config,
            self._loop.time(),
        )  # fmt: skip

    async def finish(self) -> None:
        """Wait until all publishes that have begun have ended, with their outcomes written to the
        output of the engine unless the node was stopped before."""
        await publishes_ended(self._publishes)

    # ---- Events of the link

    def deliveries_arrived(self, deliveries: Sequence[Delivery]) -> None:
        """Take deliveries of the link, in order."""
        if self._is_stopped:
            return
        self.unconfirmed += len(deliveries)
        unusual = [each.is_resumed or each.format or each.state is not None for each in deliveries]
        if any(unusual):
            deliveries = self._select_valid(deliveries)
        for some in _portions(deliveries):
            if self._destination is not None:
                self._store(some, self._destination)
            else:
                self._store_each(some)
        self._renew_credit()

    def sender_settled(self, deliveries: Sequence[tuple[int, Delivery]], state: Any) -> None:
        """The sender has settled deliveries: they need no disposition any more."""
        for delivery_id, delivery in deliveries:
            delivery.is_settled = True
            if self._awaited.pop(delivery_id, None) is not None:
                self.unconfirmed -= 1
        self._renew_credit()

    def _select_valid(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Give the resumed deliveries, and those of a kind that is not supported, their outcomes.
        Return the other deliveries."""
        deliveries = self._resume_deliveries(deliveries)
        refused = [each for each in deliveries if each.format or each.state is not None]
        if refused:
            self._refuse(refused, _unsupported(refused[0]))
        return [each for each in deliveries if not each.format and each.state is None]

    def _resume_deliveries(self, deliveries: Sequence[Delivery]) -> list[Delivery]:
        """Give the resumed deliveries the outcomes that they had. Return the other deliveries."""
        for each in deliveries:
            if not each.is_resumed:
                continue
            is_known, outcome = self._resumable.take(each.tag)
            self._count_resumable(-is_known)
            if is_known and not each.is_settled:
                if outcome is not MAYBE_STORED:
                    self._end([each], outcome)
                elif self._take_copy(each.message):
                    self._end([each], _ACCEPTED)
                else:
                    each.is_resumed = False  # it is stored like a new one
                continue
            # The sender has settled it; or it is not known here, and must be ignored (part 2.7.5).
            self.unconfirmed -= 1
            if not each.is_settled:
                self._session.incoming_unsettled.remove(each.id)
        if not self._resumable:
            self._count_resumable(-self._copies.total())
            self._copies.clear()
        return [each for each in deliveries if not each.is_resumed]

    def _take_copy(self, message: bytes) -> bool:
        """Return whether a message is stored that no other delivery has been taken for."""
        digest = digest_of(message)
        if digest is None or not self._copies[digest]:
            return False
        self._copies[digest] -= 1
        self._count_resumable(-1)
        return True

    # ---- Storing

    def _store_each(self, deliveries: Sequence[Delivery]) -> None:
        """Store deliveries whose messages name their destinations. If a topic must be created
        first, its messages and all later messages of the link wait for that."""
        if self._relayed:
            self._wait_for_topic(deliveries)
            return
        stored = 0
        # Only neighbours are stored together, because a queue keeps the order of the link.
        for address, of_address in groupby(deliveries, self._address):
            some = list(of_address)
            try:
                destination = self._find(address)
            except UnknownTopic as error:
                if self._parts.topics_config.auto_create_topics:
                    self._wait_for_topic(deliveries[stored:])
                    if self._relayed:
                        self._begin_topic(error.topic)
                    return
                self._refuse(some, error)
            except (AmqpError, StoreError, Denied) as error:
                self._refuse(some, error)
            else:
                self._store(some, destination)
            stored += len(some)

    def _wait_for_topic(self, deliveries: Sequence[Delivery]) -> None:
        """Keep deliveries until a topic is created. Release those that would need more memory than
        `max_incoming_bytes`, except for the first one. They count as publishes in flight, because
        this limit is for all links together."""
        size = sum([len(each.message) for each in self._relayed])
        most = self._parts.config.max_incoming_bytes
        for index, each in enumerate(deliveries):
            size += len(each.message)
            if size > most and self._relayed:
                self._end(deliveries[index:], Released())
                self._withhold_credit(RETRY_S)
                return
            try:
                self._parts.store.admission.enter(len(each.message))
            except LogError as error:
                self._refuse(deliveries[index:], error)
                return
            self._relayed.append(each)

    def _begin_topic(self, name: str) -> None:
        """Begin to create the topic of the first message that waits."""
        creation = self._loop.create_task(_create_topic(self._peer, name), name="amqp-relay")
        self._publishes[creation] = self._relayed
        creation.add_done_callback(self._topic_created)

    def _topic_created(self, creation: asyncio.Future[None]) -> None:
        """Store what has waited for a topic, or refuse the messages of this topic."""
        waited, self._relayed = self._relayed, []
        del self._publishes[creation]
        size = sum([len(each.message) for each in waited])
        self._parts.store.admission.in_flight_bytes -= size
        if creation.cancelled():
            return  # the broker ends
        error = creation.exception()
        if error is not None:
            assert isinstance(error, Exception)
            address = self._address(waited[0])
            refused = list(takewhile(lambda each: self._address(each) == address, waited))
            self._refuse(refused, error)
            waited = waited[len(refused) :]
        for some in _portions(waited):
            self._store_each(some)
        self._renew_credit()
        self._peer.flush()

    @staticmethod
    def _address(delivery: Delivery) -> str | AmqpError:
        """Return the address that a message names, or why it names none."""
        try:
            address = Sections(delivery.message).properties().to
        except AmqpError as error:
            return error
        if not isinstance(address, str):
            return AmqpError(INVALID_FIELD, "the properties of the message have no address in `to`")
        return address

    def _find(self, address: str | AmqpError) -> Destination:
        """Return the destination that an address names.

        Raises AmqpError, UnknownTopic, UnknownQueue, or Denied (no permission to publish).
        """
        if isinstance(address, AmqpError):
            raise address
        found = parse_address(address)
        if found.kind is Kind.TEMP:
            return destination_of(self._parts.temporary.find(found.name))
        if found.kind not in (Kind.QUEUE, Kind.TOPIC, Kind.EXCHANGE):
            raise LinkFailed(NOT_FOUND, f"{address!r} is not a place to publish to")
        if not self._peer.principal.may(("publish",), found.name):
            raise missing_grant(self._peer.principal, ("publish",), topic=found.name)
        topic = self._parts.store.table.get(found.name)
        if found.queue is not None:
            check_queue(topic, found.queue)
        return Destination(topic, found.queue, found.tag)

    def _store(self, deliveries: Sequence[Delivery], destination: Destination) -> None:
        """Begin to store deliveries; refuse those that are not valid."""
        if not deliveries:
            return
        store = self._parts.store
        topic = store.table.by_id(destination.topic.topic_id)
        if topic is None:
            self._fail(deliveries, UnknownTopic(destination.topic.name))
            return
        now_us = self._parts.wall_us()
        rules = Rules(
            store.publishing.limits(topic), self._publisher, RESERVED_PREFIX, destination.tag
        )
        columns = to_columns([each.message for each in deliveries], now_us // 1000, rules)
        for each in deliveries:
            each.message = b""  # the columns have it
        if columns.refused:
            for index, error in columns.refused.items():
                self._refuse([deliveries[index]], error)
            deliveries = [
                each for index, each in enumerate(deliveries) if index not in columns.refused
            ]
            if not deliveries:
                return
        by_queue = self._by_queue(columns, topic, destination.queue)
        rows = [_rows(columns, indexes, queue, now_us) for queue, indexes in by_queue.items()]
        # One durability for all, because two publishes could change the order within a queue.
        self._publish(topic, rows, "fsync" if columns.durable else self._non_durable, deliveries)

    def _by_queue(
        self, columns: Columns, topic: Topic, queue: int | None
    ) -> dict[int, Sequence[int]]:
        """Return queue -> the indexes of its messages. A queue is chosen by key and priority.
        Messages without a key go to one queue, the next in a round robin."""
        count = len(columns.bodies)
        queues, levels = topic.queues_per_level, topic.priority_levels
        index_of_level = 0
        if queue is None:
            index_of_level = self._turn = (self._turn + 1) % queues
        if not columns.refused and (
            queue is not None or (levels == 1 and (queues == 1 or not columns.keys))
        ):
            return {index_of_level if queue is None else queue: range(count)}
        found: dict[int, list[int]] = {}
        for index in range(count):
            if index in columns.refused:
                continue
            chosen = queue
            if chosen is None:
                key = columns.keys.get(index)
                among = index_of_level if key is None else queue_for_key(key, queues)
                priority = columns.priorities.get(index, DEFAULT_PRIORITY)
                chosen = queue_of(among, priority, levels)
            found.setdefault(chosen, []).append(index)
        return {**found}

    def _publish(
        self, topic: Topic, rows: list[Rows], durability: str | None, deliveries: Sequence[Delivery]
    ) -> None:
        parts = self._parts
        size = sum([each.total_size for each in rows])
        room, counted = parts.store.topic_room, 0
        try:
            counted = room.enter(topic, size)
            begun = parts.store.publishing.begin(
                topic, rows, durability=durability, client=self._client
            )
        except (StoreError, LogError) as error:
            room.leave(topic, counted)
            self._fail(deliveries, error)
            return
        parts.publish_limiter.published(self._client, self._peer.principal, len(deliveries), size)
        self._publishes[begun.future] = deliveries
        begun.future.add_done_callback(partial(self._ended, begun, topic, counted, deliveries))

    def _ended(
        self,
        begun: BegunPublish,
        topic: Topic,
        counted: int,
        deliveries: Sequence[Delivery],
        future: asyncio.Future[None],
    ) -> None:
        """Give the outcome of a publish that is stored or has failed."""
        self._publishes.pop(future, None)
        self._parts.store.topic_room.leave(topic, counted)
        error = future.exception()
        if error is None:
            counters = self._parts.topic_counters(topic.name)
            counters.messages_in += len(deliveries)
            counters.bytes_in += begun.request.size
            self._end(deliveries, _ACCEPTED)
        else:
            assert isinstance(error, Exception)
            self._fail(deliveries, error)
        self._renew_credit()
        self._peer.flush()

    # ---- Outcomes

    def _fail(self, deliveries: Sequence[Delivery], error: Exception) -> None:
        """Give the outcome of messages that were not stored. If the topic of the link is gone,
        detach the link."""
        if isinstance(error, UnknownTopic) and self._destination is not None:
            self._end(deliveries, Released())
            self._detach_deleted()
            return
        self._refuse(deliveries, error)

    def _refuse(self, deliveries: Sequence[Delivery], error: Exception) -> None:
        """Give the outcome that `error` has.

        If messages are released, the link gets no credit for RETRY_S. If a message is rejected and
        its sender wants no outcome, the link is detached, because only this can inform the sender.
        """
        outcome = publish_outcome(error)
        self._end(deliveries, outcome)
        if type(outcome) is Released:
            self._withhold_credit(RETRY_S)
        elif type(outcome) is Rejected and any(each.is_settled for each in deliveries):
            self._detach(amqp_error(error, LinkFailed))

    def _detach(self, error: LinkFailed) -> None:
        if not self._is_stopped:
            self._peer.detach(self._link, error)
            self._peer.flush()

    def _topic_deleted(self, topic_id: int) -> None:
        if self._destination is not None and self._destination.topic.topic_id == topic_id:
            # Later, because `stop` changes the list of listeners.
            self._loop.call_soon(self._detach_deleted)

    def _detach_deleted(self) -> None:
        assert self._destination is not None
        gone = amqp_error(UnknownTopic(self._destination.topic.name), LinkFailed)
        gone.condition = RESOURCE_DELETED
        self._detach(gone)

    def _end(self, deliveries: Sequence[Delivery], outcome: Any) -> None:
        """Send the outcome of deliveries whose sender wants one: a disposition for each run of ids.
        The runs have no gaps, because the ids between them are of other links."""
        count = len(deliveries)
        if not count:
            return
        # A link of a session or connection that has ended stays attached. The client may have begun
        # another session with the same channel and ids, which must not get the outcome.
        if self._is_stopped or not self._link.is_attached:
            for each in deliveries:
                if not each.is_settled:
                    self._resumable.keep(each.tag, outcome)
            self.unconfirmed -= count
            return
        wanted = [each.id for each in deliveries if not each.is_settled]
        for first, last in _runs(wanted):
            self._session.dispose(first, last, outcome, settled=not self._settles_second)
        if self._settles_second:
            self._awaited.update(
                (each.id, (each.tag, outcome)) for each in deliveries if not each.is_settled
            )
            count -= len(wanted)
        self.unconfirmed -= count

    # ---- Credit

    def _renew_credit(self) -> None:
        """Grant credit again if half of it is used up, unless too many messages are unconfirmed.

        The credit and the unconfirmed messages together never exceed 1.5 times `publish_credit`.
        """
        credit, link = self._credit, self._link
        if self._pause is not None or self._is_stopped or not link.is_attached:
            return
        if link.credit * 2 > credit or self.unconfirmed >= credit:
            return
        granted = min(credit, credit + credit // 2 - self.unconfirmed)
        if granted <= link.credit:
            return
        wait_s = self._parts.publish_limiter.wait_s(self._client, self._peer.principal)
        if wait_s:
            self._withhold_credit(wait_s)
        else:
            self._parts.credit_granted()
            link.grant(granted)

    def _withhold_credit(self, seconds: float) -> None:
        if self._pause is None and not self._is_stopped:
            self._pause = self._loop.call_later(seconds, self._resume)

    def _resume(self) -> None:
        self._pause = None
        self._renew_credit()
        self._peer.flush()


async def _create_topic(peer: Peer, name: str) -> None:
    await ensure_topic(peer, name)


def address_of(attach: Attach | None) -> str | None:
    """Return the address that the client gave as the target; None for the null target."""
    address = None if attach is None else getattr(attach.target, "address", None)
    return None if address is None else str(address)


def _portions(deliveries: Sequence[Delivery]) -> Iterator[Sequence[Delivery]]:
    """Yield the deliveries in portions of at most PUBLISH_BYTES; a portion may be one larger
    message."""
    if sum([len(each.message) for each in deliveries]) <= PUBLISH_BYTES:
        if deliveries:
            yield deliveries
        return
    start = total = 0
    for index, each in enumerate(deliveries):
        size = len(each.message)
        if total + size > PUBLISH_BYTES and total:
            yield deliveries[start:index]
            start, total = index, 0
        total += size
    if deliveries:
        yield deliveries[start:] if start else deliveries


def _unsupported(delivery: Delivery) -> AmqpError:
    if delivery.format:
        return AmqpError(NOT_IMPLEMENTED, f"message format {delivery.format} is not supported")
    return AmqpError(NOT_IMPLEMENTED, "transactions are not supported")


def _rows(columns: Columns, indexes: Sequence[int], queue: int, now_us: int) -> Rows:
    bodies, envelopes = columns.bodies, columns.envelopes
    if len(indexes) < len(bodies):
        bodies = [bodies[index] for index in indexes]
        envelopes = [envelopes[index] for index in indexes]
    if not (columns.keys or columns.tags or columns.properties or columns.expires_us):
        return Rows(queue, bodies, now_us, envelopes=envelopes)
    return Rows(
        queue,
        bodies,
        now_us,
        column(columns.keys, indexes, None),
        column(columns.tags, indexes, None),
        column(columns.properties, indexes, None),
        column(columns.expires_us, indexes, 0),
        envelopes=envelopes,
    )


def _runs(ids: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last id of each run of consecutive ids."""
    if ids and (ids[-1] - ids[0]) & 0xFFFFFFFF == len(ids) - 1:
        yield ids[0], ids[-1]  # ids are given once, in order: there is no gap
        return
    start = 0
    for index, each in enumerate(ids):
        if index + 1 == len(ids) or ids[index + 1] != (each + 1) & 0xFFFFFFFF:
            yield ids[start], each
            start = index + 1
