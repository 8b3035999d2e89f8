"""Receive messages from a group under leases, and settle them by their receipts.

If a client disconnects while its request is held, the request is cancelled. If a reply does not
reach its client, its leases are given back immediately. Neither counts as a failure of the
messages.

A receipt identifies its message. For each message, one grant of the token must cover both its topic
and the group. All changes by settling are durable before the reply is sent.
"""

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import groupby, repeat
from time import monotonic
from typing import Any, cast

from msgspec import UNSET, UnsetType

from holdfast.consumequeue.reading.fetched import BatchSlice
from holdfast.groups.config import LONGEST_LEASE_MS, GroupsConfig
from holdfast.groups.service_types import (
    CheckTopic,
    Delivery,
    GroupState,
    Holder,
    Received,
    ReceiveRequest,
    Status,
    UnitLimit,
    Verb,
    allow_all,
    batch_parts,
)
from holdfast.groups.serving.group_server import (
    SETTLED_A_TURN,
    HeldReceive,
    UnfinishedReceive,
)
from holdfast.groups.settings import MAX_BACKOFF_MS
from holdfast.holdservice.filters import SHORT_FILTER_CHARACTERS
from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.access.grants import ANONYMOUS
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints.group_access import (
    MayConsume,
    check_has_leases,
    check_named,
    check_subscribed,
    leased_group,
)
from holdfast.http_api.endpoints.held_read import (
    FILTER_BYTES_PER_CHARACTER,
    LARGE_BYTES,
)
from holdfast.http_api.endpoints.rendering import (
    PORTION_BYTES,
    YIELD_EVERY_MESSAGES,
    encode_portions,
    make_leased_messages,
    make_plain_message,
)
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.begun import Begun, BegunTask, finish
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.codecs import (
    JSON,
    MSGPACK,
    NDJSON,
    encode,
    encode_lines,
    wrap_listing,
)
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import (
    check_at_most,
    check_client_label,
    check_count_at_most,
    invalid,
)
from holdfast.http_api.schemas.leases import (
    MAX_SETTLES,
    AckRequest,
    ExtendRequest,
    HolderReply,
    LeasedMessage,
    NackRequest,
    PackedLeasedMessage,
    ReceiveReply,
    RejectRequest,
    ReleaseRequest,
    SettledReply,
    SettleRequest,
    StatusReply,
)
from holdfast.http_api.schemas.leases import ReceiveRequest as ReceiveBody
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Bytes, Reply, nothing

#: The member's name if a request gives none. Only competing groups accept requests without a name.
ANONYMOUS_MEMBER = "anonymous"
#: The media types of a reply, in order of preference. Binary batches are impossible, because each
#: message has its own lease.
RECEIVE_TYPES = (JSON, NDJSON, MSGPACK)
#: Decoding one more batch takes about as long as this many more messages of the same batch.
BATCH_MESSAGES = 4

#: The outcome of a receipt needs about this much memory.
OUTCOME_BYTES = 16
#: The fields that each verb has in `settle`, besides its receipts.
_TERMS = {
    "ack": {"cumulative", "used_ms"},
    "nack": {"delay_ms", "used_ms"},
    "release": set[str](),
    "reject": {"used_ms"},
}

Outcomes = list[SettledReply] | UnsetType
"""What a receive has settled; UNSET if it does not settle."""

_STATUS: Mapping[Status, StatusReply] = {each: StatusReply(each.value) for each in Status}


async def receive(call: Call[NoParams]) -> Reply:
    """Receive messages from a group, each under its own lease.

    If there is no message to deliver, the request is held for at most `wait_ms`, and answered as
    soon as a message is available. Settle each message by its receipt before its lease expires;
    otherwise it is delivered again. Only the `active` member receives messages.

    The receipts in `settle` are settled first, durably, so that the same reply uses the room that
    this makes. If the receive fails after that, the receipts stay settled: send them again with
    the next request to learn their outcomes.
    """
    return await finish(_begin_receiving(call, await call.body(ReceiveBody)))


