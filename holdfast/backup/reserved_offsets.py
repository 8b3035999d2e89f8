"""Leave room in restored queues for the offsets that were given out after the backup.

Without it a restored queue gives offsets again that consumers have seen messages at. What is
reserved is noted as lost and let go of: readers pass over it, and no message ever gets it.
"""

from collections.abc import Mapping
from pathlib import Path

from holdfast.consumequeue.lost_ranges import LostRange, with_lost
from holdfast.consumequeue.state_records import decode_lost, encode_lost, lost_key
from holdfast.consumequeue.state_store import StateStore
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

_STATE_MAP_BYTES = 1024**3

#: The reason that readers are told.
RESTORED = "restored"


def reserve_offsets(data_dir: Path, ends: Mapping[QueueKey, int], count: int) -> None:
    """Pass over `count` offsets behind each queue's end, in a directory that no broker has open.
    `ends` says where queues end; one that is not named ends where it begins. Durable on return;
    StateCorrupt, StateFull, StateUnavailable, lmdb.Error and OSError pass through."""
    if not count:
        return
    state = StateStore(data_dir / "state", _STATE_MAP_BYTES)
    try:
        table = TopicTable(state.records)
        changes: dict[bytes, bytes | None] = {}
        for topic in table.all():
            record = lost_key(topic.topic_id)
            queues = decode_lost(state.records[record]) if record in state.records else {}
            for queue in range(topic.queue_count):
                begin = table.kept.get(topic.topic_id, {}).get(queue, 0)
                end = max(ends.get((topic.topic_id, queue), 0), begin)
                found = LostRange(end, end + count, RESTORED, accepted=True)
                queues[queue] = with_lost(queues.get(queue, ()), found)
            changes[record] = encode_lost(queues)
        state.commit_now(changes)
    finally:
        state.stop()
