"""Admit publishes: none while an alarm is raised, and only a limited number of bytes at once. Pure.

Belongs to the event loop. A publish counts until the appender has completed it, even if its client
has timed out or disconnected, because it is in memory until then. Only publishes are limited:
reading, storing offsets, retention and the broker's own records continue.
"""

from collections.abc import Callable, Mapping
from copy import copy

from holdfast.commitlog.errors import LogError, LogOverloaded

PublishAlarm = Callable[[], LogError | None]
"""Returns the error that refuses all publishes now, or None."""


class PublishAdmission:
    """Admits publishes. Call `leave` once for every admitted publish."""

    def __init__(self, max_in_flight_bytes: int, alarms: Mapping[str, PublishAlarm]) -> None:
        self._limit = max_in_flight_bytes
        self._alarms = alarms
        self.in_flight_bytes = 0

    def enter(self, size: int) -> None:
        """Admit a publish of `size` bytes. If no other publish is in flight, admit any size.

        Raises the LogError of a raised alarm, or LogOverloaded above the limit.
        """
        self.check()
        if self.in_flight_bytes and self.in_flight_bytes + size > self._limit:
            raise LogOverloaded(self.in_flight_bytes, self._limit, "max_in_flight_bytes")
        self.in_flight_bytes += size

    def check(self) -> None:
        """Raise the LogError of an alarm that is raised, if any."""
        for alarm in self._alarms.values():
            error = alarm()
            if error is not None:
                raise copy(error)  # `error` itself would keep the frames of every caller

    def leave(self, size: int) -> None:
        """Subtract an admitted publish of `size` bytes, which has completed or failed."""
        self.in_flight_bytes -= size
