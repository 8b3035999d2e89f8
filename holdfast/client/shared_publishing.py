"""Publishes of an event loop's many callers, in requests that they share: the shell of Lane.

Each caller gets what a request of his own would bring him. A request that is refused for what may
be one message's fault is halved until that message stands alone. One that fails in a way that
passes is sent again as it was, for as long as each caller's own time allows, and meanwhile nobody
else waits for it.
"""

import asyncio
import copy
from collections.abc import Iterable, Sequence

from holdfast.client.errors import ApiError, ClientClosed, HoldfastError, UnknownQueue
from holdfast.client.lane import Lane, Waiting
from holdfast.client.message import PublishResult
from holdfast.client.new_message import NewMessage, may_share
from holdfast.client.publishing import PublishRequest, publish_alone
from holdfast.client.requests import Requests
from holdfast.client.retry import ONCE, RetryPolicy
from holdfast.client.sender import IdentityPool, ProducerIdentity


class SharedPublishing:
    """The publishes of one client. Belongs to its event loop; made without one."""

    def __init__(self, transport: Requests, identities: IdentityPool, retry: RetryPolicy) -> None:
        self._transport = transport
        self._identities = identities
        self._retry = retry
        self._lanes: dict[tuple[str, str | None], Lane] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_closed = False

    async def publish(
        self, topic: str, durability: str | None, message: NewMessage
    ) -> PublishResult:
        """Publish a message and return its result. Raises what a request raises.

        Cancelling takes the message back if it waits still; what is under way goes on as long as
        anybody waits for a part of it.
        """
        encoded = message.encode()
        if not may_share(message, len(encoded)):
            return await publish_alone(
                self._transport, self._identities, topic, durability, encoded
            )
        if self._is_closed:
            raise ClientClosed
        lane = self._lanes.get((topic, durability))
        if lane is None:
            lane = self._lanes[topic, durability] = Lane(topic, durability)
        outcome = asyncio.get_running_loop().create_future()
        waiting = Waiting(encoded, self._transport.now_s(), outcome)
        lane.join(waiting)
        self._go_on(lane)
        try:
            result: PublishResult = await outcome
        except asyncio.CancelledError:
            if waiting.request is None:
                lane.leave(waiting)
            else:
                waiting.request.caller_left()
            raise
        return result

    async def close(self) -> None:
        """End what waits and what is under way with ClientClosed. May be repeated."""
        self._is_closed = True
        for lane in self._lanes.values():
            _fail(lane.leave_all(), ClientClosed())
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _go_on(self, lane: Lane) -> None:
        """Begin the lane's next request if it is time for one; forget a lane that is empty.

        A request takes its messages in the loop's next pass: callers who were answered in this
        one may have others by then.
        """
        if lane.begins():
            task = asyncio.get_running_loop().create_task(self._run(lane))
            self._tasks.add(task)
            task.add_done_callback(self._tasks.discard)
        elif lane.is_empty and self._lanes.get(lane.key) is lane:
            del self._lanes[lane.key]

    async def _run(self, lane: Lane) -> None:
        request = _UnderWay(lane)
        # More may wait than one request takes.
        self._go_on(lane)
        try:
            await self._deliver(request, request.messages)
        except asyncio.CancelledError:
            _fail(request.messages, ClientClosed())
            raise
        finally:
            request.step_aside()
            self._go_on(lane)

    async def _deliver(self, request: "_UnderWay", messages: Sequence[Waiting]) -> None:
        """Deliver messages together, or else by halves, and tell their callers."""
        messages = _waited_for(messages)
        if not messages:
            return
        topic = request.lane.topic
        identity = self._identities.take(topic)
        try:
            results = await self._sent(request, messages, identity)
        except Exception as error:
            failure = error
        else:
            self._identities.give_back(topic, identity)
            for message, result in zip(messages, results, strict=True):
                if not message.outcome.done():
                    message.outcome.set_result(result)
            return
        if len(messages) > 1 and _may_be_ones_fault(failure):
            middle = len(messages) // 2
            await self._deliver(request, messages[:middle])
            await self._deliver(request, messages[middle:])
        else:
            _fail(messages, failure)

    async def _sent(
        self, request: "_UnderWay", messages: Sequence[Waiting], identity: ProducerIdentity
    ) -> list[PublishResult]:
        """Send messages together until they are answered, or nobody's time is left."""
        lane = request.lane
        sent = PublishRequest(lane.topic, lane.durability, [each.encoded for each in messages])
        tries = 0
        while True:
            try:
                return await sent.send(self._transport, identity, ONCE)
            except HoldfastError as error:
                request.step_aside()
                self._go_on(lane)
                tries += 1
                now_s = self._transport.now_s()
                newest_s = messages[-1].asked_at_s
                pause_s = self._retry.pause_s(error, tries, now_s - newest_s, safe=True)
                if pause_s is None:
                    raise
                next_s = now_s + pause_s
                late = [each for each in messages if self._retry.is_over(next_s - each.asked_at_s)]
                _fail(late, error)
            await self._transport.pause(pause_s)


class _UnderWay:
    """A request that a lane began, in the task that sends it."""

    def __init__(self, lane: Lane) -> None:
        self.lane = lane
        self.messages = lane.take()
        for message in self.messages:
            message.request = self
        self._task = asyncio.current_task()
        self._is_waited_for = True

    def step_aside(self) -> None:
        """Keep nobody waiting any more. May be repeated."""
        if self._is_waited_for:
            self._is_waited_for = False
            self.lane.ended()

    def caller_left(self) -> None:
        """End the request if it was the last one's."""
        if self._task is not None and not _waited_for(self.messages):
            self._task.cancel()


def _waited_for(messages: Iterable[Waiting]) -> list[Waiting]:
    return [message for message in messages if not message.outcome.done()]


def _fail(messages: Iterable[Waiting], error: Exception) -> None:
    """Tell callers why their messages failed: each an exception of his own to raise."""
    for message in _waited_for(messages):
        own = copy.copy(error)
        own.__cause__ = error.__cause__
        message.outcome.set_exception(own)


def _may_be_ones_fault(error: Exception) -> bool:
    """Return whether a request was refused, with nothing stored, for what one of its messages
    is, or for what all of them are together."""
    return isinstance(error, ApiError) and (
        error.status in (400, 413) or isinstance(error, UnknownQueue)
    )
