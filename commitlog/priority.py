"""Priorities 0 to 9 as levels of a topic, each level a queue. Pure.

A topic of q queues with k levels has q * k queues in the log: `index * k + level`, the higher
level being served first by groups. The mapping is that of AMQP 0-10 and JMS. A topic without
levels has one, which every priority maps to.
"""

HIGHEST_PRIORITY = 9
DEFAULT_PRIORITY = 4
MAX_LEVELS = 10


def level_of(priority: int, levels: int) -> int:
    """Return the level of a priority: with 2 levels 0 to 4 are low, 5 to 9 high."""
    return min(max(priority - (5 - -(-levels // 2)), 0), levels - 1)


def queue_of(index: int, priority: int | None, levels: int) -> int:
    """Return the queue that a message goes to; None is the priority of one that does not say."""
    return index * levels + level_of(DEFAULT_PRIORITY if priority is None else priority, levels)


def level_of_queue(queue: int, levels: int) -> int:
    """Return the level that a queue is."""
    return queue % levels