def begin_receive(call: Call[NoParams]) -> Begun | Reply | None:
    """Begin a receive, as `routing.begun.Begin` describes."""
    if not call.has_small_body:
        return None
    return _begin_receiving(call, call.small_body(ReceiveBody))


def _begin_receiving(call: Call[NoParams], asked: ReceiveBody) -> Begun | Reply:
    """Check a receive, and begin it: settle its receipts, then lease messages."""
    context, group = call.context, call.group()
    state = leased_group(context, group)
    request = _make_request(call, asked, state)
    if request.filter_text is not None and len(request.filter_text) > SHORT_FILTER_CHARACTERS:
        call.count_memory(FILTER_BYTES_PER_CHARACTER * len(request.filter_text))
    if asked.topics is not None:
        check_named(call, ("consume",), asked.topics)
        check_named(call, ("consume",), {each.topic for each in request.unit_limits})
    else:
        check_subscribed(call, ("consume",), state.topics)
    if asked.settle is None:
        return _begin_leasing(call, request, UNSET)
    return _begin_settling_first(call, request, asked.settle)


def _begin_leasing(
    call: Call[NoParams], request: ReceiveRequest, outcomes: Outcomes
) -> Begun | Reply:
    """Lease messages, or begin to wait for them. `outcomes` are those of the settled receipts."""
    begun = call.context.groups.begin_receive(call.path["group"], request)
    if begun is None:
        return BegunTask(_lease(call, request, outcomes))
    if isinstance(begun, Received):
        return _begin_delivering(call, request, outcomes, begun)
    return WaitingReceive(call, request, outcomes, begun)


async def _lease(call: Call[NoParams], request: ReceiveRequest, outcomes: Outcomes) -> Reply:
    received = await call.context.groups.receive(call.path["group"], request)
    return await finish(_begin_delivering(call, request, outcomes, received))


class WaitingReceive:
    """A receive that waits for messages, or for what it must read or commit before its reply."""

    __slots__ = ("_call", "_outcomes", "_request", "_waiting", "future")

    def __init__(
        self,
        call: Call[NoParams],
        request: ReceiveRequest,
        outcomes: Outcomes,
        waiting: HeldReceive | UnfinishedReceive,
    ) -> None:
        self._call = call
        self._request = request
        self._outcomes = outcomes
        self._waiting = waiting
        self.future: asyncio.Future[Any] = waiting.future

    def make_reply(self) -> Begun | Reply:
        """Return the reply, or what the receive waits for next."""
        call, request, outcomes = self._call, self._request, self._outcomes
        received = self._waiting.result()
        if isinstance(received, Received):
            return _begin_delivering(call, request, outcomes, received)
        return WaitingReceive(call, request, outcomes, received)

    def give_up(self) -> None:
        """Release the messages."""
        self._waiting.give_up()


def _begin_delivering(
    call: Call[NoParams], request: ReceiveRequest, outcomes: Outcomes, received: Received
) -> Begun | Reply:
    """Return the reply with the received messages. A task makes a large reply."""
    context, group = call.context, call.path["group"]
    if request.may_consume is not None and request.topic_names is None and not received.deliveries:
        # By now the group may have new topics that the token does not grant.
        check_subscribed(call, ("consume",), context.groups.group_state(group).topics)
    # Keep only the receipts: a reply that waits to be sent must not keep large batches in memory.
    receipts = received.receipts()
    give_back = (
        partial(context.groups.release_undelivered, group, receipts) if receipts else nothing
    )
    try:
        reply = deliver_at_once(context, received, call.media, outcomes)
    except BaseException:
        give_back()
        raise
    if reply is None:
        is_large = request.max_messages > YIELD_EVERY_MESSAGES or request.max_bytes > LARGE_BYTES
        delivering = deliver_in_portions(
            context, received, call.media, outcomes, give_back, has_slot=is_large
        )
        return BegunTask(delivering, give_back)
    reply.on_undelivered = give_back
    return reply


