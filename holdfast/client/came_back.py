"""What came back of a key, for as long as a reply may be from before that.

In a keyed group the broker takes back what follows a message that is given back. A reply that is on
its way then may still bring such messages: they are worth working on only once the broker, which
knows what came back by then, says that they are still this member's.
"""

from collections.abc import Sequence

from holdfast.client.delivery import Delivered, ReceivedMessage, Settling

Place = tuple[str, int, str | None]
"""A topic, a queue, and a key in it."""


class CameBack:
    """What came back, by the places of keys. Belongs to one event loop."""

    def __init__(self) -> None:
        #: The first offset that came back, and what is to be known of the last that did.
        self._places: dict[Place, tuple[int, Settling]] = {}

    def note(self, message: ReceivedMessage, settling: Settling) -> None:
        """A message was given back, by `settling`. One without a key is followed by none."""
        if message.key is None:
            return
        place = _place(message)
        first, _ = self._places.get(place, (message.offset, settling))
        self._places[place] = min(first, message.offset), settling

    def forget_answered(self) -> None:
        """Forget what the broker has answered: it knows that in every request sent from now on."""
        self._places = {
            place: (first, settling)
            for place, (first, settling) in self._places.items()
            if not settling.done()
        }

    def doubts(self, messages: Sequence[Delivered]) -> list[bool]:
        """Say of each message of a reply whether the broker may have taken it back by now."""
        if not self._places:
            return [False] * len(messages)
        again: set[Place] = set()
        doubts = []
        for each in messages:
            place = _place(each)
            first, _ = self._places.get(place, (-1, None))
            if each.offset <= first:
                again.add(place)  # it came again; and what is behind it here follows it
            doubts.append(place in self._places and place not in again)
        return doubts

    async def until_known(self, message: ReceivedMessage) -> None:
        """Return once the broker knows what came back of a message's key. Raises what kept it
        from that. Cancelling is safe."""
        found = self._places.get(_place(message))
        if found is not None:
            await found[1]


def _place(message: Delivered | ReceivedMessage) -> Place:
    return message.topic, message.queue, message.key
