"""What a condition needs of a batch's messages, and nothing else of it. Pure."""

from collections.abc import Iterator, Sequence

from holdfast.commitlog.batch import Batch
from holdfast.holdservice.sql92 import Column, Name


def row_values(
    batch: Batch, rows: Sequence[int], names: frozenset[Name]
) -> Iterator[tuple[int, dict[Name, str]]]:
    """Yield each of the rows (ascending) with what its message has of the names.

    Columns are read once, from the first row to the last; of the properties only those named
    are decoded.
    """
    if not rows:
        return
    first, last = rows[0], rows[-1]
    wanted: dict[bytes, Name] = {name.encode(): name for name in names if isinstance(name, str)}
    entries = _Entries(batch, first, last) if wanted and batch.property_list is not None else None
    for row in rows:
        values: dict[Name, str] = {}
        if entries is not None:
            for i in range(entries.starts[row - first], entries.starts[row - first + 1]):
                name = wanted.get(entries.name(i))
                if name is not None:
                    values[name] = entries.value(i)
        if Column.TAG in names and (tag := batch.tag(row)) is not None:
            values[Column.TAG] = tag
        if Column.KEY in names and (key := batch.key(row)) is not None:
            values[Column.KEY] = key
        yield row, values


class _Entries:
    """The properties of the rows from `first` to `last`, counted from 0."""

    def __init__(self, batch: Batch, first: int, last: int) -> None:
        assert batch.property_list is not None
        assert batch.name_offsets is not None
        assert batch.value_offsets is not None
        listed = batch.property_list[first : last + 2]
        self.starts: list[int] = (listed - listed[0]).tolist()
        name_at = batch.name_offsets[listed[0] : listed[-1] + 1]
        value_at = batch.value_offsets[listed[0] : listed[-1] + 1]
        self._names = bytes(batch.names[name_at[0] : name_at[-1]])
        self._values = bytes(batch.values[value_at[0] : value_at[-1]])
        self._name_at: list[int] = (name_at - name_at[0]).tolist()
        self._value_at: list[int] = (value_at - value_at[0]).tolist()

    def name(self, i: int) -> bytes:
        return self._names[self._name_at[i] : self._name_at[i + 1]]

    def value(self, i: int) -> str:
        return self._values[self._value_at[i] : self._value_at[i + 1]].decode()
