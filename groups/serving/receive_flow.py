"""The way of a receive: the request waits, its reply is filled, and the reply becomes deliveries.

The core adds messages to a reply, a bounded number in each event loop iteration. If it needs data
that is not in memory, it returns the queue and offset to read. While a reply is empty, all these
reads are done. Once a reply has messages, their leases are running, so the reply waits for reads
only a short time. A complete reply becomes deliveries, with the batch and the receipt of each
message. On the event loop; reader threads do the reads.
"""

import asyncio
import logging
from collections import deque
from collections.abc import AsyncIterator, Generator, Iterable, Sequence
from contextlib import suppress
from math import inf
from time import monotonic
from typing import Any

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.core.group import Group
from holdfast.groups.core.receipts import Receipt, ReceiptCodec
from holdfast.groups.core.receiving import continue_reply, receive, serve
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage, Waiter
from holdfast.groups.descriptions import ServedReply
from holdfast.groups.errors import GroupError
from holdfast.groups.service_types import Delivery
from holdfast.groups.serving.clock import GroupClock
from holdfast.groups.serving.head_source import FETCH_BYTES, StoreHeads

_logger = logging.getLogger(__name__)

#: One request waits for at most this many reads. If it has no messages then, its answer is empty,
#: and the next request continues with the reads.
MAX_FETCHES = 32
#: A reply with messages waits at most this long for more: a quarter of the shortest lease.
MAX_FILL_S = 0.25
#: For a reply that already has messages, one read returns at most this many bytes.
MAX_FILL_BYTES = 4 * 1024 * 1024
#: A message is read at most this many times. Usually it is in memory after one read.
MAX_READS = 3
#: At most this many deliveries are made in one event loop iteration. This takes about five
#: milliseconds, most of it for the receipts.
MESSAGES_A_TURN = 1000
#: At most this many requests are answered at their deadline in one event loop iteration.
EXPIRY_SLICE = 64
#: The delivery rate is the average over this time, counted in steps of a second.
RATE_WINDOW_S = 60

Answer = Reply | GroupError | StoreError | None


class Ticket(asyncio.Future[Answer]):
    """The future that a waiting request awaits. If the future is cancelled, it removes the request
    from the core immediately, so that no message is leased to the request any more."""

    __slots__ = ("_core", "waiter")

    def __init__(self, core: Group) -> None:
        super().__init__()
        self._core = core
        self.waiter: Waiter | None = None
        """The request in the core, while it waits; otherwise None."""

    def cancel(self, msg: Any | None = None) -> bool:
        """Cancel the request. Return False if it was answered or cancelled before."""
        is_cancelled = super().cancel(msg)
        if is_cancelled and self.waiter is not None:
            self._core.waiters.remove(self.waiter)
        return is_cancelled

    def take_answer(self) -> Reply | None:
        """Return the answer, once the future is done; None if none came in time. Raises GroupError,
        StoreError."""
        self.waiter = None  # break the reference cycle
        answer = self.result()
        if isinstance(answer, Exception):
            raise answer
        return answer

    def abandon(self) -> list[SelectedMessage]:
        """Cancel the request. Return the messages that were leased to it in this same event loop
        iteration."""
        is_cancelled = self.cancel() or self.cancelled()
        self.waiter = None  # break the reference cycle
        if is_cancelled:
            return []
        answer = self.result()
        return answer.messages if isinstance(answer, Reply) else []

    def answer(self, answer: Answer) -> bool:
        """Answer the request. Return False if it was answered or cancelled before."""
        if self.done():
            return False
        self.set_result(answer)
        return True


