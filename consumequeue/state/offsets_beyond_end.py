"""At a start, correct stored offsets that are beyond the end of their queue. Pure.

In a topic with the durability "written", a power loss may lose messages that were delivered. If a
group stored an offset beyond these messages, this offset survives, because stored offsets are
always synced. Earlier versions of the broker also accepted offsets beyond the end.

New messages of the queue get
the offsets after its end, and a group that continued from its stored offset would skip them
unnoticed. So such an offset is set back to the queue's end, and the version of the stored offsets
changes: a consumer that is still running gets an error when it next stores an offset with the old
version.
"""

from collections.abc import Mapping

from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

SetBack = dict[tuple[str, int], StoredOffsets]
"""New stored offsets by group and topic id."""


def offsets_beyond_end(table: TopicTable, queues: Mapping[QueueKey, ConsumeQueue]) -> SetBack:
    """Return new stored offsets for each group and topic that has an offset beyond the end of its
    queue."""
    found: SetBack = {}
    for group in table.groups():
        for topic_id, stored in table.group_offsets(group).items():
            if table.by_id(topic_id) is None:
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
