"""Reserve the offsets in restored queues that messages may have got after the backup.

Otherwise new messages would get offsets at which consumers have already seen other messages.
Reserved offsets are recorded as an accepted loss: readers skip them, and no message gets them.
"""

from collections.abc import Mapping
from pathlib import Path

from holdfast.consumequeue.lost_ranges import LostRange, with_lost
from holdfast.consumequeue.state.records import decode_lost, encode_lost, lost_key
from holdfast.consumequeue.state.store import StateStore
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

_STATE_MAP_BYTES = 1024**3

#: The record of a reserved range has this reason.
RESTORED = "restored"


def reserve_offsets(data_dir: Path, ends: Mapping[QueueKey, int], count: int) -> None:
    """Durably reserve `count` offsets after each queue's end, in a directory that no broker has
    open. `ends` has the queues' end offsets; a queue that is not included ends at its first offset.
    StateCorrupt, StateFull, StateUnavailable, lmdb.Error and OSError propagate."""
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