class Waiting:
    """Requests of one group that wait for messages. The core holds them; this class answers them.

    Each request ends exactly once: it is answered with messages, or without messages at its
    deadline, or with an error when the group ends, or it is cancelled.
    """

    def __init__(self, core: Group, clock: GroupClock) -> None:
        self._core = core
        self._clock = clock
        self._expired: deque[Ticket] = deque()

    def park(self, request: ReceiveRequest, wait_s: float, *, has_looked: bool) -> Ticket:
        """Hold a request. The caller must then call `serve`, and wait for the answer: the result of
        the ticket.

        Set `has_looked` if the caller has looked for messages in this same event loop iteration and
        found none. Then there is no need to look again: no message can have arrived in between.
        """
        ticket = Ticket(self._core)
        now_ms = self._clock.last_ms
        deadline_ms = None if wait_s == inf else now_ms + round(wait_s * 1000)
        ticket.waiter = self._core.park(request, ticket, now_ms, deadline_ms, has_looked=has_looked)
        return ticket

    def serve(self) -> tuple[int, tuple[QueueKey, int] | None]:
        """Answer the requests that can get messages now; return how many. Also return the queue and
        offset that must be read before more requests can be answered; None if there is none."""
        answered = 0
        for waiter, answer in serve(self._core, self._clock.now_ms()):
            if isinstance(answer, Reply) and not answer.is_answer:
                assert answer.needs is not None
                return answered, answer.needs
            answered += 1
            is_answered = _ticket_of(waiter).answer(answer)
            assert is_answered  # cancelled requests have left the core
        return answered, None

    def expire(self, waiters: Iterable[Waiter]) -> None:
        """Answer these requests without messages, EXPIRY_SLICE in each event loop iteration."""
        is_scheduled = bool(self._expired)
        self._expired += map(_ticket_of, waiters)
        if not is_scheduled:
            self._answer_expired()

    def end(self, waiters: Iterable[Waiter], why: GroupError | StoreError | None = None) -> None:
        """Answer these requests with the error `why`; if it is None, without messages."""
        for waiter in waiters:
            _ticket_of(waiter).answer(why)

    def drain(self, why: GroupError | StoreError) -> None:
        """Answer every waiting request with the error `why`."""
        waiters = list(self._core.waiters)
        for waiter in waiters:
            self._core.waiters.remove(waiter)
        self.end(waiters, why)
        while self._expired:
            self._expired.popleft().answer(None)

    def _answer_expired(self) -> None:
        for _ in range(min(EXPIRY_SLICE, len(self._expired))):
            self._expired.popleft().answer(None)
        if self._expired:
            asyncio.get_running_loop().call_soon(self._answer_expired)


def _ticket_of(waiter: Waiter) -> Ticket:
    assert isinstance(waiter.ticket, Ticket)
    return waiter.ticket


