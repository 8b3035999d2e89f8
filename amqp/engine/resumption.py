"""How a sender resumes a link that was lost: the states of the deliveries on it. Pure.

    link lost      -> this end keeps the deliveries that are unsettled, by delivery-tag
    sender attaches again, with its map `unsettled`
                   -> this end forgets what the map does not have: the sender has settled that
                   -> the attach of this end has the rest, each with its state
    transfer with `resume`
                   -> the delivery has an id again; its message is not processed again

The specification describes this in part 2.6.13. A sender may use a delivery-tag again once both
ends have settled the delivery. So this end must forget what it has settled: a later map may have
the same tag for another message, and that message would be lost if its state were known.
"""

from collections.abc import Collection
from typing import Any

from holdfast.amqp.wire.performatives import Attach, encode_any, encode_composite

#: The most bytes that a map needs before its first entry (9), and that the list of fields around it
#: needs more because it is longer than 255 bytes (6).
_MAP_BYTES = 15


class Resumable:
    """The unsettled deliveries of a link that this end receives: delivery-tag -> state.

    The state is None while it is not known yet.
    """

    def __init__(self) -> None:
        self.states: dict[bytes, Any] = {}

    def __len__(self) -> int:
        return len(self.states)

    def keep(self, tag: bytes, state: Any = None) -> None:
        """Keep an unsettled delivery, or its new state."""
        self.states[tag] = state

    def forget(self, tag: bytes) -> None:
        """Forget a delivery that is settled. Do nothing if it is not known."""
        self.states.pop(tag, None)

    def forget_all(self, state: Any) -> None:
        """Forget the deliveries with this state, an object."""
        self.states = {tag: each for tag, each in self.states.items() if each is not state}

    def sender_attached(self, unsettled: Collection[Any] | None, *, is_incomplete: bool) -> None:
        """Apply the map of a sender that attaches the link again: forget the deliveries that the
        sender has settled. If the map is incomplete, the sender may have more of them."""
        if not is_incomplete:
            has = unsettled or ()
            self.states = {tag: state for tag, state in self.states.items() if tag in has}

    def take(self, tag: bytes) -> tuple[bool, Any]:
        """Forget a delivery that the sender resumes. Return whether it was known, and its state."""
        if tag in self.states:
            return True, self.states.pop(tag)
        return False, None


def fit_unsettled(attach: Attach, max_frame_bytes: int) -> Attach:
    """Return an attach whose map `unsettled` fits in a frame. If states are left out, the map is
    incomplete: the sender resumes those that it has, and then attaches again for the others."""
    if not attach.unsettled:
        return attach
    others = encode_composite(attach._replace(unsettled=None, incomplete_unsettled=True))
    room = max_frame_bytes - 8 - len(others) - _MAP_BYTES
    fitting: dict[bytes, Any] = {}
    for tag, state in attach.unsettled.items():
        room -= len(encode_any(tag)) + len(encode_any(state))
        if room < 0:
            return attach._replace(unsettled=fitting, incomplete_unsettled=True)
        fitting[tag] = state
    return attach
