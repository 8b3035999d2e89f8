"""Appends a group's dead letters to their topic, each once. On the event loop.

    taken from the core -> read -> appended, durable -> marked as dead -> committed

A crash in between appends it again at the next start. Each letter has a producer id of its own,
made of what it is a letter of: the log knows it then, and answers with the one that it has.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Collection, Iterable, Sequence
from hashlib import blake2b
from itertools import islice

from holdfast.commitlog.batch import Batch, queue_for_key
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.priority import queue_of
from holdfast.commitlog.rows import Rows
from holdfast.consumequeue.errors import StateUnavailable, StoreError, UnknownTopic
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.counters import Counters
from holdfast.groups.delivering import Delivering
from holdfast.groups.group import Group
from holdfast.groups.lane import DeadLetter
from holdfast.groups.rows import NOT_KEPT

_logger = logging.getLogger(__name__)

#: Letters that are appended together, and their bytes but for those of the last: far fewer than may
#: be in flight, so that they find room beside others' publishes.
AT_ONCE = 64
AT_ONCE_BYTES = 4 * 1024 * 1024
#: How long to wait when the log takes none.
RETRY_S = 1.0
#: How long a change that would forget letters on their way waits for them.
GONE_S = 5.0


class DeadLetters:
    """The way of one group's dead letters. `marked` is called when some are to be committed."""

    def __init__(
        self,
        group_name: str,
        group: Group,
        store: MessageStore,
        delivering: Delivering,
        counters: Counters,
        marked: Callable[[], None],
    ) -> None:
        self._group_name = group_name
        self._group = group
        self._store = store
        self._delivering = delivering
        self._counters = counters
        self._marked = marked
        self.topic_name: str | None = None
        """Where they go; None: nowhere any more."""
        self._waiting: deque[DeadLetter] = deque()
        self._task: asyncio.Task[None] | None = None
        self._next_marks = asyncio.Event()

    def send(self, letters: Iterable[DeadLetter]) -> None:
        """Append letters, one after another."""
        self._waiting += letters
        if self._waiting and self._task is None:
            self._task = asyncio.create_task(self._run(), name="dead-letters")

    async def have_gone(self, queues: Collection[QueueKey]) -> None:
        """Return in the turn in which nothing of these queues is on its way. Raises
        StateUnavailable when something still is after `GONE_S` seconds."""
        try:
            async with asyncio.timeout(GONE_S):
                while any(self._dying(queue) for queue in queues):
                    await self._next_marks.wait()
        except TimeoutError:
            raise StateUnavailable(
                "dead letters of these queues wait for the log to take them; try again later"
            ) from None

    async def stop(self) -> None:
        """Send no more; what was not marked is sent at the next start. May be called twice."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        while self._waiting:
            try:
                count = await self._append(list(islice(self._waiting, AT_ONCE)))
            except (StoreError, LogError, OSError) as error:
                _logger.warning(
                    "%d dead letters of %r are appended later: %s",
                    len(self._waiting),
                    self._group_name,
                    error,
                )
                await asyncio.sleep(RETRY_S)
            else:
                for _ in range(count):
                    self._waiting.popleft()
        self._task = None

    async def _append(self, letters: Sequence[DeadLetter]) -> int:
        """Append the first of these, as many as go together; return how many are done with."""
        topic = await self._topic()
        rows: list[Rows] = []
        kept: list[DeadLetter] = []
        count = size_bytes = 0
        for letter in letters:
            if size_bytes >= AT_ONCE_BYTES:
                break
            count += 1
            batch = None
            if topic is not None and self._is_dying(letter):
                batch = await self._delivering.batch(letter.queue, letter.offset)
            if topic is None or batch is None or not self._is_dying(letter):
                self._bury(letter, NOT_KEPT)  # one that goes nowhere any more is left alone
            else:
                kept.append(letter)
                rows.append(self._rows(letter, batch, topic))
                size_bytes += rows[-1].total_size
        if topic is not None and rows:
            published = await self._store.publish(topic, rows, durability="fsync")
            for letter, place in zip(kept, published, strict=True):
                self._bury(letter, place.base_offset)
        self._marked()
        self._next_marks.set()
        self._next_marks = asyncio.Event()
        return count

    def _bury(self, letter: DeadLetter, position: int) -> None:
        if self._group.dead_lettered(letter.queue, letter.offset, position):
            self._counters.dead_letters += 1
            if position == NOT_KEPT:
                _logger.warning(
                    "dead letter %s of %r is not kept: the message cannot be read, or the group "
                    "keeps none",
                    letter.letter_id,
                    self._group_name,
                )

    def _is_dying(self, letter: DeadLetter) -> bool:
        return letter.offset in self._dying(letter.queue)

    def _dying(self, queue: QueueKey) -> Collection[int]:
        """Return the messages of a queue that are on their way."""
        topic = self._group.topics.get(queue[0])
        lane = None if topic is None else topic.lanes.get(queue[1])
        return () if lane is None else lane.cursor.dying

    async def _topic(self) -> Topic | None:
        name = self.topic_name
        if name is None:
            return None
        try:
            return self._store.topic(name)
        except UnknownTopic:
            topic, _ = await self._store.create_topic(name, queues=1)
            return topic

    def _rows(self, letter: DeadLetter, batch: Batch, topic: Topic) -> Rows:
        """Return the record of a letter: the message as it was, and why it is here."""
        row = letter.offset - batch.header.base_offset
        source = self._store.topic_by_id(letter.queue[0])
        key = batch.key(row)
        index = 0 if key is None else queue_for_key(key, topic.queues_per_level)
        lane = self._group.topics[letter.queue[0]].lanes[letter.queue[1]]
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
                    "holdfast-dead-topic": str(letter.queue[0]) if source is None else source.name,
                    "holdfast-dead-queue": str(letter.queue[1]),
                    "holdfast-dead-offset": str(letter.offset),
                    "holdfast-dead-reason": "rejected" if letter.is_rejected else "max-attempts",
                    "holdfast-dead-attempts": str(1 if attempts is None else attempts.acquisitions),
                    "holdfast-dead-group": self._group_name,
                }
            ],
            producer_id=_producer_id(letter),
        )


def _producer_id(letter: DeadLetter) -> int:
    """Return a number that no other producer has, but by a chance of 2**-63."""
    digest = blake2b(letter.letter_id.encode(), digest_size=8).digest()
    return int.from_bytes(digest, "big") >> 1 or 1
