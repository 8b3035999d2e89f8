"""How many messages to ask a group for, so that the worker is busy with the smallest buffer. Pure.

More is asked for when only as many are left as are worked on in the time of one request, and a
quarter more; the answer fills up to twice of that. How many that are is seen from what is used
while a request is under way; if all of it was, and the broker had more, it is taken to be twice
as many. So what a member holds back from others is not much more than it needs.
"""


class Credit:
    """Asks when no more than `low` are left, at first `least`; at most `most` are held in all."""

    def __init__(self, least: int, most: int) -> None:
        self._least = min(least, most)
        self._most = most
        self._buffered = 0
        self.low = self._least

    def ask(self, buffered: int, held: int) -> int:
        """Return how many messages to ask for now, 0 for none yet.

        `buffered` wait to be worked on; `held` are all that are leased, those too.
        """
        if buffered > self.low:
            return 0
        self._buffered = buffered
        return max(0, min(2 * self.low - buffered, self._most - held))

    def replied(self, asked: int, got: int, buffered: int) -> None:
        """Learn from the answer to the last `ask`, when `buffered` were left."""
        if not buffered:
            if got >= asked:
                self.low = min(self._most, self.low * 2)
            return
        needed = (self._buffered - buffered) * 5 // 4 + 1
        # Down in small steps: one quick answer says little.
        self.low = max(self._least, needed, self.low * 7 // 8)
        self.low = min(self._most, self.low)
