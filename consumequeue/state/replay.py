"""The state's records, rebuilt from their copy in the log. Pure. FORMAT.md 4 shows the format.

The copy consists of messages of the broker's own topic. The key of a message is the record's key,
the body is the record's value, and the tag `deleted` means that the record was deleted. A snapshot
ends with a message without a key; its tag is `all`, and its body is the number of records in
digits.
"""

from holdfast.commitlog.format.batch import Batch

DELETED = "deleted"
ALL = "all"


class StateReplay:
    """The records that result from all applied batches. Apply batches in log order."""

    def __init__(self) -> None:
        self.records: dict[bytes, bytes] = {}
        self.has_snapshot = False
        """Whether a complete snapshot was applied. Then no earlier batch is needed."""
        self._put: list[tuple[int, bytes]] = []
        """Offset and key of each record that was set since the last snapshot ended."""

    def apply(self, batch: Batch) -> None:
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
        """Drop the records that are not in the snapshot before `offset`. Ignore a snapshot that is
        partly damaged, because records that are missing in it may exist."""
        kept = {key for at, key in self._put if at >= offset - count}
        if len(kept) == count:
            self.records = {key: self.records[key] for key in kept}
            self.has_snapshot = True
        self._put.clear()
