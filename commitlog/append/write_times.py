"""Decides from the times of recent writes whether the event loop may write itself. Pure.

A write by the event loop saves two thread switches, but all clients wait while it runs. So it is
allowed only while writes are short. A write to a file normally only copies to memory (about 20
microseconds), but it waits if the kernel is writing the same pages to a slow disk.
"""

#: A write that takes longer than this stops the event loop's writes for a while. The value is far
#: below the 20 ms for which one request may block the event loop.
LONG_S = 0.005
#: The event loop writes only while the average of recent writes is at most this long.
AVERAGE_S = 0.0005
#: The weight of the newest write in the average.
_NEWEST = 1 / 8
#: After a long write, the pause is this many times as long as the write. So long writes stop the
#: event loop for at most 2 % of the time.
PAUSE_TIMES = 50


class WriteTimes:
    """The times of recent writes, by the event loop and by the appender thread. Only the holder of
    the log's end calls `record`. Times are in seconds of a monotonic clock."""

    def __init__(self) -> None:
        self._average_s = 0.0
        self._paused_until_s = float("-inf")

    def record(self, took_s: float, now_s: float) -> None:
        """Record a write that took `took_s` and ended at `now_s`."""
        self._average_s += (took_s - self._average_s) * _NEWEST
        if took_s >= LONG_S:
            self._paused_until_s = max(self._paused_until_s, now_s + PAUSE_TIMES * took_s)

    def are_short(self, now_s: float) -> bool:
        """Return whether the next write is expected to be short."""
        return self._average_s <= AVERAGE_S and now_s >= self._paused_until_s
