"""Publishing: hand batches to the appender, and reply once the requested durability is reached.

All publishes of one event loop iteration go to the appender together, so that they can share a
batch and a write. A publish that is alone does not wait for others.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.commitlog.append.appender import Appender, AppendRequest
from holdfast.commitlog.errors import LogError, SyncTimeout
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.consumequeue.admission import PublishAdmission
from holdfast.consumequeue.errors import UnknownTopic
from holdfast.consumequeue.state.changes import complete_future
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, check_queue


@dataclass(slots=True)
class StoredBatch:
    """The place of one batch of a publish. `durable` is True if the batch was synced before the
    publish was acknowledged."""

    queue: int
    base_offset: int
    count: int
    durable: bool
    duplicate: bool
    store_timestamp_us: int


class Publisher:
    """Publishes to the log. Call every method on the event loop."""

    def __init__(
        self,
        table: TopicTable,
        appender: Appender,
        admission: PublishAdmission,
        *,
        timeout_ms: int,
    ) -> None:
        """`timeout_ms` is how long a publish waits for the disk."""
        self._timeout_ms = timeout_ms
        self._table = table
        self._appender = appender
        self._admission = admission
        self._loop = asyncio.get_running_loop()
        self._is_waking = False
        #: The publishes that wait, oldest first, each with its deadline. While any publish waits,
        #: one timer is set.
        self._waiting: dict[asyncio.Future[None], float] = {}
        self._timer: asyncio.TimerHandle | None = None

    async def publish(
        self,
        topic: Topic,
        batches: Sequence[Batch | Rows],
        *,
        durability: str | None = None,
        client: str = "",
        refusal: Exception | None = None,
    ) -> list[StoredBatch]:
        """Append messages that are checked and have a queue id. Return the place of each batch, in
        the order of `batches`.

        Return when `durability` ("fsync" or "written"; by default that of the topic) is reached
        and the messages can be read. Exception: if `durability` is "written" on a topic with
        "fsync", the messages can be read only later. Each new producer counts against the limit
        of `client`.

        If `refusal` is not None, raise it and store nothing. Exception: if an earlier try has
        stored all batches, the publish succeeds as a duplicate.

        Raises UnknownTopic (the topic has been deleted), UnknownQueue, or LogError. An alarm's
        error and SyncTimeout are LogErrors. Cancelling is safe. After SyncTimeout or after
        cancelling, the batches may still be stored.
        """
        if self._table.by_id(topic.topic_id) is None:
            raise UnknownTopic(topic.name)
        for batch in batches:
            check_queue(topic, batch.queue_id)
        durable = (durability or topic.config.durability) == "fsync"
        future: asyncio.Future[None] = self._loop.create_future()
        request = AppendRequest(
            topic.topic_id, batches, durable, context=future, client=client, refusal=refusal
        )
        self._admission.enter(request.size)
        try:
            self._appender.submit(request, wake=False)
        except LogError:
            self._admission.leave(request.size)
            raise
        if not self._is_waking:
            self._is_waking = True
            self._loop.call_soon(self._wake)
        self._wait_for(future)
        try:
            await future
        finally:
            self._waiting.pop(future, None)
        return [
            StoredBatch(
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

    def _wait_for(self, future: asyncio.Future[None]) -> None:
        self._waiting[future] = self._loop.time() + self._timeout_ms / 1000
        if self._timer is None:
            self._timer = self._loop.call_later(self._timeout_ms / 1000, self._expire)

    def _expire(self) -> None:
        """Fail the publishes that waited too long. They still count as in flight."""
        self._timer = None
        now_s = self._loop.time()
        for future, until_s in list(self._waiting.items()):
            if until_s > now_s:
                self._timer = self._loop.call_at(until_s, self._expire)
                return
            del self._waiting[future]
            complete_future(future, SyncTimeout(self._timeout_ms))

    def finish(self, requests: list[AppendRequest]) -> None:
        """Complete the publishes of these requests, which are stored or have failed."""
        for request in requests:
            if isinstance(request.context, asyncio.Future):
                self._admission.leave(request.size)
                complete_future(request.context, request.error)
