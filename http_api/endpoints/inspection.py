"""Endpoints for operators: names, readers of a topic, leases, a message's state in each group."""

from bisect import bisect_right
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from dataclasses import dataclass

from holdfast.commitlog.format.message_id import parse_message_id
from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.consumequeue.slices import LoopBudget
from holdfast.consumequeue.topics import Topic
from holdfast.groups.descriptions import MessageStateReply
from holdfast.http_api.access.grants import GROUP_VERBS, TOPIC_VERBS, Principal
from holdfast.http_api.endpoints.group_access import leased_group
from holdfast.http_api.endpoints.lookups import check_topic_of
from holdfast.http_api.endpoints.topics import PageParams
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import choice, invalid, text, whole
from holdfast.http_api.schemas.groups import GroupSummary
from holdfast.http_api.schemas.inspection import (
    LeasesReply,
    MessageStatesReply,
    NamesReply,
    ReadersReply,
)
from holdfast.http_api.wire.reply import Reply


@dataclass(frozen=True, slots=True)
class NamesParams(PageParams):
    """The query of a search for names."""

    kind: str = choice("`topic` (the default) or `group`.", "topic", "group", default="topic")
    contains: str | None = text("Only names that contain this text, in any case.", maximum=127)


@dataclass(frozen=True, slots=True)
class LeasesParams:
    """The query of a request for leases."""

    limit: int = whole(
        "Most leases on the page.", minimum=1, maximum="max_page_size", default="page_size"
    )
    after: str | None = text(
        "Begin after this message id: the `next` of the previous page.", maximum=32
    )


async def list_names(call: Call[NamesParams]) -> Reply:
    """Find topics or groups by a part of their names, one page at a time.

    The list leaves out names on which the token grants nothing.
    """
    params, principal = call.params, call.principal
    part = (params.contains or "").lower()
    is_topic = params.kind == "topic"
    every = _topic_names(call.context) if is_topic else call.context.group_names()
    found: list[str] = []
    async for name in _after(every, params.after):
        may_see = (
            principal.may(TOPIC_VERBS, name) if is_topic else principal.may(GROUP_VERBS, group=name)
        )
        if part in name.lower() and may_see:
            found.append(name)
            if len(found) > params.limit:
                break
    return call.reply(NamesReply(found[: params.limit], _next(found, params.limit)))


def _topic_names(context: ApiContext) -> list[str]:
    return [topic.name for topic in context.store.table.listed()]


async def _after(names: list[str], after: str | None) -> AsyncIterator[str]:
    """Yield the names after a name. Other tasks run in between."""
    turn = LoopBudget()
    async for part in turn.slices(names[bisect_right(names, after or "") :]):
        for name in part:
            yield name


def _next(found: list[str], limit: int) -> str | None:
    return found[limit - 1] if len(found) > limit else None


# -- groups of a topic -------------------------------------------------------------------------


async def list_readers(call: Call[PageParams]) -> Reply:
    """List the groups that read a topic, by name, with their lag on it.

    The list leaves out groups that the token does not grant together with the topic.
    """
    context, topic, limit = call.context, call.topic(), call.params.limit
    found: list[str] = []
    summaries: list[GroupSummary] = []
    async with context.wide_requests.place(call.client):
        async for name in _readers(context, call.principal, topic, call.params.after):
            found.append(name)
            if len(found) > limit:
                break
            with suppress(UnknownGroup, UnknownTopic):  # deleted meanwhile
                summaries.append(await _reader(context, topic, name))
        return call.reply(ReadersReply(summaries, _next(found, limit)))


async def _readers(
    context: ApiContext, principal: Principal, topic: Topic, after: str | None
) -> AsyncIterator[str]:
    """Yield the visible groups that read a topic, sorted."""
    with_leases = context.groups.groups_of(topic.topic_id)
    async for name in _after(context.group_names(), after):
        is_reader = name in with_leases or _has_offsets(context, name, topic)
        if is_reader and principal.may(GROUP_VERBS, topic.name, name):
            yield name


def _has_offsets(context: ApiContext, group: str, topic: Topic) -> bool:
    if context.groups.has_leases(group):
        return False
    with suppress(UnknownGroup):
        return topic.name in context.store.offsets.group_topics(group)
    return False


async def _reader(context: ApiContext, topic: Topic, group: str) -> GroupSummary:
    if context.groups.has_leases(group):
        lags = await context.groups.lags(group)
        mode = context.groups.group_state(group).record.config.mode
        return GroupSummary(group, [topic.name], lags.get(topic.name, 0), mode)
    offsets = context.store.offsets.group_topics(group)[topic.name].offsets
    lag, turn = 0, LoopBudget()
    async for queues in turn.slices(range(topic.queue_count)):
        for queue in queues:
            state = context.store.reading.queue_state(topic, queue)
            lag += state.max_offset - max(offsets.get(queue) or 0, state.min_offset)
    return GroupSummary(group, [topic.name], max(lag, 0))


# -- leases and states -------------------------------------------------------------------------


async def list_leases(call: Call[LeasesParams]) -> Reply:
    """List the messages that the members of a group hold: which member, since when, until when.

    The list leaves out topics on which the token grants nothing.
    """
    context, group, params = call.context, call.group(), call.params
    leased_group(context, group)
    after = (0, 0, -1)
    if params.after is not None:
        try:
            after = parse_message_id(params.after)
        except ValueError as error:
            raise invalid("after", params.after, "the `next` of a page", str(error)) from None
    async with context.wide_requests.place(call.client):
        found = await context.groups.leases(
            group,
            lambda topic: call.principal.may(GROUP_VERBS, topic, group),
            after,
            params.limit + 1,
        )
    is_last = len(found) <= params.limit
    page = found[: params.limit]
    return call.reply(LeasesReply(page, None if is_last else page[-1].message_id))


async def list_message_states(call: Call[PageParams]) -> Reply:
    """List the groups that read a message's topic, with the state of the message in each.

    `settled`, `dead`, `expired`: the group is done with it. `available`, `delayed`, `leased`,
    `dying` (on its way to the dead-letter topic), `restart-wait` (a member may hold it since before
    a restart): the group is not. `deleted`: retention deleted it. For a group that only stores
    offsets, the message is `read` if it is before the stored offset, otherwise `unread`.
    """
    check_topic_of(call)
    context, limit = call.context, call.params.limit
    topic, batch, row = await context.store.lookups.message(call.path["message_id"])
    queue, offset = batch.header.queue_id, batch.header.base_offset + row
    found: list[str] = []
    states: list[MessageStateReply] = []
    async with context.wide_requests.place(call.client):
        async for name in _readers(context, call.principal, topic, call.params.after):
            found.append(name)
            if len(found) > limit:
                break
            with suppress(UnknownGroup):  # deleted meanwhile
                states += _state(context, name, topic, queue, offset)
        return call.reply(MessageStatesReply(states, _next(found, limit)))


def _state(
    context: ApiContext, group: str, topic: Topic, queue: int, offset: int
) -> Iterator[MessageStateReply]:
    if context.groups.has_leases(group):
        yield context.groups.message_state(group, (topic.topic_id, queue), offset)
    else:
        stored = context.store.offsets.group_topics(group).get(topic.name)
        if stored is not None:
            is_read = offset < (stored.offsets.get(queue) or 0)
            yield MessageStateReply(group, "read" if is_read else "unread")
