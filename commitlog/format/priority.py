"""Map priorities 0 to 9 to the levels of a topic; each level is a queue. Pure.

A topic of q queues with k levels has q * k queues in the log, numbered `index * k + level`.
Groups deliver higher levels first. The mapping is that of AMQP 0-10 and JMS. A topic without
levels has k = 1, and every priority maps to level 0.
"""

HIGHEST_PRIORITY = 9
DEFAULT_PRIORITY = 4
MAX_LEVELS = 10


def level_of(priority: int, levels: int) -> int:
    """Return the level of a priority. For example with 2 levels, priorities 0 to 4 have level 0
    and 5 to 9 have level 1."""
    return min(max(priority - (5 - -(-levels // 2)), 0), levels - 1)


def queue_of(index: int, priority: int | None, levels: int) -> int:
    """Return the log queue for a message of queue `index`. A priority of None means
    DEFAULT_PRIORITY."""
    return index * levels + level_of(DEFAULT_PRIORITY if priority is None else priority, levels)


def level_of_queue(queue: int, levels: int) -> int:
    return queue % levels
