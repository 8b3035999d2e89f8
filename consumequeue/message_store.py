"""The store as the layers above see it: publish, read by offset, look up, topics, offsets.

Lives on the event loop: every method is called there, and none of those that are not `async`
ever waits. Disk reads run in a small pool of threads; writes belong to the appender and state
threads, which hand their results back to the loop, a call a commit. What each method promises
stands where it is made: this puts the parts together and does nothing itself.
"""

from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor

from holdfast.commitlog.appender import Appender
from holdfast.commitlog.commit_log import CommitLog
from holdfast.consumequeue.admission import Admission
from holdfast.consumequeue.config import ConsumeQueueConfig, TopicsConfig
from holdfast.consumequeue.consume_queue import ConsumeQueue
from holdfast.consumequeue.damage_book import DamageBook
from holdfast.consumequeue.fetched import Fetched
from holdfast.consumequeue.group_offsets import GroupOffsets
from holdfast.consumequeue.index import Index
from holdfast.consumequeue.look_ups import LookUps
from holdfast.consumequeue.publishing import Published, Publishing
from holdfast.consumequeue.queue_reading import QueueReading, QueueState
from holdfast.consumequeue.read_leasing import ReadLease, ReadLeasing
from holdfast.consumequeue.reader import MessageFilter
from holdfast.consumequeue.splits import Split
from holdfast.consumequeue.state_changes import StateChanges
from holdfast.consumequeue.state_records import StoredOffsets
from holdfast.consumequeue.state_store import StateStore
from holdfast.consumequeue.topic_changes import TopicChanges
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import QueueKey

__all__ = [
    "Fetched",
    "MessageFilter",
    "MessageStore",
    "Published",
    "QueueKey",
    "QueueState",
    "ReadLease",
    "Split",
    "StoredOffsets",
]


class MessageStore:
    """Publish, read and look up. The composition sets `topic_deleted`."""

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
        admission: Admission,
        executor: ThreadPoolExecutor,
        queue_config: ConsumeQueueConfig,
        damage: DamageBook,
        now_ms: Callable[[], int],
    ) -> None:
        self.topic_deleted: Callable[[int], None] = lambda topic_id: None

        changes = StateChanges(state, appender)
        self.commit_state = changes.commit
        self.to_its_end = changes.to_its_end
        self.changes_done = changes.done

        topics = TopicChanges(
            table,
            config,
            changes,
            now_ms=now_ms,
            deleted=self._topic_deleted,
        )
        self.topic = table.get
        self.topic_by_id = table.by_id
        self.topics = table.all
        self.limits = topics.limits
        self.create_topic = topics.create
        self.change_topic = topics.change
        self.delete_topic = topics.delete

        publishing = Publishing(table, appender, admission)
        self.publish = publishing.publish
        self.finish = publishing.finish
        self.check_publishing = admission.check

        reading = QueueReading(
            log=log,
            index=index,
            queues=queues,
            table=table,
            executor=executor,
            cache_bytes=queue_config.hot_cache_bytes,
            damage=damage,
        )
        self.max_offset = reading.max_offset
        self.queue_state = reading.queue_state
        self.queue_states = reading.queue_states
        self.read_hot = reading.read_hot
        self.read = reading.read
        self.read_many = reading.read_many
        self.scan_hot = reading.scan_hot

        look_ups = LookUps(log=log, index=index, queues=queues, table=table, reading=reading)
        self.offset_by_time = look_ups.offset_by_time
        self.message = look_ups.message
        self.search_key = look_ups.search_key
        self.splits = look_ups.splits
        self.segments = look_ups.segments

        self.read_leases = ReadLeasing(
            readable=reading.readable,
            max_leases=queue_config.max_read_leases,
            max_queues=queue_config.max_leased_queues,
            now_ms=now_ms,
        )

        groups = GroupOffsets(table, config, changes)
        self.groups = table.groups
        self.group_topics = groups.group_topics
        self.stored_offsets = groups.stored_offsets
        self.store_offsets = groups.store_offsets
        self.forget_offsets = groups.forget_offsets

    def _topic_deleted(self, topic_id: int) -> None:
        self.read_leases.leases.end_topic(topic_id)
        self.topic_deleted(topic_id)
