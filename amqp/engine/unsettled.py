"""The unsettled deliveries of a session, in one direction, by delivery-id. Pure.

Dispositions contain ranges of ids. A lookup of a range takes at most one pass over all unsettled
deliveries, even if the range is much wider.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Generic, TypeVar

from holdfast.amqp.wire import serials

_Item = TypeVar("_Item")


class Unsettled(Generic[_Item]):
    """Deliveries in the order of their ids, which are serial numbers."""

    def __init__(self) -> None:
        self._items: dict[int, _Item] = {}

    def __len__(self) -> int:
        return len(self._items)

    def add(self, delivery_id: int, item: _Item) -> None:
        """Add a delivery; its id follows all others."""
        self._items[delivery_id] = item

    def add_all(self, items: Mapping[int, _Item]) -> None:
        """Add deliveries by id; the ids follow all others, in order."""
        self._items.update(items)

    def add_run(self, delivery_ids: Iterable[int], item: _Item) -> None:
        """Add successive deliveries with an equal item; their ids follow all others."""
        self._items.update(dict.fromkeys(delivery_ids, item))

    def find(self, first: int, last: int) -> list[tuple[int, _Item]]:
        """Return the deliveries from `first` to `last` with their ids, in order."""
        items = self._items
        return [(each, items[each]) for each in self._ids(first, last)]

    def take(self, first: int, last: int) -> list[tuple[int, _Item]]:
        """Remove the deliveries from `first` to `last`; return them as `find` does."""
        items, pop = self._items, self._items.pop
        if first == last:
            return [(first, pop(first))] if first in items else []
        return [(each, pop(each)) for each in self._ids(first, last)]

    def _ids(self, first: int, last: int) -> list[int]:
        """Return the ids of the deliveries from `first` to `last`, in order."""
        items = self._items
        if first == last:
            return [first] if first in items else []
        count = serials.distance(first, last) + 1
        if count <= len(items):
            ids = [each & 0xFFFFFFFF for each in range(first, first + count)]
            return [each for each in ids if each in items]
        return [each for each in items if 0 <= serials.distance(first, each) < count]

    def remove(self, delivery_id: int) -> _Item | None:
        """Remove a delivery; return None if it is not there."""
        return self._items.pop(delivery_id, None)

    def remove_where(self, matches: Callable[[_Item], bool]) -> None:
        """Remove the deliveries that match."""
        items = self._items
        for each in [each for each, item in items.items() if matches(item)]:
            del items[each]

    def __iter__(self) -> Iterator[tuple[int, _Item]]:
        return iter(list(self._items.items()))
