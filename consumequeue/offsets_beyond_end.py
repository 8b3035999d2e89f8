"""Stored offsets after a power loss that took the end of a queue in written mode. Pure.

What a topic in written mode showed may be gone, while the offset that a group stored behind it is
not: it was synced by itself. The queue goes on at its end, with other messages at those offsets,
and a group that went on from its stored offset would pass over them unawares. So such an offset
is set back to the end; its new version tells a consumer that still runs, when it stores the next.
"""

from collections.abc import Mapping

from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.state_records import StoredOffsets
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

SetBack = dict[tuple[str, int], StoredOffsets]
"""New stored offsets by group and topic id."""


def offsets_beyond_end(table: TopicTable, queues: Mapping[QueueKey, ConsumeQueue]) -> SetBack:
    """Return what to store in place of offsets that are beyond the end of their queue.

    Only for topics in written mode: what a durable one showed is there, and what a group stores
    for offsets that never were is its own business.
    """
    found: SetBack = {}
    for group in table.groups():
        for topic_id, stored in table.group_offsets(group).items():
            topic = table.by_id(topic_id)
            if topic is None or topic.config.durability != "written":
                continue
            offsets = {
                queue: min(offset, _end(queues, (topic_id, queue)))
                for queue, offset in stored.offsets.items()
            }
            if offsets != stored.offsets:
                found[group, topic_id] = StoredOffsets(offsets, stored.version + 1)
    return found


def _end(queues: Mapping[QueueKey, ConsumeQueue], key: QueueKey) -> int:
    cq = queues.get(key)
    return 0 if cq is None else cq.max_offset
