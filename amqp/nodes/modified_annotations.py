"""The message-annotations that clients gave with the outcome `modified`, in memory. Pure.

    modified(message-annotations) of a delivery -> keep -> every later delivery of the message: find

An entry belongs to one message of one group: a later outcome `modified` replaces single annotations
of it. A restart of the broker forgets all entries.

Links report which messages they have settled (`drop`). Members of other protocols settle messages,
too, and groups, topics and retention end messages. So each `keep` checks a few entries in turn, and
drops those whose messages cannot be delivered again. Until then `find` does not return them for
another message: group ids, topic ids and offsets are not used again, and a seek of the group
changes the epoch.

Above a limit, the oldest entries are dropped and counted.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import islice
from typing import Any, NamedTuple

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.wire.types import decode, encode
from holdfast.groups.service_types import Receipt

#: What an entry needs besides its encoded annotations, in bytes (measured: 550).
ENTRY_BYTES = 640
#: The encoded annotations of one message have at most this many bytes. Each delivery of the message
#: sends them.
MAX_MESSAGE_BYTES = 64 * 1024
#: So many entries are checked for each outcome that is kept.
CHECKED_AT_ONCE = 4

MayReturn = Callable[[str, Receipt], bool]
"""Returns whether a group, by its name, may deliver the message of a receipt again."""

_Place = tuple[int, ...]
"""(group id, topic id, queue, offset)"""


class _Entry(NamedTuple):
    client: str
    group: str
    receipt: Receipt
    annotations: bytes
    """The encoded map."""

    @property
    def size(self) -> int:
        return ENTRY_BYTES + len(self.annotations)


class ModifiedAnnotations:
    """The annotations of all groups. It belongs to the event loop."""

    def __init__(self) -> None:
        self.bytes = 0
        """How many bytes count against `amqp.max_modified_bytes`."""
        self.dropped_total = 0
        """How many times annotations were dropped because of a limit."""
        #: All entries, the oldest first.
        self._entries: dict[_Place, _Entry] = {}
        #: For each client its bytes, and its entries, the oldest first.
        self._bytes_of: dict[str, int] = {}
        self._places_of: dict[str, dict[_Place, None]] = {}
        #: The places to check next, of the entries that there were when this round began.
        self._to_check: Iterator[_Place] = iter(())

    def __len__(self) -> int:
        return len(self._entries)

    def find(self, receipt: Receipt) -> bytes:
        """Return the encoded map of annotations for a delivery; empty bytes if there are none."""
        entry = self._entries.get(_place_of(receipt))
        return b"" if entry is None or entry.receipt.epoch != receipt.epoch else entry.annotations

    def keep(
        self,
        client: str,
        group: str,
        receipts: Iterable[Receipt],
        annotations: Mapping[Any, Any],
        config: AmqpConfig,
        may_return: MayReturn,
    ) -> None:
        """Keep annotations for the messages of these receipts. They count for this client, together
        with earlier annotations of the messages."""
        encoded = encode(dict(annotations))
        for receipt in receipts:
            before = self.find(receipt)
            merged = encoded
            if before:
                merged = encode(decode(before)[0] | annotations)
                if len(merged) > MAX_MESSAGE_BYTES:
                    self.dropped_total += 1
                    merged = encoded
            self._drop(_place_of(receipt))
            self._check_some(may_return)
            self._add(_Entry(client, group, receipt, merged), config)

    def drop(self, receipts: Iterable[Receipt]) -> None:
        """Drop the annotations of messages that will not be delivered again."""
        for receipt in receipts:
            self._drop(_place_of(receipt))

    def _drop(self, place: _Place) -> None:
        if place in self._entries:
            self._remove(place)

    def _add(self, entry: _Entry, config: AmqpConfig) -> None:
        client, place, size = entry.client, _place_of(entry.receipt), entry.size
        most_of_client = min(config.max_client_modified_bytes, config.max_modified_bytes)
        if len(entry.annotations) > MAX_MESSAGE_BYTES or size > most_of_client:
            self.dropped_total += 1
            return
        while self._bytes_of.get(client, 0) + size > most_of_client:
            self._remove(next(iter(self._places_of[client])))
            self.dropped_total += 1
        while self.bytes + size > config.max_modified_bytes:
            self._remove(next(iter(self._entries)))
            self.dropped_total += 1
        self._entries[place] = entry
        self.bytes += size
        self._bytes_of[client] = self._bytes_of.get(client, 0) + size
        self._places_of.setdefault(client, {})[place] = None

    def _remove(self, place: _Place) -> None:
        entry = self._entries.pop(place)
        self.bytes -= entry.size
        self._bytes_of[entry.client] -= entry.size
        del self._places_of[entry.client][place]
        if not self._places_of[entry.client]:
            del self._bytes_of[entry.client], self._places_of[entry.client]

    def _check_some(self, may_return: MayReturn) -> None:
        places = list(islice(self._to_check, CHECKED_AT_ONCE))
        if len(places) < CHECKED_AT_ONCE:
            self._to_check = iter(list(self._entries))
            places += islice(self._to_check, CHECKED_AT_ONCE - len(places))
        for place in places:
            entry = self._entries.get(place)
            if entry is not None and not may_return(entry.group, entry.receipt):
                self._remove(place)


def _place_of(receipt: Receipt) -> _Place:
    return receipt.group_id, receipt.topic_id, receipt.queue, receipt.offset
