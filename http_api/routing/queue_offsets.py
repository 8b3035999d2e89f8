"""Parses offsets of several queues in one parameter, such as "0:12,1:40". Pure."""

import re

from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic
from holdfast.http_api.routing.params import invalid, whole_number

PATTERN = "^[0-9]{1,10}:[0-9]{1,18}(,[0-9]{1,10}:[0-9]{1,18})*$"
"""The pattern of the parameter in the OpenAPI document.

It accepts slightly fewer texts than the parser, because a pattern cannot express the maximum of a
number.
"""
EXAMPLE = "queue:offset pairs with commas between, as 0:12,1:40"


_PLAIN = re.compile(PATTERN.replace("$", r"\Z"))


def parse_pairs(parameter: str, given: str, topic: Topic) -> dict[int, int]:
    """Return queue -> offset, in the order of the text. Raises Problem, UnknownQueue."""
    if _PLAIN.match(given):
        numbers = [int(each) for each in given.replace(":", ",").split(",")]
        plain = dict(zip(numbers[::2], numbers[1::2], strict=True))
        if 2 * len(plain) == len(numbers) and max(plain) < topic.queue_count:
            return plain
    # The text is wrong or unusual. Parsing pair by pair finds the error, if there is one.
    offsets: dict[int, int] = {}
    for pair in given.split(","):
        queue_text, _, offset_text = pair.partition(":")
        queue, offset = whole_number(queue_text), whole_number(offset_text)
        if queue is None or offset is None:
            raise invalid(parameter, pair, EXAMPLE)
        if queue >= topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        if queue in offsets:
            raise invalid(parameter, pair, "each queue once", f"queue {queue} is named twice")
        offsets[queue] = offset
    return offsets
