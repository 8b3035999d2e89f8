"""How much room a topic has for new messages, if its `max_bytes` limits it.

Retention deletes the oldest messages to keep a topic within `retention_bytes`; `max_bytes` instead
makes the broker refuse new messages. Publishes in progress count too. Belongs to the event loop.
"""

from collections.abc import Callable

from holdfast.consumequeue.errors import TopicFull
from holdfast.consumequeue.topics import Topic

#: A topic with at most this many queues is measured at every publish, which takes a few
#: microseconds. A topic with more queues is measured at most once per _MEASURED_S seconds; between
#: measurements, each publish adds its size as the client sent it.
_QUICK_QUEUES = 64
_MEASURED_S = 1.0


class _Usage:
    """The stored bytes of a topic at `measured_s`, and the bytes of publishes in progress."""

    __slots__ = ("arriving", "measured_s", "stored")

    def __init__(self) -> None:
        self.measured_s = float("-inf")
        self.stored = 0
        self.arriving = 0


class TopicRoom:
    """Admits publishes to topics with a `max_bytes`. Call `leave` once for every admitted publish.
    Topics without a limit are not tracked."""

    def __init__(self, stored_bytes: Callable[[Topic], int], now_s: Callable[[], float]) -> None:
        """`stored_bytes` measures a topic; `now_s` is a monotonic clock."""
        self._stored_bytes = stored_bytes
        self._now_s = now_s
        self._usages: dict[int, _Usage] = {}

    def enter(self, topic: Topic, size: int) -> int:
        """Admit `size` bytes. Return the bytes that count: 0 if the topic has no limit, otherwise
        `size`. Raises TopicFull if the topic would exceed its limit."""
        limit = topic.config.max_bytes
        if limit is None:
            return 0
        usage = self._usages.get(topic.topic_id)
        if usage is None:
            usage = self._usages[topic.topic_id] = _Usage()
        now_s = self._now_s()
        if topic.queue_count <= _QUICK_QUEUES or now_s - usage.measured_s >= _MEASURED_S:
            usage.stored, usage.measured_s = self._stored_bytes(topic), now_s
        if usage.stored + usage.arriving + size > limit:
            raise TopicFull(topic.name, usage.stored, limit)
        usage.arriving += size
        return size

    def leave(self, topic: Topic, counted: int) -> None:
        """End an admitted publish, which is stored or has failed. `counted` is the result of
        `enter`."""
        usage = self._usages.get(topic.topic_id) if counted else None
        if usage is not None:
            usage.arriving -= counted
            usage.stored += counted

    def forget(self, topic_id: int) -> None:
        """Forget a topic that was deleted."""
        self._usages.pop(topic_id, None)
