"""Appends a group's dead letters to the dead-letter topic, each once. On the event loop.

    the core returns a letter -> read its message -> append it durably -> mark it as dead -> commit

If the broker crashes after the append and before the commit, the letter is appended again at the
next start. Each letter has its own producer id, derived from the letter's id. So the log recognizes
the repetition, and returns the record that it already has.

Transient failures are retried. A letter that is too large for a segment is given up: its message is
marked as dead without a record, and a log line and a metric contain the reason. A letter whose
message cannot be read at the moment is moved to the end of the waiting letters.
"""

import asyncio
import logging
from collections import Counter, deque
from collections.abc import Callable, Collection, Sequence
from itertools import islice

from holdfast.commitlog.append.producer_sequences import BROKER_EPOCH
from holdfast.commitlog.errors import BatchTooLarge, LogError
from holdfast.commitlog.format.batch import Batch, queue_for_key
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.format.priority import queue_of
from holdfast.consumequeue.errors import StateUnavailable, StoreError, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.group import Group
from holdfast.groups.core.group_topic import DeadLetter
from holdfast.groups.cursor.cursor import NOT_KEPT
from holdfast.groups.service_types import GroupCounters
from holdfast.groups.serving.letters import keyed_producer_id, letter_properties
from holdfast.groups.serving.receive_flow import ReceiveFlow
from holdfast.groups.storage.group_records import GroupRecord

_logger = logging.getLogger(__name__)

#: At most this many letters are appended together.
AT_ONCE = 64
#: A set of letters that are appended together is complete when it has this many bytes. This is far
#: less than the limit of bytes in flight, so publishes leave room for the letters.
AT_ONCE_BYTES = 4 * 1024 * 1024
#: Why a letter is given up.
_REASONS = {
    "no-topic": "the group keeps no dead letters any more",
    "unreadable": "the message cannot be read any more",
    "too-large": "with its properties the message is larger than a segment",
}
#: How long to wait before a retry.
RETRY_S = 1.0
#: A change of a group that would lose waiting dead letters first waits until they are appended. If
#: that takes longer than this, the change fails.
DRAIN_TIMEOUT_S = 5.0


