"""Publishing: hand batches to the appender, and answer once they are stored as asked.

All that one pass of the loop brings goes to the appender together: what came at the same time can
share a batch and a write, and whoever is alone waits for nobody.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.commitlog.appender import Appender, AppendRequest
from holdfast.commitlog.batch import Batch
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.rows import Rows
from holdfast.consumequeue.admission import Admission
from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.state_changes import settle
from holdfast.consumequeue.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, check_queue


@dataclass(slots=True)
class Published:
    """Where one batch of a publish is. `durable`: it was acknowledged after a sync."""

    queue: int
    base_offset: int
    count: int
    durable: bool
    duplicate: bool
    store_timestamp_us: int


class Publishing:
    """The way into the log. Every method is the event loop's."""

    def __init__(self, table: TopicTable, appender: Appender, admission: Admission) -> None:
        self._table = table
        self._appender = appender
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._is_waking = False

    async def publish(
        self, topic: Topic, batches: Sequence[Batch | Rows], *, durability: str | None = None
    ) -> list[Published]:
        """Append checked messages, whose queue ids are set; return where each one is, in order,
        once it can be read from there (unless it asks for less than its topic's durability).

        Acknowledged as `durability` says ("fsync" or "written"), else as the topic does. Raises
        UnknownTopic when it was deleted meanwhile, UnknownQueue, and the log's errors: those of
        an alarm too.
        Cancelling is safe: the batches may still be stored.
        """
        if self._table.by_id(topic.topic_id) is None:
            raise UnknownTopic(topic.name)
        for batch in batches:
            check_queue(topic, batch.queue_id)
        durable = (durability or topic.config.durability) == "fsync"
        future: asyncio.Future[None] = self._loop.create_future()
        request = AppendRequest(topic.topic_id, batches, durable, context=future)
        self._admission.enter(request.size)
        try:
            self._appender.submit(request, wake=False)
        except LogError:
            self._admission.leave(request.size)
            raise
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._wake)
        await future
        return [
            Published(
                result.queue_id,
                result.base_offset,
                result.message_count,
                durable,
                result.duplicate,
                result.store_timestamp_us,
            )
            for result in request.results
        ]

    def _wake(self) -> None:
        self._is_waking = False
        self._appender.wake()

    def finish(self, requests: list[AppendRequest]) -> None:
        """Answer those who published these requests: they are stored, or have failed."""
        for request in requests:
            if isinstance(request.context, asyncio.Future):
                self._admission.leave(request.size)
                settle(request.context, request.error)
