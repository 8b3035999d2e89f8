"""Read from a batch only the values that a condition needs. Pure."""

from collections.abc import Iterator, Sequence
from itertools import pairwise

from holdfast.commitlog.format.batch import Batch
from holdfast.holdservice.three_valued import Column, Name


def row_values(
    batch: Batch, rows: Sequence[int], names: frozenset[Name]
) -> Iterator[tuple[int, dict[Name, str]]]:
    """Yield (row, values) for each of `rows`, which must be ascending. `values` maps each of
    `names` to its value, if the message has one.

    The columns are read once, from the first row to the last. Only the properties in `names` are
    decoded.
    """
    if not rows:
        return
    first, last = rows[0], rows[-1]
    wanted: dict[bytes, Name] = {name.encode(): name for name in names if isinstance(name, str)}
    has_tag, has_key = Column.TAG in names, Column.KEY in names
    starts, entry_names, value_at, texts = _entries(batch, first, last) if wanted else _NO_ENTRIES
    for row in rows:
        values: dict[Name, str] = {}
        if starts:
            for i in range(starts[row - first], starts[row - first + 1]):
                name = wanted.get(entry_names[i])
                if name is not None:
                    values[name] = texts[value_at[i] : value_at[i + 1]].decode()
        if has_tag and (tag := batch.tag(row)) is not None:
            values[Column.TAG] = tag
        if has_key and (key := batch.key(row)) is not None:
            values[Column.KEY] = key
        yield row, values


_Entries = tuple[list[int], list[bytes], list[int], bytes]
_NO_ENTRIES: _Entries = ([], [], [], b"")


def _entries(batch: Batch, first: int, last: int) -> _Entries:
    """Return the properties of the rows `first` to `last`: the index of each row's first property,
    the properties' names, the start of each value in the text, and the text of all values. Indexes
    and starts count from 0 at row `first`; both lists also contain the final end.
    """
    listed, name_at, value_at = batch.property_list, batch.name_offsets, batch.value_offsets
    if listed is None or name_at is None or value_at is None:
        return _NO_ENTRIES
    listed = listed[first : last + 2]
    name_at = name_at[listed[0] : listed[-1] + 1]
    value_at = value_at[listed[0] : listed[-1] + 1]
    names = bytes(batch.names[name_at[0] : name_at[-1]])
    return (
        (listed - listed[0]).tolist(),
        [names[start:end] for start, end in pairwise((name_at - name_at[0]).tolist())],
        (value_at - value_at[0]).tolist(),
        bytes(batch.values[value_at[0] : value_at[-1]]),
    )
