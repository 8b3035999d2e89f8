"""Groups with leases: create, change, delete, start again elsewhere, let a member go.

A group that only stores offsets comes to be by storing them (`group_offsets`); how either kind
is, `group_lag` tells.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.groups.service_types import GroupSpec, GroupState, SeekTarget
from holdfast.http_api.access.grants import GROUP_VERBS
from holdfast.http_api.bounds import check_mark
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.group_access import (
    check_dead_letters,
    check_named,
    check_subscribed,
    leased_group,
)
from holdfast.http_api.group_lag import described
from holdfast.http_api.group_offsets import by_name, queue_offsets
from holdfast.http_api.group_settings import group_spec
from holdfast.http_api.group_types import GroupDeletedReply, GroupSettings
from holdfast.http_api.lease_types import LeaveReply, LeaveRequest, SeekReply, SeekRequest
from holdfast.http_api.params import text
from holdfast.http_api.problems import Problem
from holdfast.http_api.reply import Reply


@dataclass(frozen=True, slots=True)
class DeleteGroupParams:
    """Query of a deletion."""

    confirm: str | None = text("The group's name once more.", required=True)


async def put_group(call: Call[NoParams]) -> Reply:
    """Create a group that leases messages to its members, or change one.

    201 when it is new, 200 when it was there already. Fields that are not given stay as they are;
    topics that are given are all of the group's. A group that only stored offsets goes on from
    them.
    """
    context, group = call.context, call.group()
    settings = await call.body(GroupSettings)
    before = context.groups.group_state(group) if context.groups.has_leases(group) else None
    spec = group_spec(settings, context.groups_config)
    _check_access(call, spec, before)
    _, is_new = await context.to_the_end(context.groups.put_group(group, spec))
    answer = call.reply(
        await described(context, call.principal, group), status=201 if is_new else 200
    )
    answer.note = {"created": is_new}
    return answer


async def delete_group(call: Call[DeleteGroupParams]) -> Reply:
    """Delete a group with its leases and all that it has settled, or its stored offsets.

    The messages stay. Cannot be undone, so `confirm` has to repeat the name.
    """
    context, group = call.context, call.group()
    is_leased = context.groups.has_leases(group)
    topics = (
        context.groups.group_state(group).topics if is_leased else context.store.group_topics(group)
    )
    check_subscribed(call, ("admin",), topics)
    if call.params.confirm != group:
        raise Problem(
            "confirm-required",
            f"deleting {group!r} cannot be undone; add ?confirm={group}",
            parameter="confirm",
            allowed=group,
        )
    if is_leased:
        await context.to_the_end(context.groups.delete_group(group))
    else:
        await context.to_the_end(context.store.forget_offsets(group))
    return call.reply(GroupDeletedReply(group))


async def seek_group(call: Call[NoParams]) -> Reply:
    """Start a group again elsewhere: at an end of its queues, at a time, or at offsets.

    Receipts of the queues that are moved are stale then.
    """
    context, group = call.context, call.group()
    asked = await call.body(SeekRequest)
    state = leased_group(context, group)
    target: SeekTarget
    if isinstance(asked.to, Mapping):
        check_named(call, GROUP_VERBS, asked.to)
        target = {
            name: queue_offsets(context.store.topic(name), offsets, parameter=f"to.{name}")
            for name, offsets in asked.to.items()
        }
    else:
        check_subscribed(call, GROUP_VERBS, state.topics)
        target = asked.to
    moved = await context.to_the_end(context.groups.seek(group, target))
    reply = SeekReply(group, {topic: by_name(offsets) for topic, offsets in moved.items()})
    answer = call.reply(reply)
    answer.note = {"offsets": reply.offsets}
    return answer


async def leave_group(call: Call[NoParams]) -> Reply:
    """Let a member go: what it has not settled is available again at once, in its place."""
    context, group = call.context, call.group()
    member = check_mark("member", (await call.body(LeaveRequest)).member)
    leased_group(context, group)
    await context.to_the_end(context.groups.leave(group, member))
    return call.reply(LeaveReply(group, member))


def _check_access(call: Call[NoParams], spec: GroupSpec, before: GroupState | None) -> None:
    """Pass whoever may have a group's topics, old and new, and its dead letters. Raises Denied."""
    if spec.topics is not None:
        check_named(call, GROUP_VERBS, spec.topics)
    if before is not None:
        check_subscribed(call, GROUP_VERBS, before.topics)
    letters = spec.dead_letter_topic
    if letters and (before is None or letters != before.dead_letter_topic):
        check_dead_letters(call, letters)
