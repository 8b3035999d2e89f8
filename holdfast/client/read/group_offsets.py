"""A group's stored offsets on one topic, and the progress of the consumer that stores them.

Only one consumer may use a group that stores offsets. So every store is a compare-and-swap: it
fails if another consumer has changed the offsets. (If the other consumer has stored equal values by
chance, the conflict is only detected after its next store.) A store whose reply was lost must not
look like a change by another consumer. So this consumer remembers the offsets of such a store, and
recognizes them later.
"""

import logging
import threading
from collections.abc import Iterator, Mapping
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass
from functools import partial

import msgspec

from holdfast.client.errors import (
    ApiError,
    ClientClosed,
    HoldfastError,
    OffsetsChanged,
    UnknownGroup,
)
from holdfast.client.read.message import Message
from holdfast.client.read.pull import PullOptions, Start
from holdfast.client.read.results import StoredOffsets
from holdfast.client.read.sources import Range, SingleMessageSource, Source, TopicSource
from holdfast.client.transport.requests import JSON, Reply, Transport, check_name

_log = logging.getLogger("holdfast.client")

#: The ETag while no offset is stored.
NOTHING_STORED = '"0"'


@dataclass(frozen=True, slots=True, kw_only=True)
class OffsetConsumeOptions:
    """Options of an offset consumer; `Client.consume_by_offsets` documents each."""

    group: str
    topic: str
    start: str
    follow: bool
    commit_interval_ms: int
    pull: PullOptions


class OffsetCommitter:
    """Stores a consumer's progress in its group. The methods run over the given transport.

    `lock` is held during a commit, so that only one commit runs at a time.
    """

    def __init__(
        self, options: OffsetConsumeOptions, lock: AbstractAsyncContextManager[object]
    ) -> None:
        self.progress = OffsetProgress()
        self.interval_s = options.commit_interval_ms / 1000
        self._options = options
        self._lock = lock
        self._offsets = GroupOffsets(options.group, options.topic)

    def open_source(self, transport: Transport) -> Source[Range]:
        """Return the source of the consumer's messages, which starts at the stored offsets."""
        options = self._options
        source = TopicSource(
            transport,
            options.topic,
            Start(start=options.start),
            options.pull,
            options.follow,
            load_offsets=partial(self._offsets.load, transport),
        )
        return source if self.interval_s else SingleMessageSource(source)

    async def commit(self, transport: Transport) -> None:
        """Store the progress durably. Raises OffsetsChanged."""
        async with self._lock:
            try:
                await self._offsets.store(transport, self.progress.offsets())
            except ApiError as error:
                if not error.is_passing:
                    self.progress.failure = error
                raise

    async def commit_regularly(self, transport: Transport) -> None:
        """Store the progress at each interval, until the transport is closed or another consumer
        uses the group."""
        with suppress(ClientClosed):
            while self.progress.failure is None:
                await transport.pause(self.interval_s)
                try:
                    await self.commit(transport)
                except ClientClosed:
                    raise
                except HoldfastError as error:
                    _log.warning("storing offsets failed: %s", error)


class ThreadLock:
    """A threading.Lock as an asynchronous context manager. It is for coroutines over a blocking
    transport, which may block their threads."""

    def __init__(self) -> None:
        self._lock = threading.Lock()

    async def __aenter__(self) -> None:
        self._lock.acquire()

    async def __aexit__(self, *_: object) -> None:
        self._lock.release()


class OffsetProgress:
    """A consumer's progress. The iterating code writes it; the committing code reads it.

    The *current* message was returned to the caller, who has not asked for the next one yet.
    """

    def __init__(self) -> None:
        self._next_offsets: dict[int, int] = {}
        self._current: Message | None = None
        #: Set if another consumer uses the group: the error to raise. Then this consumer must not
        #: return messages or store offsets any more.
        self.failure: Exception | None = None

    def track(self, fetched: Range) -> Iterator[Message]:
        """Yield a range's messages. A message counts as processed when the caller asks for the next
        one."""
        for part in fetched.parts:
            message = None
            for message in part:
                if self.failure is not None:
                    raise self.failure
                self._current = message
                yield message
            if message is not None:
                self._next_offsets[part.queue] = message.offset + 1
            self._current = None
        # The next offset may be higher, because a filter can leave out the last messages.
        self._next_offsets.update(fetched.next_offsets)

    def finish_current(self) -> None:
        """Record that the current message is processed."""
        current = self._current
        if current is not None:
            self._next_offsets[current.queue] = current.offset + 1
            self._current = None

    def offsets(self) -> dict[int, int]:
        """Return the offsets to store. A queue's offset is that of the current message if the
        current message is in this queue, otherwise the offset after the last processed message."""
        offsets = dict(self._next_offsets)
        current = self._current
        if current is not None:
            offsets[current.queue] = current.offset
        return offsets