class DeadLetters:
    """The dead letters of one group that are not appended yet."""

    def __init__(
        self,
        record: GroupRecord,
        core: Group,
        store: MessageStore,
        flow: ReceiveFlow,
        counters: GroupCounters,
        key: bytes,
        after_change: Callable[[], None],
    ) -> None:
        """`after_change` is called after each change of the core."""
        self.record = record
        """The group's record, with the name of the dead-letter topic."""
        self._core = core
        self._store = store
        self._flow = flow
        self._counters = counters
        self._key = key
        self._after_change = after_change
        self._task: asyncio.Task[None] | None = None
        self._waiting: deque[DeadLetter] = deque()
        #: The number of waiting letters of each source topic.
        self._counts: Counter[int] = Counter()
        self._next_marks = asyncio.Event()

    def add(self, letters: Sequence[DeadLetter]) -> None:
        """Append these letters after those that wait already. The letters that still wait at `stop`
        are appended after the next start."""
        self._waiting += letters
        self._counts.update(letter.queue[0] for letter in letters)
        if self._task is None:
            self._task = asyncio.create_task(self._append_all(), name="dead-letters")

    async def stop(self) -> None:
        """Stop appending. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    @property
    def has_waiting(self) -> bool:
        """Whether letters wait to be appended."""
        return bool(self._waiting)

    async def wait_for_queues(self, queues: Collection[QueueKey]) -> None:
        """Wait until no message of these queues is dying. This still holds at the return, because
        no other code runs after the last check. Raises StateUnavailable after `DRAIN_TIMEOUT_S`
        seconds."""
        await self._wait_while(lambda: any(self._dying(queue) for queue in queues))

    async def wait_for_topics(self, topic_ids: Collection[int] | None) -> None:
        """Wait until no letter of these topics is waiting; if `topic_ids` is None, of any topic.
        This still holds at the return, because no other code runs after the last check. Raises
        StateUnavailable after `DRAIN_TIMEOUT_S` seconds."""
        counts = self._counts
        await self._wait_while(
            lambda: any(counts.values()) if topic_ids is None else any(counts[t] for t in topic_ids)
        )

    async def _append_all(self) -> None:
        while self._waiting:
            pause_s = await self._append_some()
            self._after_change()
            if pause_s:
                await asyncio.sleep(pause_s)
        self._task = None

    async def _append_some(self) -> float:
        """Append the first letters, and mark their messages as dead. Return how many seconds to
        wait before the next call."""
        letters = list(islice(self._waiting, AT_ONCE))
        try:
            done, later = await self._append(letters)
        except (StoreError, LogError, OSError) as error:
            self._warn_of_retry(error)
            return RETRY_S
        for _ in range(done + len(later)):
            self._counts[self._waiting.popleft().queue[0]] -= 1
        self._waiting += later
        self._counts.update(letter.queue[0] for letter in later)
        self._wake()
        return RETRY_S if later and not done else 0.0

    async def _wait_while(self, is_waiting: Callable[[], bool]) -> None:
        try:
            async with asyncio.timeout(DRAIN_TIMEOUT_S):
                while is_waiting():
                    await self._next_marks.wait()
        except TimeoutError:
            raise StateUnavailable(
                "dead letters of these queues are not appended to the log yet; try again later"
            ) from None

    def _wake(self) -> None:
        """Wake the callers of `_wait_while`."""
        self._next_marks.set()
        self._next_marks = asyncio.Event()

    async def _append(self, letters: Sequence[DeadLetter]) -> tuple[int, list[DeadLetter]]:
        """Append letters from the beginning of `letters`, as many as AT_ONCE_BYTES allows. Return
        how many letters are finished (appended or given up), and a list of the letters whose
        messages could not be read. The remaining letters at the end of `letters` were not tried."""
        topic = await self._topic()
        kept: list[tuple[DeadLetter, Rows]] = []
        later: list[DeadLetter] = []
        done = size_bytes = 0
        for letter in letters:
            if size_bytes >= AT_ONCE_BYTES:
                break
            batch = None
            if topic is not None and self._is_dying(letter):
                try:
                    batch = await self._flow.batch(letter.queue, letter.offset)
                except (StoreError, OSError) as error:
                    self._warn_of_retry(error)
                    later.append(letter)
                    continue
            done += 1
            if not self._is_dying(letter):  # topic deleted, or message removed by retention
                self._give_up(letter, "unreadable")
            elif topic is None:
                self._give_up(letter, "no-topic")
            elif batch is None:
                self._give_up(letter, "unreadable")
            else:
                kept.append((letter, self._rows(letter, batch, topic)))
                size_bytes += kept[-1][1].total_size
        if topic is not None and kept:
            await self._publish(topic, kept)
        return done, later

    async def _publish(self, topic: Topic, letters: Sequence[tuple[DeadLetter, Rows]]) -> None:
        """Append letters and mark their messages as dead; give up letters that are too large."""
        try:
            rows = [each for _, each in letters]
            published = await self._store.publishing.publish(topic, rows, durability="fsync")
        except BatchTooLarge as error:
            limit = error.limit
            for letter, each in letters:
                if each.total_size > limit:
                    self._give_up(letter, "too-large")
            fitting = [each for each in letters if each[1].total_size <= limit]
            if fitting:
                await self._publish(topic, fitting)
            return
        for (letter, _), place in zip(letters, published, strict=True):
            self._mark_dead(letter, place.base_offset)

    def _mark_dead(self, letter: DeadLetter, position: int) -> bool:
        is_marked = self._core.record_dead_letter(letter.queue, letter.offset, position)
        self._counters.dead_letters_total += is_marked
        return is_marked

    def _give_up(self, letter: DeadLetter, reason: str) -> None:
        """Log that a letter is given up. Mark its message as dead if the group still has it."""
        self._mark_dead(letter, NOT_KEPT)
        self._counters.letters_not_kept_total[reason] += 1
        _logger.warning(
            "the dead letter of offset %d, queue %d, topic %d in group %r is not kept: %s",
            letter.offset,
            letter.queue[1],
            letter.queue[0],
            self.record.name,
            _REASONS[reason],
        )

    def _warn_of_retry(self, error: Exception) -> None:
        _logger.warning(
            "%d dead letters of %r could not be appended and are retried: %s",
            len(self._waiting),
            self.record.name,
            error,
        )

    def _is_dying(self, letter: DeadLetter) -> bool:
        return letter.offset in self._dying(letter.queue)

    def _dying(self, queue: QueueKey) -> Collection[int]:
        """Return the offsets of a queue that are dying."""
        topic = self._core.topics.get(queue[0])
        lane = None if topic is None else topic.lanes.get(queue[1])
        return () if lane is None else lane.cursor.dying

    async def _topic(self) -> Topic | None:
        name = self.record.dead_letter_topic
        if name is None:
            return None
        try:
            return self._store.table.get(name)
        except UnknownTopic:
            topic, _ = await self._store.topics.create(name, queues=1)
            return topic

    def _rows(self, letter: DeadLetter, batch: Batch, topic: Topic) -> Rows:
        """Return the record of a letter: the original message, and properties that describe why
        it became a dead letter."""
        row = letter.offset - batch.header.base_offset
        source = self._store.table.by_id(letter.queue[0])
        key = batch.key(row)
        index = 0 if key is None else queue_for_key(key, topic.queues_per_level)
        lane = self._core.topics[letter.queue[0]].lanes[letter.queue[1]]
        attempts = lane.cursor.attempts.get(letter.offset)
        return Rows(
            queue_id=queue_of(index, None, topic.priority_levels),
            bodies=[batch.body(row)],
            born_timestamp_us=batch.born_timestamp_us(row),
            keys=[key],
            tags=[batch.tag(row)],
            properties=[
                {
                    **batch.properties(row),
                    **letter_properties(
                        topic=str(letter.queue[0]) if source is None else source.name,
                        queue=letter.queue[1],
                        offset=letter.offset,
                        reason=_reason_of(letter),
                        attempts=1 if attempts is None else attempts.acquisitions,
                        group=self.record.name,
                    ),
                }
            ],
            producer_id=keyed_producer_id(self._key, "dead-letter", letter.letter_id),
            producer_epoch=BROKER_EPOCH,
            envelopes=[batch.envelope(row)],
        )


def _reason_of(letter: DeadLetter) -> str:
    if not letter.is_rejected:
        return "max-attempts"
    return letter.reason or "rejected"
