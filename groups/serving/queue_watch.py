"""Informs groups about changes of their queues: new messages, or a first offset that increased.

A change is recorded once for its topic. A group with waiting requests processes the change
immediately, every other group at its next request. So a change costs nothing for groups without
requests. On the event loop.
"""

import asyncio
from collections.abc import Callable, Iterable, Sequence

from holdfast.consumequeue.slices import ITEMS_A_TURN
from holdfast.consumequeue.topics import QueueKey

#: A change of one group, or one call of `QueueWatch.process`, takes about as long as the work for
#: this many queues, in addition to the work for its own queues.
GROUP_ITEMS = 4


class ChangedQueues:
    """The last change of each queue of one topic."""

    def __init__(self) -> None:
        self.count = 0
        """The number of changes so far."""
        self.watchers: dict[QueueWatch, None] = {}
        """The groups that have the topic and have waiting requests."""
        #: queue -> the number of its last change, in the order of these numbers.
        self._changes: dict[int, int] = {}

    def note(self, queue: int) -> None:
        """Record that a queue has changed."""
        self.count += 1
        self._changes.pop(queue, None)
        self._changes[queue] = self.count

    def since(self, count: int, most: int) -> tuple[list[int], int]:
        """Return at most `most` queues that changed after the first `count` changes, the earliest
        change first. Also return the count for the next call."""
        found = []
        for queue in reversed(self._changes):
            if self._changes[queue] <= count:
                break
            found.append(queue)
        found.reverse()
        if len(found) <= most:
            return found, self.count
        return found[:most], self._changes[found[most - 1]]


class QueueChanges:
    """The changes of the queues of all groups."""

    def __init__(self) -> None:
        self.by_topic: dict[int, ChangedQueues] = {}
        self.count = 0
        """How often queues have changed. One call of `note` counts once."""
        #: The groups with waiting requests that have not processed all changes yet.
        self._behind: dict[QueueWatch, None] = {}
        self._is_scheduled = False

    def note(self, keys: Iterable[QueueKey]) -> None:
        """Record that queues have new readable messages, or that their first offsets have
        increased. Groups with waiting requests process these changes at once, a limited number in
        each event loop iteration."""
        topics: dict[int, ChangedQueues] = {}
        for topic_id, queue in keys:
            changed = self.by_topic.get(topic_id)
            if changed is not None:
                changed.note(queue)
                topics[topic_id] = changed
        if topics:
            self.count += 1
            for changed in topics.values():
                self._behind |= changed.watchers
            if self._behind and not self._is_scheduled:
                self._process()

    def process_soon(self, watch: "QueueWatch") -> None:
        """Let a group process the remaining changes in later event loop iterations."""
        self._behind[watch] = None
        self._schedule()

    def forget(self, watch: "QueueWatch") -> None:
        """Undo `process_soon`."""
        self._behind.pop(watch, None)

    def _process(self) -> None:
        """Let groups with waiting requests process changes, about ITEMS_A_TURN."""
        self._is_scheduled = False
        left = ITEMS_A_TURN
        while self._behind and left > 0:
            watch = next(iter(self._behind))
            found = watch.process(left)
            left -= found + GROUP_ITEMS
            if found == 0 or watch.is_current:
                del self._behind[watch]
        if self._behind:
            self._schedule()

    def _schedule(self) -> None:
        if self._behind and not self._is_scheduled:
            self._is_scheduled = True
            asyncio.get_running_loop().call_soon(self._process)


class QueueWatch:
    """The changes that one group has not processed yet. `on_change` is called with the queues that
    changed."""

    def __init__(
        self, changes: QueueChanges, on_change: Callable[[Sequence[QueueKey]], None]
    ) -> None:
        self._changes = changes
        self._on_change = on_change
        #: topic id -> how many changes of the topic's queues the group has processed.
        self._processed: dict[int, int] = {}
        #: `QueueChanges.count` when the group had processed all changes.
        self._current_count = 0
        #: How many requests of the group wait.
        self._waiting = 0

    @property
    def is_current(self) -> bool:
        """Whether the group has processed all changes."""
        return self._current_count == self._changes.count

    def add_topic(self, topic_id: int) -> None:
        """Inform the group about changes of this topic from now on."""
        changed = self._changes.by_topic.setdefault(topic_id, ChangedQueues())
        self._processed[topic_id] = changed.count
        if self._waiting:
            changed.watchers[self] = None

    def remove_topic(self, topic_id: int) -> None:
        """Do not inform the group about this topic any more."""
        self._processed.pop(topic_id, None)
        changed = self._changes.by_topic.get(topic_id)
        if changed is not None:
            changed.watchers.pop(self, None)

    def process(self, most: int = ITEMS_A_TURN) -> int:
        """Let the group process the changes of up to `most` queues. Return the number of queues."""
        if self.is_current:
            return 0
        keys: list[QueueKey] = []
        for topic_id, count in self._processed.items():
            changed = self._changes.by_topic.get(topic_id)
            if changed is None or changed.count == count:
                continue
            queues, count = changed.since(count, most - len(keys))
            self._processed[topic_id] = count
            keys += [(topic_id, queue) for queue in queues]
            if count != changed.count:
                break
        else:
            self._current_count = self._changes.count
        if keys:
            self._on_change(keys)
        return len(keys)

    async def catch_up(self) -> None:
        """Let the group process all changes, a limited number in each event loop iteration."""
        while self.process():
            if self.is_current:
                return
            await asyncio.sleep(0)

    def begin_waiting(self) -> bool:
        """Let the group process changes as soon as they occur, because a request waits. Return True
        if the group has processed earlier changes in this call. The caller must call `end_waiting`
        later, also if this call fails."""
        self._waiting += 1
        if self._waiting == 1:
            for topic_id in self._processed:
                self._set_watching(topic_id)
        if self.is_current:
            return False
        has_found = self.process() > 0
        if not self.is_current:
            self._changes.process_soon(self)
        return has_found

    def end_waiting(self) -> None:
        """Record that one request less waits."""
        self._waiting -= 1
        if not self._waiting:
            self._changes.forget(self)
            for topic_id in self._processed:
                self._set_watching(topic_id)

    def _set_watching(self, topic_id: int) -> None:
        changed = self._changes.by_topic.get(topic_id)
        if changed is None:
            return  # the topic was deleted
        if self._waiting:
            changed.watchers[self] = None
        else:
            changed.watchers.pop(self, None)
