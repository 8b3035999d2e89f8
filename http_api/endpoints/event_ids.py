"""Finds where an event stream resumes, from the id of the last event that the client received."""

from typing import Any

from holdfast.consumequeue.topics import Topic
from holdfast.http_api.endpoints.pull_reply import MAX_QUEUES_IN_HEADERS
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.codecs import EVENTS
from holdfast.http_api.routing.params import invalid
from holdfast.http_api.routing.queue_offsets import parse_pairs

LAST_EVENT_ID = "Last-Event-ID"


def resume_offsets(call: Call[Any], topic: Topic, only: int | None = None) -> dict[int, int] | None:
    """Return the offsets at which a stream resumes; None if it is new or not an event stream.

    The header of another request has no effect, but must be well formed too. For a pull, `only` is
    its queue; for a poll, `only` is None. Raises Problem, UnknownQueue.
    """
    given = call.headers.get(LAST_EVENT_ID)
    if given is None:
        return None
    offsets = parse_pairs(LAST_EVENT_ID, given, topic)
    if only is not None and list(offsets) != [only]:
        raise invalid(LAST_EVENT_ID, given, f"the id of an event of queue {only}")
    if len(offsets) > MAX_QUEUES_IN_HEADERS:
        raise invalid(LAST_EVENT_ID, given, f"{MAX_QUEUES_IN_HEADERS} queues at most")
    return offsets if call.media == EVENTS else None