class ReceiveFlow:
    """Fills the replies of one group. Its iterators yield after each change of the core; the caller
    must act on the change before it continues."""

    def __init__(
        self, core: Group, source: StoreHeads, clock: GroupClock, codec: ReceiptCodec
    ) -> None:
        self._core = core
        self._source = source
        self._clock = clock
        self._codec = codec
        self._is_stopping = False

    def stop(self) -> None:
        """Add no more messages to replies that already have some."""
        self._is_stopping = True

    async def start_reply(self, request: ReceiveRequest) -> AsyncIterator[Reply]:
        """Yield replies with the messages that are available now. Each reply replaces the reply
        before it, so the caller sends the last one. If a reply is empty because the core needs a
        read, do the read and try again. Raises GroupError, StoreError."""
        for _ in range(MAX_FETCHES):
            reply = receive(self._core, request, self._clock.now_ms())
            yield reply
            if reply.is_answer or reply.needs is None:
                break
            await self._source.fetch(*reply.needs)

    def is_filled(self, reply: Reply, request: ReceiveRequest) -> bool:
        """Return whether `fill_reply` adds nothing to a reply."""
        if not reply.messages or self._is_stopping or not (reply.is_cut or reply.needs):
            return True
        return len(reply.messages) >= request.max_messages or reply.size_bytes >= request.max_bytes

    async def fill_reply(self, reply: Reply, request: ReceiveRequest) -> AsyncIterator[Reply]:
        """Add more messages to a reply that has some. If a read fails, add no more; the next
        request gets the error. If the call is cancelled, the reply keeps the messages that it
        has."""
        until_s = monotonic() + MAX_FILL_S
        fetches = 0
        while not self.is_filled(reply, request):
            if reply.is_cut:
                await asyncio.sleep(0)
            else:
                if fetches == MAX_FETCHES or monotonic() >= until_s:
                    return
                assert reply.needs is not None
                fetches += 1
                left_bytes = min(request.max_bytes - reply.size_bytes, MAX_FILL_BYTES)
                try:
                    await self._source.fetch(*reply.needs, max_bytes=max(left_bytes, FETCH_BYTES))
                except (StoreError, OSError) as error:
                    _logger.warning(
                        "a reply ends before %s, which cannot be read: %s", reply.needs, error
                    )
                    return
            continue_reply(self._core, reply, request, self._clock.now_ms())
            yield reply

    def deliveries_in_memory(
        self, messages: Sequence[SelectedMessage], *, receipt_values: bool = False
    ) -> list[Delivery] | None:
        """Return what `deliveries` returns, if all messages can be read, are in memory, and are few
        enough for one event loop iteration. Otherwise return None."""
        deliveries: list[Delivery] = []
        unreadable: list[SelectedMessage] = []
        making = self._make_deliveries(
            messages, deliveries, unreadable, receipt_values=receipt_values
        )
        for _ in making:
            return None
        return None if unreadable else deliveries

    async def deliveries(
        self, messages: Sequence[SelectedMessage], *, receipt_values: bool = False
    ) -> tuple[list[Delivery], list[SelectedMessage]]:
        """Return a delivery for each message, in order, and the messages that cannot be read
        any more. Many messages take several event loop iterations. If `receipt_values` is true,
        the receipts stay values; otherwise they become texts."""
        deliveries: list[Delivery] = []
        unreadable: list[SelectedMessage] = []
        making = self._make_deliveries(
            messages, deliveries, unreadable, receipt_values=receipt_values
        )
        found: Batch | None = None
        with suppress(StopIteration):
            while True:
                needed, found = making.send(found), None
                if needed is None:
                    await asyncio.sleep(0)
                else:
                    found = await self.batch(*needed)
        return deliveries, unreadable

    def _make_deliveries(
        self,
        messages: Sequence[SelectedMessage],
        deliveries: list[Delivery],
        unreadable: list[SelectedMessage],
        *,
        receipt_values: bool,
    ) -> Generator[tuple[QueueKey, int] | None, Batch | None, None]:
        """Add each delivery to `deliveries`, or its message to `unreadable`. Yield the
        queue and offset of each batch that is not in memory; the caller sends the batch, or None if
        it does not exist any more. Yield None if the rest is for the next event loop iteration."""
        queue: QueueKey = (-1, -1)
        topic: Topic | None = None
        batch: Batch | None = None
        base = end = 0
        encode = self._codec.encode
        for number, message in enumerate(messages, 1):
            if number % MESSAGES_A_TURN == 0:
                yield None
            offset = message.offset
            if message.queue != queue or not base <= offset < end:
                queue = message.queue
                topic = self._source.topic_by_id(queue[0])
                batch = None if topic is None else self._source.batch(queue, offset)
                if topic is not None and batch is None:
                    batch = yield queue, offset
                base, end = 0, 0
                if batch is not None:
                    base = batch.header.base_offset
                    end = base + len(batch)
            if topic is None or batch is None:
                unreadable.append(message)
                continue
            receipt: str | Receipt | None = message.receipt
            if isinstance(receipt, Receipt) and not receipt_values:
                receipt = encode(receipt)
            deliveries.append(
                Delivery(
                    *(topic, queue[1], offset, batch, offset - base, receipt),
                    *(message.attempt, message.redelivered, message.failures),
                )
            )

    async def batch(self, queue: QueueKey, offset: int) -> Batch | None:
        """Return the batch that contains an offset, from memory or from the disk; None if it does
        not exist any more. Raises OSError and StoreError if a read fails."""
        for _ in range(MAX_READS):
            batch = self._source.batch(queue, offset) or await self._source.fetch(queue, offset)
            if batch is not None:
                return batch
        return self._source.batch(queue, offset)


class DeliveryRate:
    """The deliveries of one queue of a group. `began_ms` is the time when counting began."""

    def __init__(self, began_ms: int) -> None:
        self._began_ms = began_ms
        self._count = 0
        self._bytes = 0
        #: (second, messages delivered in it), the oldest first.
        self._seconds: deque[list[int]] = deque()

    def add(self, count: int, size_bytes: int, now_ms: int) -> None:
        """Count messages that are delivered now."""
        self._count += count
        self._bytes += size_bytes
        second = now_ms // 1000
        if self._seconds and self._seconds[-1][0] == second:
            self._seconds[-1][1] += count
        else:
            self._forget(second)
            self._seconds.append([second, count])

    def read(self, now_ms: int) -> ServedReply:
        """Return the counts, and the rate in messages per second."""
        self._forget(now_ms // 1000)
        over_s = min(RATE_WINDOW_S, max(1.0, (now_ms - self._began_ms) / 1000))
        rate = sum(count for _, count in self._seconds) / over_s
        return ServedReply(self._count, self._bytes, round(rate, 3))

    def _forget(self, second: int) -> None:
        while self._seconds and self._seconds[0][0] <= second - RATE_WINDOW_S:
            self._seconds.popleft()