class GroupOffsets:
    """The offsets of `group` on `topic`, as this consumer last loaded or stored them. Call one
    method at a time."""

    def __init__(self, group: str, topic: str) -> None:
        self._group = group
        self._topic = topic
        self._known = StoredOffsets({}, NOTHING_STORED)
        #: The offsets of the store requests that got no reply since `_known` was set. Any one of
        #: these requests may have been executed.
        self._maybe_stored: list[Mapping[int, int]] = []

    async def load(self, transport: Transport) -> dict[int, int]:
        """Return the stored offsets; an empty dict for a group or topic without offsets."""
        try:
            self._known = await read_offsets(transport, self._group, self._topic)
        except UnknownGroup:
            self._known = StoredOffsets({}, NOTHING_STORED)
        return self._known.offsets

    async def store(self, transport: Transport, offsets: Mapping[int, int]) -> None:
        """Store the offsets that differ from the stored ones.

        Raises OffsetsChanged when another consumer has stored offsets since this consumer's last
        load or store. After any other error, and when cancelled, it is unknown whether these
        offsets are stored; the next store finds out.
        """
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._known.offsets.get(queue) != offset
        }
        if not changed:
            return
        while True:
            try:
                await self._compare_and_store(transport, changed)
            except OffsetsChanged:
                now = await read_offsets(transport, self._group, self._topic)
                # This consumer may have made the change: by an earlier store whose reply was lost,
                # or by an earlier attempt of this store. That can happen more than once.
                before = self._known.offsets
                tries = (*self._maybe_stored, changed)
                if not any(now.offsets == {**before, **tried} for tried in tries):
                    raise
                self._known, self._maybe_stored = now, []
            else:
                return

    async def _compare_and_store(self, transport: Transport, changed: Mapping[int, int]) -> None:
        try:
            self._known = await write_offsets(
                transport, self._group, self._topic, changed, if_match=self._known.etag
            )
        except OffsetsChanged:
            raise
        except BaseException:  # no reply, or cancelled or interrupted: the offsets may be stored
            if changed not in self._maybe_stored:
                self._maybe_stored.append(changed)
            raise
        self._maybe_stored = []


async def read_offsets(transport: Transport, group: str, topic: str) -> StoredOffsets:
    """Return a group's stored offsets on a topic. Raises UnknownGroup if no offset of the group is
    stored for any topic."""
    return _decode(await transport.request("GET", _offsets_path(group, topic)))


async def write_offsets(
    transport: Transport,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    if_match: str | None,
) -> StoredOffsets:
    """Store offsets; other queues keep their offsets. Return the stored offsets of all queues. With
    `if_match`, raise OffsetsChanged if the stored offsets no longer have this etag."""
    headers = {"Content-Type": JSON}
    if if_match is not None:
        headers["If-Match"] = if_match
    body = msgspec.json.encode(_Offsets(dict(offsets)))
    return _decode(
        await transport.request("PUT", _offsets_path(group, topic), headers=headers, body=body)
    )


class _Offsets(msgspec.Struct):
    """The body of the requests and replies about offsets."""

    offsets: dict[int, int]


def _decode(reply: Reply) -> StoredOffsets:
    return StoredOffsets(reply.json(_Offsets).offsets, reply.header("ETag"))


def _offsets_path(group: str, topic: str) -> str:
    group, topic = check_name("group", group), check_name("topic", topic)
    return f"/v1/groups/{group}/topics/{topic}/offsets"
