"""Shared publish requests: messages of concurrent callers on one event loop are sent together.

The messages for the next request wait in a PublishQueue (publish_queue.py), one queue per topic and
options. Each caller gets the result or error that a separate request would have. If the broker
refuses a request and one message may be the cause, the messages are sent again in two halves, until
that message is alone. After a transient failure the same request is repeated until the timeouts of
all its callers have ended; later messages do not wait for it.
"""

import asyncio
import copy
from collections.abc import Iterable, Sequence

from holdfast.client.errors import ApiError, ClientClosed, HoldfastError, UnknownQueue, Unroutable
from holdfast.client.produce.identities import IdentityPool, ProducerIdentity
from holdfast.client.produce.new_message import NewMessage, can_share_request
from holdfast.client.produce.publish_queue import PendingPublish, PublishOptions, PublishQueue
from holdfast.client.produce.publish_request import PublishRequest, publish_single
from holdfast.client.read.results import PublishResult
from holdfast.client.transport.requests import Transport
from holdfast.client.transport.retry import ONCE, RetryPolicy


class PublishCoalescer:
    """The publishes of one client. Belongs to one event loop; may be created before it runs."""

    def __init__(self, transport: Transport, identities: IdentityPool, retry: RetryPolicy) -> None:
        self._transport = transport
        self._identities = identities
        self._retry = retry
        self._queues: dict[tuple[str, PublishOptions], PublishQueue] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def publish(
        self, topic: str, options: PublishOptions, message: NewMessage
    ) -> PublishResult:
        """Publish a message and return its result. Raises the errors of a request with only this
        message.

        Cancelling removes a message that is still waiting. A request in flight continues as long
        as any of its callers waits.
        """
        encoded = message.encode()
        if not can_share_request(message, len(encoded)):
            return await publish_single(self._transport, self._identities, topic, options, encoded)
        if self._is_closed:
            raise ClientClosed
        queue = self._queues.get((topic, options))
        if queue is None:
            queue = self._queues[topic, options] = PublishQueue(topic, options)
        outcome = asyncio.get_running_loop().create_future()
        waiting = PendingPublish(encoded, self._transport.now_s(), outcome)
        queue.add(waiting)
        self._start_next_request(queue)
        try:
            result: PublishResult = await outcome
        except asyncio.CancelledError:
            if waiting.request is None:
                queue.remove(waiting)
            else:
                waiting.request.remove_caller()
            raise
        return result

    async def close(self) -> None:
        """End all waiting messages and requests with ClientClosed. May be repeated."""
        self._is_closed = True
        for queue in self._queues.values():
            _fail(queue.clear(), ClientClosed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _start_next_request(self, queue: PublishQueue) -> None:
        """Start the queue's next request if it is due; remove the queue if it is empty.

        The request takes its messages in the loop's next iteration: callers that get their results
        in this iteration may add messages before that.
        """
        if queue.start_request():
            task = asyncio.get_running_loop().create_task(self._run(queue))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif queue.is_empty and self._queues.get(queue.key) is queue:
            del self._queues[queue.key]

    async def _run(self, queue: PublishQueue) -> None:
        request = _SharedRequest(queue)
        # More messages may wait than fit into one request.
        self._start_next_request(queue)
        try:
            await self._deliver(request, request.messages)
        except asyncio.CancelledError:
            _fail(request.messages, ClientClosed())
            raise
        finally:
            request.unblock_queue()
            self._start_next_request(queue)

    async def _deliver(self, request: "_SharedRequest", messages: Sequence[PendingPublish]) -> None:
        """Send messages together and pass the results to the callers. If the broker refuses the
        request because of one message, send the messages in two halves."""
        messages = _find_waiting(messages)
        if not messages:
            return
        topic = request.queue.topic
        identity = self._identities.acquire(topic)
        try:
            results = await self._send(request, messages, identity)
        except Exception as error:
            failure = error
        else:
            self._identities.release(topic, identity)
            for message, result in zip(messages, results, strict=True):
                if not message.outcome.done():
                    message.outcome.set_result(result)
            return
        if len(messages) > 1 and _may_be_caused_by_one(failure):
            middle = len(messages) // 2
            await self._deliver(request, messages[:middle])
            await self._deliver(request, messages[middle:])
        else:
            _fail(messages, failure)

    async def _send(
        self,
        request: "_SharedRequest",
        messages: Sequence[PendingPublish],
        identity: ProducerIdentity,
    ) -> list[PublishResult]:
        """Send messages in one request, and repeat it until the broker answers. A caller whose
        timeout ends gets the error. When the last timeout ends, raise the error."""
        queue = request.queue
        sent = PublishRequest(queue.topic, queue.options, [each.encoded for each in messages])
        tries = 0
        while True:
            try:
                return await sent.send(self._transport, identity, ONCE)
            except HoldfastError as error:
                request.unblock_queue()
                self._start_next_request(queue)
                tries += 1
                now_s = self._transport.now_s()
                newest_s = messages[-1].asked_at_s
                pause_s = self._retry.pause_s(error, tries, now_s - newest_s, safe=True)
                if pause_s is None:
                    raise
                self._transport.retry_log.record_failure(error)
                next_s = now_s + pause_s
                late = [each for each in messages if self._retry.is_over(next_s - each.asked_at_s)]
                _fail(late, error)
            await self._transport.pause(pause_s)


class _SharedRequest:
    """A request with messages of a queue. Must be created in the task that sends it."""

    def __init__(self, queue: PublishQueue) -> None:
        self.queue = queue
        self.messages = queue.take_messages()
        for message in self.messages:
            message.request = self
        self._task = asyncio.current_task()
        self._blocks_queue = True

    def unblock_queue(self) -> None:
        """Allow the queue to start its next request before this one has ended. May be repeated."""
        if self._blocks_queue:
            self._blocks_queue = False
            self.queue.finish_request()

    def remove_caller(self) -> None:
        """Cancel the request if no caller waits for it any more."""
        if self._task is not None and not _find_waiting(self.messages):
            self._task.cancel()


def _find_waiting(messages: Iterable[PendingPublish]) -> list[PendingPublish]:
    return [message for message in messages if not message.outcome.done()]


def _fail(messages: Iterable[PendingPublish], error: Exception) -> None:
    """Raise an error in the callers of messages; each caller gets its own copy of it."""
    for message in _find_waiting(messages):
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        message.outcome.set_exception(own)


def _may_be_caused_by_one(error: Exception) -> bool:
    """Return whether the broker has refused a request because of one message or because of the
    total size, so that smaller requests may succeed. Then nothing was stored."""
    return isinstance(error, ApiError) and (
        error.status in (400, 413) or isinstance(error, (UnknownQueue, Unroutable))
    )
