"""Sorts deliveries by the stored batch that contains them, to process each batch once. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from holdfast.groups.service_types import Delivery


@dataclass(slots=True)
class BatchPart:
    """The deliveries of one batch, sorted by row."""

    deliveries: list[Delivery]
    #: The index of each delivery in the original sequence.
    places: Sequence[int]
    #: The row of each delivery in the batch. If the rows have no gaps, they are a range.
    rows: range | list[int]

    def body_bytes(self) -> int:
        """Return the total size of the bodies of these messages."""
        offsets = self.deliveries[0].batch.body_offsets
        if isinstance(self.rows, range):
            return int(offsets[self.rows.stop] - offsets[self.rows.start])
        rows = np.asarray(self.rows)
        return int((offsets[rows + 1] - offsets[rows]).sum())


def batch_parts(deliveries: Sequence[Delivery]) -> list[BatchPart]:
    """Return one part for each batch, in the order in which the batches first occur."""
    places: dict[int, list[int]] = {}
    for place, each in enumerate(deliveries):
        places.setdefault(id(each.batch), []).append(place)
    return [_part(deliveries, of_batch) for of_batch in places.values()]


def _part(deliveries: Sequence[Delivery], places: list[int]) -> BatchPart:
    part = [deliveries[place] for place in places]
    rows = [each.row for each in part]
    in_order = sorted(rows)
    if rows != in_order:
        places = sorted(places, key=lambda place: deliveries[place].row)
        part, rows = [deliveries[place] for place in places], in_order
    if rows[-1] - rows[0] == len(rows) - 1:
        return BatchPart(part, places, range(rows[0], rows[-1] + 1))
    return BatchPart(part, places, rows)
