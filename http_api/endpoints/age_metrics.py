"""Age metrics: the oldest message of a topic, and the oldest that a group has not consumed.

To find these messages, the broker may have to read from the disk. So one call in a reader thread
finds them before the metrics are written, for a limited number of queues.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import suppress
from time import time
from typing import TYPE_CHECKING, NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from holdfast.consumequeue.errors import StoreError
from holdfast.consumequeue.slices import in_slices
from holdfast.consumequeue.topics import QueueKey

if TYPE_CHECKING:
    from holdfast.http_api.routing.context import ApiContext

#: For one request of the metrics, at most this many queues of topics are examined, and at most as
#: many queues of groups. Examining a queue takes about 10 microseconds in a reader thread.
MAX_QUEUES_EXAMINED = 1000

_NAMES = {
    "topic_oldest_message_seconds": (
        "Age of the oldest message that a topic keeps.",
        ["topic"],
    ),
    "group_lag_seconds": (
        "Age of the oldest message between a group's stored offsets and their queues' ends.",
        ["group", "topic"],
    ),
}


class _Place(NamedTuple):
    """An offset in a queue. The message there may be the oldest message of a metric's series."""

    name: str
    labels: tuple[str, ...]
    key: QueueKey
    offset: int


async def age_metrics(context: "ApiContext") -> list[Metric]:
    """Return the current ages as metrics.

    A series is 0 if its queues have no such message. When MAX_QUEUES_EXAMINED queues have been
    examined, the remaining series are left out.
    """
    places = [*_of_topics(context), *[place async for place in _of_groups(context)]]
    stored_us = await context.store.stored_at([(each.key, each.offset) for each in places])
    await asyncio.sleep(0)
    now_s = time()
    ages: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in _NAMES}
    for place, at_us in zip(places, stored_us, strict=True):
        age_s = 0.0 if at_us is None else max(now_s - at_us / 1e6, 0.0)
        series = ages[place.name]
        series[place.labels] = max(series.get(place.labels, 0.0), age_s)
    families: list[Metric] = []
    for name, (doc, labels) in _NAMES.items():
        family = GaugeMetricFamily(f"holdfast_{name}", doc, labels=labels)
        for values, age_s in ages[name].items():
            family.add_metric(values, round(age_s, 3))
        families.append(family)
    return families


def _of_topics(context: "ApiContext") -> Iterator[_Place]:
    examined = 0
    for topic in context.store.topics():
        examined += topic.queue_count
        if examined > MAX_QUEUES_EXAMINED:
            return
        for queue in range(topic.queue_count):
            key = (topic.topic_id, queue)
            yield _Place("topic_oldest_message_seconds", (topic.name,), key, 0)


async def _of_groups(context: "ApiContext") -> AsyncIterator[_Place]:
    """Yield the stored offsets of groups. Process only some groups in each loop iteration."""
    store, examined = context.store, 0
    async for groups in in_slices(store.groups()):
        for group in groups:
            with suppress(StoreError):  # deleted meanwhile
                for topic, stored in store.group_topics(group).items():
                    examined += len(stored.offsets)
                    if examined > MAX_QUEUES_EXAMINED:
                        return
                    topic_id = store.topic(topic).topic_id
                    for queue, offset in stored.offsets.items():
                        yield _Place("group_lag_seconds", (group, topic), (topic_id, queue), offset)