def _make_request(call: Call[NoParams], asked: ReceiveBody, state: GroupState) -> ReceiveRequest:
    """Check the request's body and convert it for the group service. Raises Problem."""
    config = call.context.config
    member = _member_of(asked, state)
    if asked.attempt_id is not None:
        check_client_label("attempt_id", asked.attempt_id)
    if asked.no_local is not None:
        check_client_label("no_local", asked.no_local)
    if asked.browse and asked.settled:
        raise invalid("browse", True, "only one of the two", "browse and settled are both true")
    if asked.include_leased and not asked.browse:
        detail = "include_leased is true, and browse is not"
        raise invalid("include_leased", True, "include_leased with browse", detail)
    _check_bounds(asked, config, call.context.groups_config)
    if asked.settle is not None:
        _check_settle(asked.settle, call.media, call.context.groups_config)
    may_wait = asked.wait_ms and config.max_wait_ms
    wait_s = asked.wait_ms / 1000 - (monotonic() - call.received_at) if may_wait else 0.0
    return ReceiveRequest(
        member,
        _or_default(asked.max_messages, config.default_pull_messages),
        _or_default(asked.max_bytes, config.default_pull_bytes),
        lease_ms=asked.lease_ms,
        settled=asked.settled,
        attempt_id=asked.attempt_id,
        client=call.client,
        # A request for 0 messages only asks how many are available, so it is never held.
        wait_s=0.0 if asked.max_messages == 0 else max(wait_s, 0.0),
        browse=asked.browse,
        include_leased=asked.include_leased,
        topic_names=asked.topics,
        filter_text=asked.filter,
        no_local=asked.no_local,
        unit_limits=_convert_limits(asked, state),
        may_consume=_may_consume(call, asked),
    )


def _may_consume(call: Call[NoParams], asked: ReceiveBody) -> MayConsume | None:
    """Return a check for the topics of the messages to send; None if the earlier checks are enough.

    With `settled`, messages are settled when they are sent, so they cannot be given back later. The
    check then also refuses a token that was revoked while the request was held.
    """
    principal, group, access = call.principal, call.path["group"], call.context.http.access
    if principal is ANONYMOUS:
        return None
    if not asked.settled and (
        asked.topics is not None or principal.may_with_any_topic("consume", group)
    ):
        return None
    return MayConsume(principal.name, group, principal, access if asked.settled else None)


def _member_of(asked: ReceiveBody, state: GroupState) -> str:
    if asked.member is not None:
        return check_client_label("member", asked.member)
    if state.record.config.mode != "competing":
        raise Problem(
            "missing-parameter",
            f"the group is {state.record.config.mode}, so a request must give its member",
            parameter="member",
        )
    return ANONYMOUS_MEMBER


def _check_bounds(asked: ReceiveBody, config: HttpConfig, limits: GroupsConfig) -> None:
    most = limits.max_receive_messages
    check_at_most("max_messages", asked.max_messages, most, "max_receive_messages")
    check_count_at_most(
        "topics", "topics", len(asked.topics or ()), limits.max_topics, "max_topics"
    )
    count = len(asked.limits or ())
    check_count_at_most("limits", "limits", count, limits.max_receive_limits, "max_receive_limits")
    check_at_most("max_bytes", asked.max_bytes, config.max_pull_bytes, "max_pull_bytes")
    if config.max_wait_ms:  # if it is 0, no request is held, and wait_ms is ignored
        check_at_most("wait_ms", asked.wait_ms, config.max_wait_ms, "max_wait_ms")
    check_at_most("lease_ms", asked.lease_ms, limits.max_lease_ms, "max_lease_ms")


def _convert_limits(asked: ReceiveBody, state: GroupState) -> list[UnitLimit]:
    limits = []
    for index, each in enumerate(asked.limits or ()):
        parameter = f"limits[{index}]"
        if (each.queue is None) == (each.key is None):
            raise invalid(
                parameter,
                None,
                "one of queue and key",
                f"{parameter} must have either a queue or a key",
            )
        if each.key is not None and state.record.config.mode != "keyed":
            detail = f"{parameter} names a key, and the group is {state.record.config.mode}"
            raise invalid(f"{parameter}.key", each.key, "a queue", detail)
        limits.append(UnitLimit(each.topic, each.max_messages, each.queue, each.key))
    if limits and asked.browse:
        raise invalid("limits", True, "limits or browse", "limits and browse are both given")
    return limits


