"""The newest message of each key in a queue, for groups that deliver only these messages. Pure.

A message is superseded if a later message of its queue has the same key. A LastValues reads the
keys of the queue, from the group's floor to the queue's end, and settles the superseded messages.
Whether a message is superseded depends only on the queue: not on filters, on times to live, or on
what happened to the later message. A superseded message that a member holds is settled when it
comes back.

The keys that all groups together keep in memory are limited (`KnownKeys`). If the limit is reached,
it is known only of the messages below some offset whether they are superseded; these are called
judged. When a later message is to be offered, the queue is
read again from that offset on (`extend`). So a message is never offered before all later messages
of its queue were examined, even if the keys do not fit into memory.
"""

from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from hashlib import blake2b

import msgspec

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.heads import Head, HeadSource, NeedsRead
from holdfast.groups.cursor.settled_offsets import CHUNK, SettledOffsets

#: One reading of a queue keeps at least this many keys, even if the limit is reached.
MIN_KEYS = 64
#: Of a longer key only a digest is kept, so that each key needs about the same memory. A digest has
#: one byte more, so that it differs from every short key.
LONGEST_KEY_BYTES = 64
#: For each new key and each settled message, this many keys are examined: if their newest message
#: is settled, they are dropped.
EXAMINED = 2


class KnownKeys(msgspec.Struct):
    """The number of keys that all groups together keep in memory, and its limit."""

    most: int = 1 << 62
    count: int = 0


class LastValues:
    """What one group knows about the keys of one queue."""

    def __init__(
        self,
        cursor: Cursor,
        queue: QueueKey,
        source: HeadSource,
        known_keys: KnownKeys,
        on_settled: Callable[[int], None],
    ) -> None:
        """`on_settled` is called with the offset of each superseded message that was settled,
        unless the message was never a candidate for a delivery."""
        self._cursor = cursor
        self._queue = queue
        self._source = source
        self._known_keys = known_keys
        self._on_settled = on_settled
        #: key -> the offset of its newest message below `_read_end`. A key may be missing if its
        #: newest message is settled.
        self._newest: OrderedDict[bytes, int] = OrderedDict()
        #: All keys below this offset were read.
        self._read_end = cursor.floor
        #: The first offset whose key did not fit into memory; None if there is none.
        self._unknown_from: int | None = None
        #: How many keys were added since the reading began.
        self._added_count = 0
        #: The superseded offsets that a member holds, or may hold since before a restart.
        self._held: set[int] = set()
        #: The offsets that were settled here, so that each is counted once.
        self._counted = SettledOffsets(cursor.floor)

    def __len__(self) -> int:
        """Return how many keys are in memory."""
        return len(self._newest)

    def catch_up(self) -> None:
        """Read the keys of the queue up to its end, and settle the superseded messages. Raises
        NeedsRead; then a repeated call continues."""
        cursor = self._cursor
        self._read_end = max(self._read_end, cursor.floor)
        while self._read_end < cursor.end:
            keys = self._source.keys(self._queue, self._read_end, cursor.end)
            if keys is None:
                raise NeedsRead(self._queue, self._read_end)
            self._add(keys)

    def extend(self) -> None:
        """Read the queue again from the first message that is not judged, and judge the messages of
        at least MIN_KEYS further keys. Raises NeedsRead; then `catch_up` continues."""
        if self._unknown_from is not None:
            self._read_end, self._unknown_from, self._added_count = self._unknown_from, None, 0
        self.catch_up()

    def is_judged(self, offset: int) -> bool:
        """Return whether an available message is known to be the newest of its key. Valid after a
        `catch_up` that raised nothing, as long as the queue's end stays the same."""
        return self._unknown_from is None or offset < self._unknown_from

    def judged(self, heads: list[Head]) -> list[Head]:
        """Return those of these available messages that are known to be the newest of their keys.
        They are a prefix of `heads`, which are in ascending order."""
        if self._read_end < self._cursor.end:
            return []
        if not heads or self.is_judged(heads[-1].offset):
            return heads
        return [head for head in heads if self.is_judged(head.offset)]

    def take_held(self, offset: int) -> bool:
        """Return whether the message at `offset`, which a member gives back, is superseded. If it
        is, count it; the caller must settle it."""
        if offset not in self._held:
            return False
        self._held.remove(offset)
        self._count(offset, offset + 1)
        return True

    def note_settled(self, offset: int, count: int = 1) -> None:
        """Record that a member settled `count` messages from `offset` on."""
        if self._held:
            self._held.difference_update(range(offset, offset + count))
        self._drop_keys(EXAMINED * count)

    def restart(self) -> None:
        """Read the keys from the floor again, because settled messages are available again, or
        messages in grace have become available."""
        self.close()
        self._read_end, self._unknown_from, self._added_count = self._cursor.floor, None, 0
        self._held.clear()

    def close(self) -> None:
        """Drop all keys."""
        self._known_keys.count -= len(self._newest)
        self._newest.clear()

    # -- inside ------------------------------------------------------------------------------

    def _add(self, keys: Sequence[bytes]) -> None:
        """Add the keys of the messages from `_read_end` on."""
        if self._cursor.floor - self._counted.floor > CHUNK:
            self._counted.raise_floor(self._cursor.floor)
            self._counted.dirty.clear()
        newest, superseded = self._newest, []
        for offset, key in enumerate(keys, self._read_end):
            if not key:
                continue
            if len(key) > LONGEST_KEY_BYTES:
                key = b"#" + blake2b(key, digest_size=LONGEST_KEY_BYTES).digest()
            known = newest.get(key)
            if known is None:
                self._add_key(key, offset)
            elif known < offset:
                newest[key] = offset
                superseded.append(known)
        self._read_end += len(keys)
        for start, end in adjacent(sorted(superseded)):
            self._settle(start, end)

    def _add_key(self, key: bytes, offset: int) -> None:
        self._drop_keys(EXAMINED)
        known_keys = self._known_keys
        if known_keys.count < known_keys.most or self._added_count < MIN_KEYS:
            self._newest[key] = offset
            self._added_count += 1
            known_keys.count += 1
        elif self._unknown_from is None:
            self._unknown_from = offset

    def _drop_keys(self, most: int) -> None:
        """Examine at most `most` keys, and drop each key whose newest message is settled. All
        earlier messages of such a key are settled, or a member holds them."""
        newest, done = self._newest, self._cursor.done
        for _ in range(min(most, len(newest))):
            key, offset = next(iter(newest.items()))
            if offset in done:
                del newest[key]
                self._known_keys.count -= 1
            else:
                newest.move_to_end(key)

    def _settle(self, start: int, end: int) -> None:
        """Settle the superseded messages in [start, end) that no member holds."""
        cursor = self._cursor
        if start >= max(cursor.next, cursor.grace_bound):
            cursor.drop_untouched(start, end)
            self._count(start, end)
            return
        for offset in range(start, end):
            if cursor.is_available(offset) or offset in cursor.delays:
                cursor.drop_superseded(offset)
                self._count(offset, offset + 1)
                self._on_settled(offset)
            elif offset not in cursor.done and offset not in cursor.dying:
                self._held.add(offset)

    def _count(self, start: int, end: int) -> None:
        self._cursor.superseded_count += self._counted.add_range(start, end)


def adjacent(offsets: Sequence[int]) -> Iterator[tuple[int, int]]:
    """Yield the ranges [start, end) of adjacent offsets; `offsets` are ascending."""
    start = end = -1
    for offset in offsets:
        if offset != end:
            if end >= 0:
                yield start, end
            start = offset
        end = offset + 1
    if end >= 0:
        yield start, end
