"""The store, as the layers above use it: publish, read by offset, look up, topics, offsets.

The store belongs to the event loop: call every method there. Methods that are not `async` never
wait. A small thread pool reads the disk. The appender and the state thread write, and pass the
results to the loop with one call per commit; a small publish may be written on the loop itself.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from time import monotonic

from holdfast.commitlog.append.appender import Appender
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.damage.damage_book import DamageBook
from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.maintenance.read_leases import ReadLeases
from holdfast.consumequeue.publishing import (
    ArrivalListener,
    PublishAdmission,
    Publisher,
    TopicRoom,
)
from holdfast.consumequeue.reading.lookups import Lookups
from holdfast.consumequeue.reading.queue_reading import QueueReader
from holdfast.consumequeue.state.changes import StateChanges
from holdfast.consumequeue.state.group_offsets import GroupOffsets
from holdfast.consumequeue.state.store import StateStore
from holdfast.consumequeue.state.topic_changes import TopicChanges
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey


class MessageStore:
    """The parts of the store.

    `table` finds topics, and `topics` changes them. `publishing` appends messages, unless
    `admission` refuses. `reading` and `lookups` read, `offsets` has the stored offsets of groups,
    and `state` commits records and waits for running changes. The code that creates the store sets
    the callbacks of `topics`.
    """

    def __init__(
        self,
        *,
        log: CommitLog,
        appender: Appender,
        index: Index,
        queues: Mapping[QueueKey, ConsumeQueue],
        state: StateStore,
        table: TopicTable,
        config: TopicsConfig,
        admission: PublishAdmission,
        arrival_listeners: Sequence[ArrivalListener],
        executor: ThreadPoolExecutor,
        queue_config: ConsumeQueueConfig,
        sync_timeout_ms: int,
        damage: DamageBook,
        now_ms: Callable[[], int],
    ) -> None:
        self.state = changes = StateChanges(state, appender)
        self.table = table
        self.admission = admission
        self.publishing = Publisher(
            table, config, appender, admission, arrival_listeners, timeout_ms=sync_timeout_ms
        )
        self.topic_room = TopicRoom(
            lambda topic: sum(
                cq.bytes
                for queue in range(topic.queue_count)
                if (cq := queues.get((topic.topic_id, queue))) is not None
            ),
            monotonic,
        )
        self.reading = QueueReader(
            log=log,
            index=index,
            queues=queues,
            table=table,
            executor=executor,
            cache_bytes=queue_config.hot_cache_bytes,
            damage=damage,
        )
        self.lookups = Lookups(
            log=log, index=index, queues=queues, table=table, reading=self.reading
        )
        self.read_leases = ReadLeases(
            readable=self.reading.readable, limits=queue_config, now_ms=now_ms
        )
        self.offsets = GroupOffsets(table, config, changes, self.reading.queue_state)
        self.topics = TopicChanges(
            table,
            config,
            changes,
            now_ms=now_ms,
            deleted_listeners=[self.read_leases.end_topic, self.topic_room.forget],
        )
