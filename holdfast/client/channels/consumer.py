"""What a consumer of a channel asked for. It outlives connections."""

from collections.abc import Callable
from dataclasses import dataclass, field

from holdfast.client.channels.incoming import ConsumerLink
from holdfast.client.channels.messages import ChannelMessage
from holdfast.client.session.attaches import Start


@dataclass(slots=True, eq=False)
class Consumer:
    """One consumer. `link` is its link on the present connection, or the last one."""

    tag: str
    callback: Callable[[ChannelMessage], object]
    group: str | None
    topic: str | None
    credit: int
    is_settled: bool
    auto_flow: bool
    start: Start | int
    link: ConsumerLink | None = None
    next_offsets: dict[int, int] = field(default_factory=dict)
    """For a topic: the offset after the last message that was given to the callback, by queue."""

    def restart(self) -> Start | int:
        """Return where a new link of the topic starts, so that it misses no message of the queues
        that were seen. Messages that were seen may arrive again: see `is_new`."""
        if self.start in ("next", "last") and self.next_offsets:
            return min(self.next_offsets.values())
        return self.start

    def is_new(self, message: ChannelMessage) -> bool:
        """Return whether a message was not yet given to the callback, and record that it is."""
        if self.topic is None:
            return True
        if message.offset < self.next_offsets.get(message.queue, 0):
            return False
        self.next_offsets[message.queue] = message.offset + 1
        return True
