"""The times at which deliveries of a link were sent, and runs of delivery-ids. Pure.

Delivery-ids are serial numbers: after 2**32 - 1 comes 0.
"""

from collections.abc import Iterable, Iterator

from holdfast.amqp.wire import serials

#: The longest age is divided into this many steps. A computed age may be too small by one step.
STEPS = 64


class DeliveryAges:
    """The times at which deliveries were sent, in steps of `longest_s / STEPS`."""

    def __init__(self, longest_s: float) -> None:
        self._step_s = longest_s / STEPS
        #: For each step: when it began, the time of its last delivery, and the id of that delivery.
        #: A link without deliveries keeps only an empty list; an empty deque takes 760 bytes.
        self._steps: list[tuple[float, float, int]] = []

    def add(self, now_s: float, last_id: int) -> None:
        """Record that all deliveries up to `last_id` were sent at `now_s` or earlier."""
        steps = self._steps
        began_s = now_s
        if steps and now_s - steps[-1][0] <= self._step_s:
            began_s = steps.pop()[0]
        while len(steps) > 2 * STEPS:
            del steps[0]
        steps.append((began_s, now_s, last_id))

    def sent_s(self, oldest_id: int) -> float:
        """Return when a delivery was sent, at most one step late. Forget all older deliveries."""
        steps = self._steps
        while len(steps) > 1 and serials.distance(steps[0][2], oldest_id) > 0:
            del steps[0]
        return steps[0][1]


def runs(ids: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Yield the first and the last id of each run of successive ids."""
    first = last = None
    for each in ids:
        if last is not None and each == serials.add(last, 1):
            last = each
            continue
        if first is not None and last is not None:
            yield first, last
        first = last = each
    if first is not None and last is not None:
        yield first, last
