"""The state's records, put together from their copy in the log. Pure. FORMAT.md 4 draws it.

Messages of the broker's own topic: key = record key, body = value, tag `deleted` where a record is
gone. A snapshot ends in a message without a key (tag `all`, body = number of records in digits).
"""

from holdfast.commitlog.batch import Batch

DELETED = "deleted"
ALL = "all"


class StateReplay:
    """The records as they were after the batches that were applied, in their order."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.has_snapshot = False
        """Whether a whole snapshot is among what was applied: nothing before it is missed."""
        self._put: list[tuple[int, bytes]] = []
        """Offset and key of each record put since the last snapshot ended."""

    def apply(self, batch: Batch) -> None:
        """Apply the changes of one batch."""
        for row in range(len(batch)):
            offset, tag = batch.header.base_offset + row, batch.tag(row)
            key = (batch.key(row) or "").encode()
            if tag == ALL:
                self._end_snapshot(offset, int(batch.body(row)))
            elif tag == DELETED:
                self.records.pop(key, None)
            else:
                self.records[key] = batch.body(row)
                self._put.append((offset, key))

    def _end_snapshot(self, offset: int, count: int) -> None:
        """Forget what the snapshot before `offset` does not have. One of which a part is
        damaged says nothing of what it lacks."""
        kept = {key for at, key in self._put if at >= offset - count}
        if len(kept) == count:
            self.records = {key: self.records[key] for key in kept}
            self.has_snapshot = True
        self._put.clear()