def _or_default(value: int | None, default: int) -> int:
    return default if value is None else value


# -- replies -----------------------------------------------------------------------------------


def deliver_at_once(
    context: ApiContext, received: Received, media: str, outcomes: Outcomes = UNSET
) -> Reply | None:
    """Return the reply to a receive request. Return None if it is too large to be made in one step:
    `deliver_in_portions` makes it.

    The messages have the order in which the group selected them. This order alternates between
    topics and queues, so the messages are decoded batch by batch, and then put in this order. The
    values of the envelope are also in headers, because NDJSON has no envelope.
    """
    deliveries = received.deliveries
    if not _fits_in_a_portion(deliveries):
        return None
    messages = leased_messages(deliveries, media)
    if media == NDJSON:
        encoded = encode_lines(messages)
    else:
        encoded = encode(media, _envelope(received, outcomes, messages))
    return _make_reply(context, received, media, [encoded])


async def deliver_in_portions(
    context: ApiContext,
    received: Received,
    media: str,
    outcomes: Outcomes,
    give_back: Callable[[], object],
    *,
    has_slot: bool,
) -> Reply:
    """Return a large reply to a receive request. `give_back` is called if the reply is not
    delivered, but not if this call fails.

    If `has_slot` is true, wait for a slot of large replies before the messages are encoded.
    Otherwise wait for it only if the encoded messages prove to be too large.
    """
    deliveries = received.deliveries
    with LargeReplySlot(context.large_replies) as slot:
        found = None
        if has_slot:
            await slot.acquire()
        elif _encoding_cost(deliveries) <= YIELD_EVERY_MESSAGES:
            found = await _encode_portions(deliveries, media, has_slot=False)
        if found is None:
            await slot.acquire()
            found = await _encode_portions(deliveries, media, has_slot=True)
            assert found is not None
        parts: Sequence[Bytes] = found
        if media != NDJSON:
            envelope = _envelope(received, outcomes)
            parts = wrap_listing(media, envelope, "messages", found, len(deliveries))
        reply = _make_reply(context, received, media, parts)
    reply.on_undelivered = give_back
    return reply


def _envelope(
    received: Received, outcomes: Outcomes, messages: Sequence[Any] = ()
) -> ReceiveReply[Any]:
    envelope: ReceiveReply[Any] = ReceiveReply([*messages], received.available, received.active)
    if received.notice:
        envelope.notice = True
    envelope.outcomes = outcomes
    return envelope


def _make_reply(
    context: ApiContext, received: Received, media: str, parts: Sequence[Bytes]
) -> Reply:
    _count_messages(context, received.deliveries, sum(map(len, parts)))
    headers = [
        ("Holdfast-Available", str(received.available)),
        ("Holdfast-Active", "true" if received.active else "false"),
    ]
    return Reply(200, media, parts, headers, held_s=received.held_s)


async def _encode_portions(
    deliveries: Sequence[Delivery], media: str, *, has_slot: bool
) -> list[Bytes] | None:
    """Return the encoded messages in parts. Without a slot, return None if they are too large."""
    await asyncio.sleep(0)  # selecting the messages has already taken milliseconds
    made = (leased_messages(deliveries[start:end], media) for start, end in _split(deliveries))
    return await encode_portions(media, made, has_slot=has_slot)


def _encoding_cost(deliveries: Sequence[Delivery]) -> int:
    """Return the time for encoding these messages. The unit is one message of a single batch."""
    batches = len(list(groupby(deliveries, key=lambda each: id(each.batch))))
    return len(deliveries) + BATCH_MESSAGES * batches


def _fits_in_a_portion(deliveries: Sequence[Delivery]) -> bool:
    if len(deliveries) == 1:
        return _stored_bytes(deliveries[0]) <= PORTION_BYTES
    _, end = next(_split(deliveries), (0, 0))
    return end == len(deliveries)


def _stored_bytes(delivery: Delivery) -> int:
    """Return the stored bytes of a message: its body, and a share of the batch's other bytes."""
    batch, row = delivery.batch, delivery.row
    header = batch.header
    if header.message_count == 1:
        return header.total_size
    offsets = batch.body_offsets
    overhead = (header.total_size - header.body_bytes) // max(len(batch), 1)
    return int(offsets[row + 1]) - int(offsets[row]) + overhead


