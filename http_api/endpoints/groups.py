"""Groups with leases: create, change, delete and seek them, and remove a member.

A group without leases is created by storing offsets (`group_offsets`). `group_lag` returns the
state of groups with and without leases.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from msgspec import UNSET
from msgspec.structs import asdict

from holdfast.consumequeue.topics import check_name
from holdfast.groups.config import GroupsConfig
from holdfast.groups.core.subscribing import check_subscription
from holdfast.groups.service_types import ChangeChecks, CheckTopic, GroupState, SeekTarget
from holdfast.groups.settings import (
    MAX_BACKOFF_MS,
    MAX_BACKOFFS,
    MAX_WEIGHT,
    GroupSettings,
    Subscription,
    filter_texts,
    maxima,
)
from holdfast.http_api.access.authorization import missing_grant
from holdfast.http_api.access.grants import ANONYMOUS, GROUP_VERBS, Verb
from holdfast.http_api.endpoints.group_access import (
    MayConsume,
    check_any_subscribed,
    check_dead_letters,
    check_named,
    check_subscribed,
    leased_group,
    topics_with_offsets,
)
from holdfast.http_api.endpoints.group_lag import described
from holdfast.http_api.endpoints.group_offsets import by_name, queue_offsets
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.params import (
    check_at_most,
    check_client_label,
    check_count_at_most,
    text,
)
from holdfast.http_api.schemas.groups import GroupDeletedReply, start_of
from holdfast.http_api.schemas.leases import LeaveReply, LeaveRequest, SeekReply, SeekRequest
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class DeleteGroupParams:
    """The query of a request that deletes a group."""

    confirm: str | None = text("The group's name again, to confirm the deletion.", required=True)


async def put_group(call: Call[NoParams]) -> Reply:
    """Create a group that leases messages to its members, or change it.

    The status is 201 for a new group, and 200 if the group already existed. Settings that are not
    given stay unchanged. If `topics` is given, it is the complete list of the group's topics. A
    group that has only stored offsets continues from these offsets.
    """
    context, group = call.context, call.group()
    settings = await call.body(GroupSettings)
    before = context.groups.group_state(group) if context.groups.has_leases(group) else None
    check_settings(settings, context.groups_config)
    _check_access(call, settings, before)
    _, is_new = await context.run_shielded(
        context.groups.put_group(
            group,
            settings,
            call.principal.name,
            ChangeChecks(
                _check_topic(call, GROUP_VERBS),
                partial(check_dead_letters, call),
                _check_loser(call, settings.dead_letter_topic or ""),
            ),
        )
    )
    async with context.wide_requests.place(call.client):
        reply = await described(context, call.principal, group)
        answer = call.reply(reply, status=201 if is_new else 200)
    answer.note = {"created": is_new}
    return answer


async def delete_group(call: Call[DeleteGroupParams]) -> Reply:
    """Delete a group with its leases and stored offsets.

    The messages remain. Deleting cannot be undone, so `confirm` must repeat the name.
    """
    context, group = call.context, call.group()
    is_leased = context.groups.has_leases(group)
    topics = (
        {*context.groups.group_state(group).topics, *topics_with_offsets(context, group)}
        if is_leased
        else set(context.store.offsets.group_topics(group))
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
        await context.run_shielded(
            context.groups.delete_group(group, check_topic=_check_topic(call, ("admin",)))
        )
    else:
        # Only the checked topics, because the group may have new offsets on other topics by now.
        await context.run_shielded(context.store.offsets.forget_offsets(group, topics))
    return call.reply(GroupDeletedReply(group))


async def seek_group(call: Call[NoParams]) -> Reply:
    """Make a group start again: at the beginning or end of its queues, at a time, or at offsets.

    Older receipts of these queues become stale.
    """
    context, group = call.context, call.group()
    asked = await call.body(SeekRequest)
    state = leased_group(context, group)
    target: SeekTarget
    if isinstance(asked.to, Mapping):
        check_named(call, GROUP_VERBS, asked.to)
        target = {
            name: await queue_offsets(
                context.store.table.get(name), offsets, parameter=f"to.{name}"
            )
            for name, offsets in asked.to.items()
        }
    else:
        check_subscribed(call, GROUP_VERBS, state.topics)
        target = start_of("to", asked.to) if isinstance(asked.to, str) else asked.to
    moved = await context.run_shielded(
        context.groups.seek(group, target, check_topic=_check_topic(call, GROUP_VERBS))
    )
    reply = SeekReply(group, {topic: by_name(offsets) for topic, offsets in moved.items()})
    answer = call.reply(reply)
    answer.note = {"offsets": reply.offsets}
    return answer


async def leave_group(call: Call[NoParams]) -> Reply:
    """Remove a member. Its unsettled messages are available again immediately, in queue order.

    The token must grant at least one of the group's topics. If the member has leases on topics that
    the token does not grant, these leases remain, and the member remains until they have ended.
    """
    context, group = call.context, call.group()
    member = check_client_label("member", (await call.body(LeaveRequest)).member)
    check_any_subscribed(call, ("consume",), leased_group(context, group).topics)
    principal = call.principal
    may_consume = None
    if principal is not ANONYMOUS and not principal.may_with_any_topic("consume", group):
        may_consume = MayConsume(principal.name, group, principal, None)
    await context.run_shielded(context.groups.leave(group, member, may_consume=may_consume))
    return call.reply(LeaveReply(group, member))


def _check_topic(call: Call[Any], verbs: tuple[Verb, ...]) -> CheckTopic:
    """Return a check that raises Denied for topics that the token does not grant.

    The group service calls it, because the group may have got topics since the first check.
    """
    return lambda topic: check_subscribed(call, verbs, [topic])


def _check_loser(call: Call[Any], topic: str) -> Callable[[str], None]:
    """Return a check that raises Denied for groups that the token may not change.

    When `topic` becomes a dead-letter topic, groups that subscribe to it by a pattern lose it. The
    check is called for each of these groups. The error does not reveal their names.
    """

    def check(group: str) -> None:
        if not call.principal.may(GROUP_VERBS, topic, group):
            what = f"every group that gets topic {topic[:200]!r} by a pattern, and loses it so"
            raise missing_grant(call.principal, GROUP_VERBS, what=what)

    return check


def _check_access(call: Call[NoParams], settings: GroupSettings, before: GroupState | None) -> None:
    """Raise Denied if the caller lacks access to an old or new topic, or the dead-letter topic."""
    if settings.topics:
        check_named(call, GROUP_VERBS, settings.topics)
    if before is not None:
        check_subscribed(call, GROUP_VERBS, before.topics)
    letters = settings.dead_letter_topic
    if letters and (before is None or letters != before.record.dead_letter_topic):
        check_dead_letters(call, letters)


def check_settings(settings: GroupSettings, limits: GroupsConfig) -> None:
    """Check the maxima and names in the settings of a group. Raises InvalidName, Problem
    (limit-exceeded)."""
    given = {name: value for name, value in asdict(settings).items() if value is not UNSET}
    for name, (limit, limit_name) in maxima(limits).items():
        check_at_most(name, given.get(name), limit, limit_name)
    if settings.topics:
        _check_topics(settings.topics, limits)
    delays = given.get("backoff_ms", ())
    check_count_at_most("backoff_ms", "delays", len(delays), MAX_BACKOFFS)
    check_at_most("backoff_ms", max(delays, default=0), MAX_BACKOFF_MS)
    if given.get("dead_letter_topic") is not None:
        check_name("topic", given["dead_letter_topic"])


def _check_topics(topics: Mapping[str, Subscription], limits: GroupsConfig) -> None:
    check_count_at_most("topics", "topics", len(topics), limits.max_topics, "max_topics")
    for name, each in topics.items():
        check_at_most(f"topics.{name}.weight"[:200], each.weight, MAX_WEIGHT)
        check_subscription(name)
    check_count_at_most(
        "topics",
        "characters of filters",
        sum(map(len, filter_texts(topics.values()))),
        limits.max_filter_characters_per_group,
        "max_filter_characters_per_group",
    )
