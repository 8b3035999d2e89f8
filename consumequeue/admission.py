"""Which publishes are let in: none during an alarm, and only so many bytes at once. Pure.

Belongs to the event loop. What was let in counts until it was answered, synced or not, also
when its client has gone: until then it is in memory. Only publishing asks here; reading, stored
offsets, retention and the broker's own notes go on.
"""

from collections.abc import Callable, Mapping

from holdfast.commitlog.errors import LogError, LogOverloaded

Alarm = Callable[[], LogError | None]
"""Returns why nothing may be published now, None when nothing speaks against it."""


class Admission:
    """Lets publishes in. What was let in must `leave` once."""

    def __init__(self, max_in_flight_bytes: int, alarms: Mapping[str, Alarm]) -> None:
        self._limit = max_in_flight_bytes
        self._alarms = alarms
        self.in_flight_bytes = 0

    def enter(self, size: int) -> None:
        """Let in a publish of so many bytes; one that is alone always is, whatever its size.

        Raises the LogError of an alarm that is raised, LogOverloaded above the limit.
        """
        self.check()
        if self.in_flight_bytes and self.in_flight_bytes + size > self._limit:
            raise LogOverloaded(self.in_flight_bytes, self._limit, "max_in_flight_bytes")
        self.in_flight_bytes += size

    def check(self) -> None:
        """Raise the LogError of an alarm that is raised: nothing may be published now."""
        for alarm in self._alarms.values():
            error = alarm()
            if error is not None:
                raise error

    def leave(self, size: int) -> None:
        """A publish that was let in has been answered, or has failed."""
        self.in_flight_bytes -= size