def _split(deliveries: Sequence[Delivery]) -> Iterator[tuple[int, int]]:
    """Yield the start and end of each portion of messages that may be encoded in one step.

    The number of messages, the number of batches and the stored bytes of a portion are limited.
    """
    start = size = cost = 0
    batch = None
    for index, each in enumerate(deliveries):
        row_bytes = _stored_bytes(each)
        if index > start and (cost >= YIELD_EVERY_MESSAGES or size + row_bytes > PORTION_BYTES):
            yield start, index
            start, size, cost, batch = index, 0, 0, None
        cost += 1 if each.batch is batch or batch is None else 1 + BATCH_MESSAGES
        batch = each.batch
        size += row_bytes
    if deliveries:
        yield start, len(deliveries)


def leased_messages(
    deliveries: Sequence[Delivery], media: str
) -> list[LeasedMessage | PackedLeasedMessage]:
    """Return deliveries as messages for a media type, in the same order. Pure."""
    if len(deliveries) == 1:
        message = _plain_message(deliveries[0], media)
        if message is not None:
            return [message]
    made: list[Any] = [None] * len(deliveries)
    for part in batch_parts(deliveries):
        first = part.deliveries[0]
        messages = make_leased_messages(
            media,
            first.topic.name,
            BatchSlice(first.batch, part.rows),
            # At this point the receipts are texts, as clients get them.
            cast("list[str | None]", [each.receipt for each in part.deliveries]),
            [each.attempt for each in part.deliveries],
            [each.redelivered for each in part.deliveries],
            [_describe_holder(each.holder) for each in part.deliveries]
            if part.deliveries[0].receipt is None
            else repeat(UNSET),
        )
        for place, message in zip(part.places, messages, strict=True):
            made[place] = message
    return made


def _plain_message(delivery: Delivery, media: str) -> LeasedMessage | PackedLeasedMessage | None:
    holder = UNSET if delivery.receipt is not None else _describe_holder(delivery.holder)
    lease = delivery.receipt, delivery.attempt, delivery.redelivered, holder
    return make_plain_message(media, delivery.topic.name, delivery.batch, delivery.row, *lease)


def _describe_holder(holder: Holder | None) -> HolderReply | UnsetType:
    return UNSET if holder is None else HolderReply(holder.member, holder.until_ms)


def _count_messages(context: ApiContext, deliveries: Sequence[Delivery], size: int) -> None:
    """Count the messages and bytes of a reply in the metrics of the topics.

    The bytes are divided among the topics by their numbers of messages.
    """
    counts: dict[str, int] = {}
    for each in deliveries:
        counts[each.topic.name] = counts.get(each.topic.name, 0) + 1
    for name, count in counts.items():
        counters = context.http.metrics.topic(name)
        counters.messages_out += count
        counters.bytes_out += size * count // len(deliveries)


# -- settling ----------------------------------------------------------------------------------


async def ack(call: Call[NoParams]) -> Reply:
    """Acknowledge messages: they are done, and are not delivered again.

    If a receipt is used a second time, the result is `done` again. With `cumulative`, each receipt
    also settles all earlier messages of its queue that its member has leased.
    """
    return await _settle(call, Verb.ACK)


async def nack(call: Call[NoParams]) -> Reply:
    """Give messages back as failed: they are redelivered after a delay, in queue order.

    The delay is `delay_ms`. If it is not given, the delay grows with each failure. A message that
    fails too often becomes a dead letter.
    """
    return await _settle(call, Verb.NACK)


async def release(call: Call[NoParams]) -> Reply:
    """Give unprocessed messages back: they are available again immediately, in queue order.

    This does not count as a failure.
    """
    return await _settle(call, Verb.RELEASE)


async def extend(call: Call[NoParams]) -> Reply:
    """Extend the leases of messages: they expire `lease_ms` from now."""
    return await _settle(call, Verb.EXTEND)


