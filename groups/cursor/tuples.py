"""Makes many named tuples at once. Pure.

To call the class for each takes about three times as long, because the constructor of a named tuple
is a Python function. A reply has several named tuples for each message.
"""

from collections.abc import Iterable
from functools import partial
from typing import Any, TypeVar

_Row = TypeVar("_Row", bound=tuple[Any, ...])


def from_rows(kind: type[_Row], rows: Iterable[tuple[Any, ...]]) -> list[_Row]:
    """Return a named tuple of each row. A row must have all fields, also those with a default."""
    return list(map(partial(tuple.__new__, kind), rows))


def from_columns(kind: type[_Row], *columns: Iterable[Any]) -> list[_Row]:
    """Return a named tuple of each row of the columns, as many as the shortest column has. There
    must be a column for each field. `itertools.repeat` makes a column of equal values."""
    return from_rows(kind, zip(*columns, strict=False))
