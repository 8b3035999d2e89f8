"""Groups' stored offsets: read, store by compare-and-swap, reset.

Where a group has leases on a topic, its offset in a queue is the floor: everything below it is
settled. Storing other offsets starts it again from there.
"""

from collections.abc import Mapping
from zlib import crc32

from aiohttp import hdrs
from multidict import MultiMapping

from holdfast.consumequeue.errors import OffsetsChanged, UnknownGroup, UnknownQueue
from holdfast.consumequeue.message_store import StoredOffsets
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.call import Call, NoParams
from holdfast.http_api.context import ApiContext
from holdfast.http_api.group_types import OffsetsReply, OffsetsRequest, ResetReply, ResetRequest
from holdfast.http_api.headers import lone
from holdfast.http_api.params import invalid, whole_number
from holdfast.http_api.reply import Reply

_ANY_VERSION = -1
"""If-Match: * - whatever is stored, but something."""


async def get_offsets(call: Call[NoParams]) -> Reply:
    """Return a group's stored offsets on a topic: of each queue, the next to consume.

    Of a group with leases: the offset in each queue below which everything is settled.
    """
    context, group, topic = call.context, call.group(), call.topic()
    if context.groups.has_leases(group):
        return _offsets_reply(call, group, topic, _stored(context, group, topic))
    return _offsets_reply(call, group, topic, context.store.stored_offsets(group, topic))


async def put_offsets(call: Call[NoParams]) -> Reply:
    """Store offsets of a group on a topic, durably; the group is created when it is new.

    Queues that are not named keep what they have. With If-Match only if the ETag is still
    that, with If-None-Match: * only if nothing is stored yet; else 412. A group with leases
    starts again from these offsets, and older receipts of these queues are stale.
    """
    context, group, topic = call.context, call.group(), call.topic()
    if_version = _if_version(call.headers)
    wanted = await call.body(OffsetsRequest)
    offsets = queue_offsets(topic, wanted.offsets)
    if has_leases_on(context, group, topic):
        await context.to_the_end(_start_again(context, group, topic, offsets, if_version))
        return _offsets_reply(call, group, topic, _floors(context, group, topic))
    if if_version == _ANY_VERSION:
        if_version = _stored(context, group, topic).version
        if if_version == 0:
            raise OffsetsChanged(group, topic.name, 0)
    stored = await context.to_the_end(
        context.store.store_offsets(group, topic, offsets, if_version=if_version)
    )
    return _offsets_reply(call, group, topic, stored)


async def reset_offsets(call: Call[NoParams]) -> Reply:
    """Set a group's offsets to an end of the queues or to a time; `dry_run` only tells."""
    context, group, topic = call.context, call.group(), call.topic()
    reset = await call.body(ResetRequest)
    queues = range(topic.queue_count) if reset.queues is None else sorted(set(reset.queues))
    after = {queue: await _reset_offset(context, topic, queue, reset) for queue in queues}
    before = _stored(context, group, topic).offsets
    if reset.dry_run:
        pass
    elif has_leases_on(context, group, topic):
        await context.to_the_end(context.groups.seek(group, {topic.name: after}))
    else:
        await context.to_the_end(context.store.store_offsets(group, topic, after))
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
    """Whether a group leases messages of a topic, so that its offsets are where its leases are."""
    groups = context.groups
    return groups.has_leases(group) and topic.name in groups.group_state(group).topics


async def _reset_offset(context: ApiContext, topic: Topic, queue: int, reset: ResetRequest) -> int:
    state = context.store.queue_state(topic, queue)
    if isinstance(reset.to, str):
        return state.min_offset if reset.to == "earliest" else state.max_offset
    timestamp_ms = reset.to if isinstance(reset.to, int) else reset.to.timestamp_ms
    offset, _ = await context.store.offset_by_time(topic, queue, timestamp_ms * 1000)
    return offset


def _stored(context: ApiContext, group: str, topic: Topic) -> StoredOffsets:
    """Return what is stored; a group that is yet to be created has nothing."""
    if has_leases_on(context, group, topic):
        return _floors(context, group, topic)
    try:
        return context.store.stored_offsets(group, topic)
    except UnknownGroup:
        return StoredOffsets()


async def _start_again(
    context: ApiContext,
    group: str,
    topic: Topic,
    offsets: Mapping[int, int],
    if_version: int | None,
) -> None:
    """Seek, if the floors have the version that is insisted on in the turn in which it begins: of
    two requests that come together, one alone finds it."""
    before = _floors(context, group, topic)
    if if_version not in (None, _ANY_VERSION, before.version):
        raise OffsetsChanged(group, topic.name, before.version)
    await context.groups.seek(group, {topic.name: offsets})


def _floors(context: ApiContext, group: str, topic: Topic) -> StoredOffsets:
    """Return the floors of a group with leases; their version is a checksum of them."""
    floors = context.groups.floors(group, topic.name)
    return StoredOffsets(floors, crc32(repr(sorted(floors.items())).encode()) or 1)


def queue_offsets(
    topic: Topic, offsets: Mapping[str, int], *, parameter: str = "offsets"
) -> dict[int, int]:
    """Return offsets by the numbers of their queues. Raises Problem, about `parameter`, and
    UnknownQueue."""
    return {_queue(name, topic, parameter): offset for name, offset in offsets.items()}


def by_name(offsets: Mapping[int, int]) -> dict[str, int]:
    """Return offsets by the names of their queues, in their order."""
    return {str(queue): offset for queue, offset in sorted(offsets.items())}


def _queue(name: str, topic: Topic, parameter: str) -> int:
    queue = whole_number(name)
    if queue is None or str(queue) != name:
        raise invalid(parameter, name, 'queue numbers as texts, such as "0"')
    if queue >= topic.queue_count:
        raise UnknownQueue(topic.name, queue, topic.queue_count)
    return queue


def _if_version(headers: MultiMapping[str]) -> int | None:
    """Return the version that the request insists on, None for any or none."""
    match, none_match = lone(headers, hdrs.IF_MATCH), lone(headers, hdrs.IF_NONE_MATCH)
    if none_match is not None:
        if none_match.strip() != "*" or match is not None:
            raise invalid(hdrs.IF_NONE_MATCH, none_match, "* alone, or If-Match in its place")
        return 0
    if match is None:
        return None
    if match.strip() == "*":
        return _ANY_VERSION
    version = whole_number(match.strip().strip('"'))
    if version is None or match.strip() != f'"{version}"':
        raise invalid(hdrs.IF_MATCH, match, 'the ETag of the offsets as it was read, such as "3"')
    return version


def _offsets_reply(call: Call[NoParams], group: str, topic: Topic, stored: StoredOffsets) -> Reply:
    reply = OffsetsReply(group, topic.name, by_name(stored.offsets))
    return call.reply(reply, headers=[("ETag", f'"{stored.version}"')])