async def reject(call: Call[NoParams]) -> Reply:
    """Reject messages: they become dead letters, or are dropped if the group keeps none."""
    return await _settle(call, Verb.REJECT)


def _check_topic(call: Call[NoParams]) -> CheckTopic:
    """Return a check that raises Denied for topics that the token does not grant.

    Without authentication, every topic is granted.
    """
    principal, group = call.principal, call.path["group"]
    if principal is ANONYMOUS:
        return allow_all

    def check(topic: str) -> None:
        if not principal.may(("consume",), topic, group):
            what = "the topics of all receipts in the request"
            raise missing_grant(principal, ("consume",), group=group, what=what)

    return check


SETTLE_REQUESTS: Mapping[Verb, type[Any]] = {
    Verb.ACK: AckRequest,
    Verb.NACK: NackRequest,
    Verb.RELEASE: ReleaseRequest,
    Verb.EXTEND: ExtendRequest,
    Verb.REJECT: RejectRequest,
}


async def _settle(call: Call[NoParams], verb: Verb) -> Reply:
    return await finish(_begin_settling(call, verb, await call.body(SETTLE_REQUESTS[verb])))


def begin_settling(verb: Verb) -> Callable[[Call[NoParams]], "BegunSettling | Reply | None"]:
    """Return a function that begins a request of this verb, as `routing.begun.Begin` describes."""

    def begin(call: Call[NoParams]) -> BegunSettling | Reply | None:
        if not call.has_small_body:
            return None
        return _begin_settling(call, verb, call.small_body(SETTLE_REQUESTS[verb]))

    return begin


def _begin_settling(call: Call[NoParams], verb: Verb, asked: Any) -> "BegunSettling | Reply":
    """Settle receipts. Return the reply if no change must become durable before it is sent."""
    context, group, receipts = call.context, call.group(), asked.receipts
    terms = {name: getattr(asked, name) for name in asked.__struct_fields__}
    del terms["receipts"]
    limits = context.groups_config
    most = limits.max_settle_receipts
    check_count_at_most("receipts", "receipts", len(receipts), most, "max_settle_receipts")
    check_at_most("lease_ms", terms.get("lease_ms"), limits.max_lease_ms, "max_lease_ms")
    _check_terms(terms)
    check_has_leases(context, group)
    statuses, durable = context.groups.begin_settling(
        group, verb, receipts, check_topic=_check_topic(call), **terms
    )
    if durable is None:
        return call.reply(_describe_statuses(statuses))
    return BegunSettling(call, statuses, durable)


class BegunSettling:
    """A settle whose changes are not durable yet. Cancelling `future` does not undo them."""

    __slots__ = ("_call", "_statuses", "future")

    def __init__(
        self, call: Call[NoParams], statuses: list[Status], durable: asyncio.Future[Any]
    ) -> None:
        """The last two arguments are the result of `GroupService.begin_settling`."""
        self._call = call
        self._statuses = statuses
        self.future = asyncio.shield(durable)

    def make_reply(self) -> Reply:
        """Return the reply. Raises StateUnavailable."""
        settled = self.future.result()
        return self._call.reply(_describe_statuses(self._statuses or settled))

    def give_up(self) -> None:
        """Do nothing: no memory is occupied except that of the body."""


def _check_terms(terms: Mapping[str, Any], parameter: str = "") -> None:
    check_at_most(f"{parameter}delay_ms", terms.get("delay_ms"), MAX_BACKOFF_MS)
    check_at_most(f"{parameter}used_ms", terms.get("used_ms"), LONGEST_LEASE_MS)


def _describe_statuses(statuses: Sequence[Status]) -> SettledReply:
    return SettledReply([_STATUS[each] for each in statuses])


# -- settling in a receive ---------------------------------------------------------------------


