"""The keys of nacked and released messages, while an older reply may still be in flight.

In a keyed group, when a member nacks or releases a message, the broker also revokes the later
messages of its key. A reply that is in flight at that time may still contain those messages. They
are uncertain: the member may process them only after the broker has handled the nack or release
and has confirmed that their leases are still valid.
"""

from collections.abc import Sequence

from holdfast.client.consume.delivery import Delivered, ReceivedMessage, Settling

Place = tuple[str, int, str | None]
"""A topic, a queue, and a key in that queue."""


class CameBack:
    """The nacked and released messages, by topic, queue and key. Belongs to one event loop."""

    def __init__(self) -> None:
        #: For each key with nacked or released messages: the lowest offset of these messages, and
        #: the pending result of the latest nack or release.
        self._places: dict[Place, tuple[int, Settling]] = {}

    def note(self, message: ReceivedMessage, settling: Settling) -> None:
        """Record that `settling` nacks or releases a message. Ignore messages without a key."""
        if message.key is None:
            return
        place = _place(message)
        first, _ = self._places.get(place, (message.offset, settling))
        self._places[place] = min(first, message.offset), settling

    def forget_answered(self) -> None:
        """Forget the nacks and releases that the broker has answered. The replies to requests that
        are sent from now on contain no message that these have revoked."""
        self._places = {
            place: (first, settling)
            for place, (first, settling) in self._places.items()
            if not settling.done()
        }

    def doubts(self, messages: Sequence[Delivered]) -> list[bool]:
        """Return for each message of a reply whether the broker may have revoked it."""
        if not self._places:
            return [False] * len(messages)
        again: set[Place] = set()
        doubts = []
        for each in messages:
            place = _place(each)
            first, _ = self._places.get(place, (-1, None))
            if each.offset <= first:
                # This is a redelivery, so the later messages of the key in this reply are valid.
                again.add(place)
            doubts.append(place in self._places and place not in again)
        return doubts

    async def until_known(self, message: ReceivedMessage) -> None:
        """Wait until the broker has handled the latest nack or release for a message's key. Raises
        the error with which that call failed. Cancelling is safe."""
        found = self._places.get(_place(message))
        if found is not None:
            await found[1]


def _place(message: Delivered | ReceivedMessage) -> Place:
    return message.topic, message.queue, message.key
