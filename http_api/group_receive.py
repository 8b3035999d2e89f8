"""Receiving from a group: messages under leases, or a wait for the first of them.

A client that goes away while it waits gives up its place, and leases that were made for a reply
which does not reach the system are given back at once: neither is a failure of the messages.
"""

from functools import partial
from time import monotonic

from holdfast.groups.config import GroupsConfig
from holdfast.groups.service_types import GroupState, ReceiveAsk
from holdfast.http_api.bounds import at_most, check_mark
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.config import HttpConfig
from holdfast.http_api.delivery import APART_MESSAGES
from holdfast.http_api.group_access import check_named, check_subscribed, leased_group
from holdfast.http_api.group_delivery import deliver_received
from holdfast.http_api.lease_types import ReceiveRequest
from holdfast.http_api.params import invalid
from holdfast.http_api.problems import Problem
from holdfast.http_api.pull import LARGE_BYTES
from holdfast.http_api.reply import Reply, nothing
from holdfast.http_api.turns import Turn

#: What a member is called that does not say, where it does not matter.
ANONYMOUS = "anonymous"


async def receive(call: Call[NoParams]) -> Reply:
    """Receive messages from a group, each under a lease of its own.

    Without messages to deliver the request is held for up to `wait_ms`, and answered at once when
    one is to be had. Settle each message by its receipt before its lease ends; else it is
    delivered again. Nothing comes to a member that is not the `active` one.
    """
    context, group = call.context, call.group()
    asked = await call.body(ReceiveRequest)
    state = leased_group(context, group)
    ask = _ask(call, asked, state)
    if asked.topics is not None:
        check_named(call, ("consume",), asked.topics)
    else:
        check_subscribed(call, ("consume",), state.topics)
    received = await context.groups.receive(group, ask)
    # Not the messages with them: a small reply that waits must not keep large batches in memory.
    receipts = received.receipts()
    give_back = partial(context.groups.undelivered, group, receipts) if receipts else nothing
    is_large = ask.max_messages > APART_MESSAGES or ask.max_bytes > LARGE_BYTES
    try:
        with Turn(context.large_replies if is_large else None) as turn:
            await turn.begin()
            reply = await deliver_received(context, received, call.media, received.held_s)
    except BaseException:
        give_back()
        raise
    reply.unsent = give_back
    return reply


def _ask(call: Call[NoParams], asked: ReceiveRequest, state: GroupState) -> ReceiveAsk:
    """Return what a member asks for. Raises Problem."""
    config = call.context.config
    member = _member(asked, state)
    if asked.attempt_id is not None:
        check_mark("attempt_id", asked.attempt_id)
    if asked.browse and asked.settled:
        raise invalid("browse", True, "one of them", "browse and settled are both true")
    _check_bounds(asked, config, call.context.groups_config)
    wait_s = asked.wait_ms / 1000 - (monotonic() - call.received_at) if asked.wait_ms else 0.0
    return ReceiveAsk(
        member,
        call.client,
        _given(asked.max_messages, config.default_pull_messages),
        _given(asked.max_bytes, config.default_pull_bytes),
        # Who only asks what there is has its answer.
        0.0 if asked.max_messages == 0 else max(wait_s, 0.0),
        asked.lease_ms,
        asked.topics,
        asked.filter,
        asked.settled,
        asked.browse,
        asked.attempt_id,
    )


def _member(asked: ReceiveRequest, state: GroupState) -> str:
    if asked.member is not None:
        return check_mark("member", asked.member)
    if state.mode != "competing":
        raise Problem(
            "missing-parameter",
            f"the group is {state.mode}, so it matters who asks; give a member",
            parameter="member",
        )
    return ANONYMOUS


def _check_bounds(asked: ReceiveRequest, config: HttpConfig, limits: GroupsConfig) -> None:
    most = limits.max_receive_messages
    at_most("max_messages", asked.max_messages, most, "max_receive_messages")
    at_most("max_bytes", asked.max_bytes, config.max_pull_bytes, "max_pull_bytes")
    at_most("wait_ms", asked.wait_ms, config.max_wait_ms, "max_wait_ms")
    at_most("lease_ms", asked.lease_ms, limits.max_lease_ms, "max_lease_ms")


def _given(value: int | None, default: int) -> int:
    return default if value is None else value
