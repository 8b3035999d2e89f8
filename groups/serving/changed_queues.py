"""Records which queues of a topic have changed, in the order of their last change. Pure.

A change, called a move here, is that a queue gets messages or that its first messages are removed.
A group asks for the changes when it needs them. So a change costs nothing for groups that do not
request.
"""


class ChangedQueues:
    """The last change of each queue of one topic."""

    def __init__(self) -> None:
        self.count = 0
        """The number of changes so far."""
        self._moves: dict[int, int] = {}

    def note(self, queue: int) -> None:
        """Record that a queue has changed."""
        self.count += 1
        self._moves.pop(queue, None)
        self._moves[queue] = self.count

    def since(self, count: int, most: int) -> tuple[list[int], int]:
        """Return at most `most` queues that changed after the first `count` changes, the earliest
        change first. Also return the count for the next call."""
        found = []
        for queue in reversed(self._moves):
            if self._moves[queue] <= count:
                break
            found.append(queue)
        found.reverse()
        if len(found) <= most:
            return found, self.count
        return found[:most], self._moves[found[most - 1]]