def _check_settle(asked: Sequence[SettleRequest], media: str, limits: GroupsConfig) -> None:
    """Check what a receive settles. Raises Problem."""
    if media == NDJSON:
        detail = "NDJSON has no place for the outcomes of settle"
        raise invalid("settle", True, f"{JSON} or {MSGPACK} as the type of the reply", detail)
    check_count_at_most("settle", "entries", len(asked), MAX_SETTLES)
    count = sum([len(each.receipts) for each in asked])
    most = limits.max_settle_receipts
    check_count_at_most("settle", "receipts", count, most, "max_settle_receipts")
    for index, each in enumerate(asked):
        parameter = f"settle[{index}]."
        terms = _terms_of(each)
        for name in terms.keys() - _TERMS[each.verb]:
            allowed = ", ".join(["verb", "receipts", *sorted(_TERMS[each.verb])])
            detail = f"{parameter}{name} is given with {each.verb}"
            raise invalid(parameter + name, terms[name], allowed, detail)
        _check_terms(terms, parameter)


def _terms_of(asked: SettleRequest) -> dict[str, Any]:
    terms = {"delay_ms": asked.delay_ms, "used_ms": asked.used_ms}
    given = {name: value for name, value in terms.items() if value is not None}
    return given | {"cumulative": True} if asked.cumulative else given


def _begin_settling_first(
    call: Call[NoParams], request: ReceiveRequest, asked: Sequence[SettleRequest]
) -> Begun | Reply:
    """Settle what a receive asks for. Lease messages once this is durable.

    All receipts are checked before any of them is settled. Usually all entries share one commit.
    """
    check = _check_topic(call)
    if _settles_at_once(asked) and (len(asked) == 1 or check is allow_all):
        return _settle_at_once(call, request, asked, check)
    return BegunTask(_settle_and_lease(call, request, asked, check))


def _settles_at_once(asked: Sequence[SettleRequest]) -> bool:
    """Return whether all entries may be settled in one event loop iteration."""
    count = sum([len(each.receipts) for each in asked])
    return count <= SETTLED_A_TURN and not any(each.cumulative for each in asked)


def _settle_at_once(
    call: Call[NoParams], request: ReceiveRequest, asked: Sequence[SettleRequest], check: CheckTopic
) -> Begun | Reply:
    group, groups = call.path["group"], call.context.groups
    settled = [
        groups.begin_settling(
            group, Verb(each.verb), each.receipts, check_topic=check, **_terms_of(each)
        )
        for each in asked
    ]
    return SettlingReceive(call, request, settled).make_reply()


class SettlingReceive:
    """A receive that leases messages when the receipts that it settles are durable."""

    __slots__ = ("_call", "_request", "_settled", "future")

    future: asyncio.Future[Any]

    def __init__(
        self,
        call: Call[NoParams],
        request: ReceiveRequest,
        settled: list[tuple[list[Status], asyncio.Future[Any] | None]],
    ) -> None:
        """`settled` are the results of `GroupService.begin_settling`."""
        self._call = call
        self._request = request
        self._settled = settled

    def make_reply(self) -> Begun | Reply:
        """Return this object while a commit is not complete; then lease messages. Raises
        StateUnavailable."""
        outcomes = []
        for statuses, durable in self._settled:
            if durable is not None:
                if not durable.done():
                    self.future = asyncio.shield(durable)
                    return self
                later = durable.result()
                statuses = statuses or later
            outcomes.append(_describe_statuses(statuses))
        return _begin_leasing(self._call, self._request, outcomes)

    def give_up(self) -> None:
        """Do nothing: what is settled stays settled."""


async def _settle_and_lease(
    call: Call[NoParams], request: ReceiveRequest, asked: Sequence[SettleRequest], check: CheckTopic
) -> Reply:
    group, groups = call.path["group"], call.context.groups
    count = sum([len(each.receipts) for each in asked])
    if count > SETTLED_A_TURN:  # the outcomes stay in memory while the request waits
        call.count_memory(OUTCOME_BYTES * count)
    if check is not allow_all:
        await groups.check_receipts(group, [r for each in asked for r in each.receipts], check)
    if _settles_at_once(asked):
        return await finish(_settle_at_once(call, request, asked, allow_all))
    outcomes = [
        _describe_statuses(
            await groups.settle(group, Verb(each.verb), each.receipts, **_terms_of(each))
        )
        for each in asked
    ]
    del asked  # a request that waits must not keep its receipts in memory
    return await finish(_begin_leasing(call, request, outcomes))
