"""The stored offsets of groups: read them, store them by compare-and-swap, or reset them.

If a group has leases on a topic, its offset in a queue is the floor: all messages below the floor
are settled. Storing other offsets makes the group start again at these offsets.
"""

import asyncio
from collections.abc import Mapping
from zlib import crc32

from multidict import MultiMapping

from holdfast.consumequeue.errors import OffsetsChanged, UnknownGroup, UnknownQueue
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.pull import offset_at
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.routing.context import ApiContext
from holdfast.http_api.routing.params import invalid, whole_number
from holdfast.http_api.schemas.groups import (
    OffsetsReply,
    OffsetsRequest,
    ResetReply,
    ResetRequest,
    start_of,
    time_of,
)
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import single_header

_ANY_VERSION = -1
"""The value for "If-Match: *": store only if the group already has stored offsets on the topic."""
#: At most this many queues of a request are processed in one event loop iteration.
OFFSETS_A_TURN = 1000


async def get_offsets(call: Call[NoParams]) -> Reply:
    """Return a group's stored offsets on a topic: for each queue, the next offset to consume.

    For a group with leases, all messages of the queue below this offset are settled.
    """
    context, group, topic = call.context, call.group(), call.topic()
    if context.groups.has_leases(group):
        return _offsets_reply(call, group, topic, await _stored(context, group, topic))
    return _offsets_reply(call, group, topic, context.store.offsets.stored_offsets(group, topic))


async def put_offsets(call: Call[NoParams]) -> Reply:
    """Store offsets of a group on a topic, durably. A new group is created.

    Queues that the request does not name keep their offsets. With If-Match, the request succeeds
    only if the ETag is still the same, and with If-None-Match: * only if no offsets are stored yet;
    otherwise the status is 412. If an offset is beyond the end of its queue, the status is 416, and
    the reply has `max_offset`, as in a pull. A group with leases starts again at these offsets, and
    older receipts of these queues become stale.
    """
    context, group, topic = call.context, call.group(), call.topic()
    if_version = _if_version(call.headers)
    wanted = await call.body(OffsetsRequest)
    offsets = await queue_offsets(topic, wanted.offsets)
    if has_leases_on(context, group, topic):
        await context.run_shielded(_start_again(context, group, topic, offsets, if_version))
        return _offsets_reply(call, group, topic, await _floors(context, group, topic))
    if if_version == _ANY_VERSION:
        if_version = (await _stored(context, group, topic)).version
        if if_version == 0:
            raise OffsetsChanged(group, topic.name, 0)
    stored = await context.run_shielded(
        context.store.offsets.store_offsets(group, topic, offsets, if_version=if_version)
    )
    return _offsets_reply(call, group, topic, stored)


async def reset_offsets(call: Call[NoParams]) -> Reply:
    """Set a group's offsets to the beginning or end of the queues, or to a time.

    With `dry_run`, the request only returns the offsets and changes nothing.
    """
    context, group, topic = call.context, call.group(), call.topic()
    reset = await call.body(ResetRequest)
    queues = range(topic.queue_count) if reset.queues is None else sorted(set(reset.queues))
    start, after = _start(reset), {}
    async for part in in_slices(queues):
        for queue in part:
            after[queue] = await _reset_offset(context, topic, queue, start)
    before = (await _stored(context, group, topic)).offsets
    await asyncio.sleep(0)
    if reset.dry_run:
        pass
    elif has_leases_on(context, group, topic):
        await context.run_shielded(context.groups.seek(group, {topic.name: after}))
    else:
        await context.run_shielded(context.store.offsets.store_offsets(group, topic, after))
    await asyncio.sleep(0)
    reply = ResetReply(
        group,
        topic.name,
        reset.dry_run,
        by_name({queue: before[queue] for queue in queues if queue in before}),
        by_name(after),
    )
    answer = call.reply(reply)
    answer.note = {"dry_run": reset.dry_run, "before": reply.before, "after": reply.after}
    return answer


