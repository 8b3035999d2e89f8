"""Fields of messages that only the protocol of their publisher can read.

A batch has one envelope for each message of such a protocol. The composition of the broker sets the
function that reads envelopes. Without it, no message has these fields.
"""

from collections.abc import Callable, Set

from holdfast.holdservice.three_valued import Column, Name

#: The fields that are read from envelopes.
ENVELOPE_COLUMNS = frozenset({
    Column.MESSAGE_ID, Column.CORRELATION_ID, Column.PRIORITY, Column.DELIVERY_MODE,
    Column.PUBLISHER,
})  # fmt: skip
#: Reading one envelope takes about this long.
ENVELOPE_US = 15

ReadEnvelope = Callable[[bytes, Set[Column]], dict[Name, str]]
"""Returns those of the requested fields that a message has. The envelope is b"" if the message has
none."""


class _Reader:
    """Keeps the function that reads envelopes. There is one for the whole process."""

    read: ReadEnvelope | None = None


def set_reader(read: ReadEnvelope) -> None:
    """Set the function that reads envelopes."""
    _Reader.read = read


def reader() -> ReadEnvelope | None:
    """Return the function that reads envelopes; None if it was not set."""
    return _Reader.read
