"""How many messages to request from a group: the smallest buffer that keeps the worker busy. Pure.

A member requests more messages when its buffer has fallen to `low` messages. The reply fills the
buffer up to twice `low`. `low` is the number of messages that the worker used during the last
request, plus a quarter. If the buffer became empty during the request, and the broker sent as many
messages as requested, `low` doubles. So a member holds only a few more messages than it needs.
"""


class Credit:
    """Decides when to request messages, and how many. `low` begins at `least`; the member holds at
    most `most` messages."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._buffered = 0
        self.low = self._least

    def request_size(self, buffered: int, held: int) -> int:
        """Return how many messages to request now; 0 if the buffer is still full enough.

        `buffered` is the number of messages that wait for the worker; `held` is the number of all
        leased messages, including the waiting ones.
        """
        if buffered > self.low:
            return 0
        self._buffered = buffered
        return max(0, min(2 * self.low - buffered, self._most - held))

    def lacks_room(self, buffered: int, held: int) -> bool:
        """Return whether the member has too little room for the messages that it should request."""
        return self._most - held < 2 * self.low - buffered

    def record_reply(self, asked: int, got: int, buffered: int) -> None:
        """Adjust `low` after a request for `asked` messages. The reply had `got` messages. When the
        reply arrived, `buffered` messages were still waiting for the worker."""
        if not buffered:
            if got >= asked:
                self.low = min(self._most, self.low * 2)
            return
        needed = (self._buffered - buffered) * 5 // 4 + 1
        # Decrease in small steps, because a single quick reply may be an exception.
        self.low = max(self._least, needed, self.low * 7 // 8)
        self.low = min(self._most, self.low)