def has_leases_on(context: ApiContext, group: str, topic: Topic) -> bool:
    """Return whether a group leases messages of a topic. If so, its floors are its offsets."""
    groups = context.groups
    return groups.has_leases(group) and topic.name in groups.group_state(group).topics


def _start(reset: ResetRequest) -> str | int:
    """Return "earliest" or "latest", or a time in milliseconds. Raises Problem."""
    if isinstance(reset.to, str):
        return start_of("to", reset.to)
    if isinstance(reset.to, int):
        return reset.to
    return time_of("to.timestamp_ms", reset.to.timestamp_ms)


async def _reset_offset(context: ApiContext, topic: Topic, queue: int, start: str | int) -> int:
    if isinstance(start, int):
        return await offset_at(context, topic, queue, None, start)
    return await offset_at(context, topic, queue, start, None)


async def _stored(context: ApiContext, group: str, topic: Topic) -> StoredOffsets:
    """Return the stored offsets. If the group does not exist yet, return no offsets."""
    if has_leases_on(context, group, topic):
        return await _floors(context, group, topic)
    try:
        return context.store.offsets.stored_offsets(group, topic)
    except UnknownGroup:
        return StoredOffsets()


async def _start_again(
    context: ApiContext,
    group: str,
    topic: Topic,
    offsets: Mapping[int, int],
    if_version: int | None,
) -> None:
    """Seek to these offsets if the floors have the version `if_version`, or if that is None.

    There is no await between the check of the version and the start of the seek, so of two
    concurrent requests only one succeeds. Raises OffsetsChanged.
    """
    before = await _floors(context, group, topic)
    if if_version not in (None, _ANY_VERSION, before.version):
        raise OffsetsChanged(group, topic.name, before.version)
    context.store.offsets.check_offsets(topic, offsets)
    await context.groups.seek(group, {topic.name: offsets})


async def _floors(context: ApiContext, group: str, topic: Topic) -> StoredOffsets:
    """Return the floors of a group with leases. Their version is a checksum of the floors."""
    floors = await context.groups.floors(group, topic.name)
    return StoredOffsets(floors, crc32(repr(sorted(floors.items())).encode()) or 1)


async def queue_offsets(
    topic: Topic, offsets: Mapping[str, int], *, parameter: str = "offsets"
) -> dict[int, int]:
    """Return queue number -> offset, for offsets with queue numbers as texts.

    Raises Problem, which names `parameter`, and UnknownQueue.
    """
    found = {}
    async for part in in_slices(offsets.items(), OFFSETS_A_TURN):
        for name, offset in part:
            found[_queue(name, topic, parameter)] = offset
    return found


def by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    """Return queue number as text -> offset, in the order of the queues."""
    return {str(queue): offset for queue, offset in sorted(offsets.items())}


def _queue(name: str, topic: Topic, parameter: str) -> int:
    queue = whole_number(name)
    if queue is None or str(queue) != name:
        raise invalid(parameter, name, 'queue numbers as texts, such as "0"')
    if queue >= topic.queue_count:
        raise UnknownQueue(topic.name, queue, topic.queue_count)
    return queue


def _if_version(headers: MultiMapping[str]) -> int | None:
    """Return the version that the request requires; None if it has no condition.

    The version 0 requires that no offsets are stored, _ANY_VERSION that some are stored.
    """
    match, none_match = (
        single_header(headers, hdrs.IF_MATCH),
        single_header(headers, hdrs.IF_NONE_MATCH),
    )
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise invalid(hdrs.IF_NONE_MATCH, none_match, "only *, or If-Match instead")
        return 0
    if match is None:
        return None
    if match.strip() == "*":
        return _ANY_VERSION
    version = whole_number(match.strip().strip('"'))
    if version is None or match.strip() != f'"{version}"':
        raise invalid(hdrs.IF_MATCH, match, 'the ETag of an earlier reply, such as "3"')
    return version


def _offsets_reply(call: Call[NoParams], group: str, topic: Topic, stored: StoredOffsets) -> Reply:
    reply = OffsetsReply(group, topic.name, by_name(stored.offsets))
    return call.reply(reply, headers=[("ETag", f'"{stored.version}"')])
