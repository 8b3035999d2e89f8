"""A group's offsets on one topic, stored by one consumer: every store is a compare-and-swap.

A store fails if another consumer has changed the offsets of the group on the topic. (If the other
consumer has stored equal values by chance, the conflict is only detected after its next store.) A
store whose reply was lost must not look like a change by another consumer. So the offsets that it
may have stored are remembered, and recognized later.
"""

from collections.abc import Mapping

import msgspec

from holdfast.client.errors import OffsetsChanged, UnknownGroup
from holdfast.client.read.message import StoredOffsets
from holdfast.client.transport.requests import JSON, Reply, Transport

#: The ETag while no offset is stored.
NOTHING_STORED = '"0"'


class _Offsets(msgspec.Struct):
    """The body of the requests and replies about offsets."""

    offsets: dict[int, int]


class GroupOffsets:
    """The offsets of `group` on `topic`, as this consumer last read or stored them. Call one method
    at a time."""

    def __init__(self, group: str, topic: str) -> None:
        self._group = group
        self._topic = topic
        self._known = StoredOffsets({}, NOTHING_STORED)
        self._maybe_stored: list[Mapping[int, int]] = []
        """The offsets in store requests that have got no reply since `_known` was set. Any one of
        these requests may have been executed."""

    async def load(self, transport: Transport) -> dict[int, int]:
        """Return the stored offsets; empty for a group or topic without offsets."""
        try:
            self._known = await read_offsets(transport, self._group, self._topic)
        except UnknownGroup:
            self._known = StoredOffsets({}, NOTHING_STORED)
        return self._known.offsets

    async def store(self, transport: Transport, offsets: Mapping[int, int]) -> None:
        """Store the offsets that differ from the stored ones.

        Raises OffsetsChanged when another consumer has stored offsets since. After any other
        error, and when cancelled, it is unknown whether these offsets are stored; the next store
        resolves that.
        """
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._known.offsets.get(queue) != offset
        }
        if not changed:
            return
        try:
            await self._compare_and_store(transport, changed)
        except OffsetsChanged:
            now = await read_offsets(transport, self._group, self._topic)
            # The change may be our own: of an earlier store whose reply was lost, or of an earlier
            # attempt of this store.
            before = self._known.offsets
            tries = (*self._maybe_stored, changed)
            if not any(now.offsets == {**before, **tried} for tried in tries):
                raise
            self._known, self._maybe_stored = now, []
            await self._compare_and_store(transport, changed)

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
    """Return a group's stored offsets on a topic. Raises UnknownGroup if the group has stored no
    offset of any topic."""
    return _decode(await transport.request("GET", _path(group, topic)))


async def write_offsets(
    transport: Transport,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    if_match: str | None,
) -> StoredOffsets:
    """Store offsets and return all that are then stored; other queues keep their offsets. With
    `if_match`, raise OffsetsChanged if the stored offsets no longer have this etag."""
    headers = {"Content-Type": JSON}
    if if_match is not None:
        headers["If-Match"] = if_match
    body = msgspec.json.encode(_Offsets(dict(offsets)))
    return _decode(await transport.request("PUT", _path(group, topic), headers=headers, body=body))


def _decode(reply: Reply) -> StoredOffsets:
    return StoredOffsets(reply.json(_Offsets).offsets, reply.header("ETag"))


def _path(group: str, topic: str) -> str:
    return f"/v1/groups/{group}/topics/{topic}/offsets"
