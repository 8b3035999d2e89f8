"""A group's offsets on one topic, moved by one consumer: every store is a compare-and-swap.

A rival that moves the same offsets is noticed (one that stores the very same offsets, at its
next store). A store whose reply was lost is not taken for a rival: what it may have left is
remembered, and known again.
"""

from collections.abc import Mapping

import msgspec

from holdfast.client.errors import HoldfastError, OffsetsChanged, UnknownGroup
from holdfast.client.message import StoredOffsets
from holdfast.client.reply import Reply
from holdfast.client.requests import JSON, Requests

#: The ETag of "nothing is stored yet".
NOTHING_STORED = '"0"'


class _Offsets(msgspec.Struct):
    """The body of both requests and both replies."""

    offsets: dict[int, int]


class GroupOffsets:
    """The offsets of `group` on `topic`, as this consumer knows them."""

    def __init__(self, transport: Requests, group: str, topic: str) -> None:
        self._transport = transport
        self._group = group
        self._topic = topic
        self._known = StoredOffsets({}, NOTHING_STORED)
        self._maybe_stored: list[Mapping[int, int]] = []
        """What was asked to be stored over what is known, without an answer: any one of them."""

    async def load(self) -> dict[int, int]:
        """Return what is stored; empty for a group or topic without offsets."""
        try:
            self._known = await read_offsets(self._transport, self._group, self._topic)
        except UnknownGroup:
            self._known = StoredOffsets({}, NOTHING_STORED)
        return self._known.offsets

    async def store(self, offsets: Mapping[int, int]) -> None:
        """Store offsets, as far as they differ from what is stored.

        Raises OffsetsChanged when another one stored offsets since. Any other error leaves it
        open whether these are stored; the next store settles that.
        """
        changed = {
            queue: offset
            for queue, offset in offsets.items()
            if self._known.offsets.get(queue) != offset
        }
        if not changed:
            return
        try:
            await self._swap(changed)
        except OffsetsChanged:
            now = await read_offsets(self._transport, self._group, self._topic)
            # What this consumer may have left: a store whose reply was lost, be it long ago, or an
            # earlier try of this one.
            before = self._known.offsets
            tries = (*self._maybe_stored, changed)
            if not any(now.offsets == {**before, **tried} for tried in tries):
                raise
            self._known, self._maybe_stored = now, []
            await self._swap(changed)

    async def _swap(self, changed: Mapping[int, int]) -> None:
        try:
            self._known = await write_offsets(
                self._transport, self._group, self._topic, changed, if_match=self._known.etag
            )
        except OffsetsChanged:
            raise
        except HoldfastError:  # no answer, or a gateway's: they may be stored
            if changed not in self._maybe_stored:
                self._maybe_stored.append(changed)
            raise
        self._maybe_stored = []


async def read_offsets(transport: Requests, group: str, topic: str) -> StoredOffsets:
    """Return a group's stored offsets on a topic. Raises UnknownGroup when it has none at all."""
    return _stored(await transport.request("GET", _path(group, topic)))


async def write_offsets(
    transport: Requests,
    group: str,
    topic: str,
    offsets: Mapping[int, int],
    *,
    if_match: str | None,
) -> StoredOffsets:
    """Store offsets beside those of other queues; with `if_match` only if nothing changed."""
    headers = {"Content-Type": JSON}
    if if_match is not None:
        headers["If-Match"] = if_match
    body = msgspec.json.encode(_Offsets(dict(offsets)))
    return _stored(await transport.request("PUT", _path(group, topic), headers=headers, body=body))


def _stored(reply: Reply) -> StoredOffsets:
    return StoredOffsets(reply.json(_Offsets).offsets, reply.header("ETag"))


def _path(group: str, topic: str) -> str:
    return f"/v1/groups/{group}/topics/{topic}/offsets"
