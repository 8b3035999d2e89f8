"""Receiving from a group: lease messages to a member, or hold the request until there are messages.

If a client disconnects while its request is held, the request is cancelled. If a reply does not
reach its client, its leases are given back at once. Neither counts as a failure of the messages.
"""

from functools import partial
from time import monotonic

from holdfast.groups.config import GroupsConfig
from holdfast.groups.service_types import GroupState, ReceiveRequest, UnitLimit
from holdfast.http_api.access.grants import ANONYMOUS
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.endpoints.group_access import (
    MayConsume,
    check_named,
    check_subscribed,
    leased_group,
)
from holdfast.http_api.endpoints.held_read import (
    FILTER_BYTES_PER_CHARACTER,
    LARGE_BYTES,
    SHORT_FILTER_CHARACTERS,
)
from holdfast.http_api.endpoints.receive_reply import deliver_received
from holdfast.http_api.endpoints.rendering import YIELD_EVERY_MESSAGES
from holdfast.http_api.limits.reply_slots import LargeReplySlot
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import (
    check_at_most,
    check_client_label,
    check_count_at_most,
    invalid,
)
from holdfast.http_api.schemas.leases import ReceiveRequest as ReceiveBody
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply, nothing

#: The member's name if a request gives none. Only competing groups accept requests without a name.
ANONYMOUS_MEMBER = "anonymous"


async def receive(call: Call[NoParams]) -> Reply:
    """Receive messages from a group, each under its own lease.

    If there is nothing to deliver, the request is held for up to `wait_ms`, and answered as soon as
    a message is available. Settle each message by its receipt before its lease expires; otherwise
    it is delivered again. Only the `active` member receives messages.
    """
    context, group = call.context, call.group()
    asked = await call.body(ReceiveBody)
    state = leased_group(context, group)
    request = _request(call, asked, state)
    if request.filter_text is not None and len(request.filter_text) > SHORT_FILTER_CHARACTERS:
        call.count_memory(FILTER_BYTES_PER_CHARACTER * len(request.filter_text))
    if asked.topics is not None:
        check_named(call, ("consume",), asked.topics)
        check_named(call, ("consume",), {each.topic for each in request.unit_limits})
    else:
        check_subscribed(call, ("consume",), state.topics)
    received = await context.groups.receive(group, request)
    if request.may_consume is not None and asked.topics is None and not received.deliveries:
        # By now the group may have new topics that the token does not grant.
        check_subscribed(call, ("consume",), context.groups.group_state(group).topics)
    # Keep only the receipts: until a small reply is sent, it must not keep large batches in memory.
    receipts = received.receipts()
    give_back = (
        partial(context.groups.release_undelivered, group, receipts) if receipts else nothing
    )
    is_large = request.max_messages > YIELD_EVERY_MESSAGES or request.max_bytes > LARGE_BYTES
    try:
        with LargeReplySlot(context.large_replies if is_large else None) as slot:
            await slot.acquire()
            reply = await deliver_received(context, received, call.media, received.held_s, slot)
    except BaseException:
        give_back()
        raise
    reply.on_undelivered = give_back
    return reply


def _request(call: Call[NoParams], asked: ReceiveBody, state: GroupState) -> ReceiveRequest:
    """Check the request's body and convert it for the group service. Raises Problem."""
    config = call.context.config
    member = _member(asked, state)
    if asked.attempt_id is not None:
        check_client_label("attempt_id", asked.attempt_id)
    if asked.browse and asked.settled:
        raise invalid("browse", True, "one of them", "browse and settled are both true")
    _check_bounds(asked, config, call.context.groups_config)
    may_wait = asked.wait_ms and config.max_wait_ms
    wait_s = asked.wait_ms / 1000 - (monotonic() - call.received_at) if may_wait else 0.0
    return ReceiveRequest(
        member,
        _given(asked.max_messages, config.default_pull_messages),
        _given(asked.max_bytes, config.default_pull_bytes),
        lease_ms=asked.lease_ms,
        settled=asked.settled,
        attempt_id=asked.attempt_id,
        client=call.client,
        # A request for 0 messages only asks how many are available, so it is never held.
        wait_s=0.0 if asked.max_messages == 0 else max(wait_s, 0.0),
        browse=asked.browse,
        topic_names=asked.topics,
        filter_text=asked.filter,
        unit_limits=_limits(asked, state),
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


def _member(asked: ReceiveBody, state: GroupState) -> str:
    if asked.member is not None:
        return check_client_label("member", asked.member)
    if state.record.config.mode != "competing":
        raise Problem(
            "missing-parameter",
            f"the group is {state.record.config.mode}, so it matters who asks; give a member",
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


def _limits(asked: ReceiveBody, state: GroupState) -> list[UnitLimit]:
    limits = []
    for index, each in enumerate(asked.limits or ()):
        parameter = f"limits[{index}]"
        if (each.queue is None) == (each.key is None):
            raise invalid(parameter, None, "one of queue and key", f"{parameter} is of no one unit")
        if each.key is not None and state.record.config.mode != "keyed":
            detail = f"{parameter} names a key, and the group is {state.record.config.mode}"
            raise invalid(f"{parameter}.key", each.key, "a queue", detail)
        limits.append(UnitLimit(each.topic, each.max_messages, each.queue, each.key))
    if limits and asked.browse:
        raise invalid("limits", True, "limits or browse", "limits and browse are both given")
    return limits


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
