"""The accumulator of a producer whose client has an instrumentation."""

from collections.abc import Mapping

from holdfast.client.produce.accumulator import Accumulator, PendingBatch
from holdfast.client.produce.new_message import Body


class ObservedAccumulator(Accumulator):
    """An accumulator that reports each message to the observer of its producer's target."""

    def add(
        self,
        body: Body,
        key: str | None = None,
        tag: str | None = None,
        properties: Mapping[str, str] | None = None,
        queue: int | None = None,
        priority: int | None = None,
        ttl_ms: int | None = None,
        born_timestamp_us: int | None = None,
    ) -> PendingBatch:
        target = self._owner.target
        with target.observer.create(target.topic, properties) as properties:
            return super().add(
                body, key, tag, properties, queue, priority, ttl_ms, born_timestamp_us
            )
