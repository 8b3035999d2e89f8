"""The keys of nacked and released messages, while an older reply may still be in flight.

In a keyed group, when a member nacks or releases a message, the broker also revokes the leases of
the later messages of its key. A reply that is in flight at that time may still contain revoked
messages. Such messages are uncertain: the member may process them only after the broker has handled
the nack or release and has confirmed that their leases are still valid.
"""

from collections.abc import Sequence

from holdfast.client.consume.delivery import DeliveredMessage, ReceivedMessage, Settling

QueueKey = tuple[str, int, str | None]
"""A topic, a queue, and a key in that queue."""


class RedeliveredKeys:
    """The nacked and released messages, by topic, queue and key. Belongs to one event loop."""

    def __init__(self) -> None:
        #: For each key with nacked or released messages: the lowest offset of these messages, and
        #: the pending result of the latest nack or release.
        self._unconfirmed: dict[QueueKey, tuple[int, Settling]] = {}

    def record(self, message: ReceivedMessage, settling: Settling) -> None:
        """Record that `settling` nacks or releases a message. Ignore messages without a key."""
        if message.key is None:
            return
        queue_key = _queue_key(message)
        first, _ = self._unconfirmed.get(queue_key, (message.offset, settling))
        self._unconfirmed[queue_key] = min(first, message.offset), settling

    def forget_answered(self) -> None:
        """Forget the nacks and releases that the broker has answered. Call this before a receive is
        sent: its reply cannot contain a message that an answered nack or release has revoked."""
        self._unconfirmed = {
            queue_key: (first, settling)
            for queue_key, (first, settling) in self._unconfirmed.items()
            if not settling.done()
        }

    def find_uncertain(self, messages: Sequence[DeliveredMessage]) -> list[bool]:
        """Return for each message of a reply whether the broker may have revoked it."""
        if not self._unconfirmed:
            return [False] * len(messages)
        redelivered: set[QueueKey] = set()
        flags = []
        for each in messages:
            queue_key = _queue_key(each)
            first, _ = self._unconfirmed.get(queue_key, (-1, None))
            if each.offset <= first:
                # This is a redelivery, so the later messages of the key in this reply are valid.
                redelivered.add(queue_key)
            flags.append(queue_key in self._unconfirmed and queue_key not in redelivered)
        return flags

    async def wait_confirmed(self, message: ReceivedMessage) -> None:
        """Wait until the broker has handled the latest nack or release for a message's key. Raises
        the error with which the nack or release failed. Cancelling is safe."""
        found = self._unconfirmed.get(_queue_key(message))
        if found is not None:
            await found[1]


def _queue_key(message: DeliveredMessage | ReceivedMessage) -> QueueKey:
    return message.topic, message.queue, message.key
