"""The bodies of requests and replies about groups: stored offsets, and lists of groups.

`holdfast.groups.settings` has the settings of a group, `holdfast.groups.descriptions` its state.
"""

from typing import Annotated

from msgspec import UNSET, Meta, Struct, UnsetType

from holdfast.groups.config import Mode
from holdfast.http_api.routing import moments
from holdfast.http_api.routing.moments import MAX_TIMESTAMP_MS
from holdfast.http_api.routing.params import invalid
from holdfast.http_api.schemas.messages import Offset, QueueId, Request

OffsetsByQueue = Annotated[
    dict[str, Offset], Meta(description="Queue number as text -> offset of the next message.")
]
TimestampMs = Annotated[int, Meta(ge=0, le=MAX_TIMESTAMP_MS)]
#: A time as a text. The endpoint parses it (`time_of`), because a time may also be a number.
TimeText = Annotated[str, Meta(extra_json_schema={"pattern": moments.PATTERN})]
StartText = Annotated[
    str, Meta(extra_json_schema={"pattern": f"^(earliest|latest)$|{moments.PATTERN}"})
]
START_DOC = (
    "Where to start: `earliest`, `latest`, or a time, as milliseconds since 1970 or ISO 8601 "
    "with a time zone."
)


def start_of(parameter: str, given: str) -> str | int:
    """Parse where to start: return "earliest" or "latest", or a time in milliseconds since 1970.

    Raises Problem.
    """
    if given in ("earliest", "latest"):
        return given
    try:
        return moments.parse_time_ms(given)
    except ValueError:
        allowed = f"earliest or latest or a time: {moments.FORMS}"
        raise invalid(parameter, given, allowed) from None


def time_of(parameter: str, given: str | int) -> int:
    """Return a time in milliseconds since 1970. Raises Problem."""
    if isinstance(given, int):
        return given
    try:
        return moments.parse_time_ms(given)
    except ValueError as error:
        raise invalid(parameter, given, str(error)) from None


class GroupDeletedReply(Struct):
    """The group that was deleted."""

    group: str


# -- stored offsets ------------------------------------------------------------------------


class OffsetsRequest(Request):
    """Offsets to store. Queues that are not in the request keep their offsets."""

    offsets: OffsetsByQueue


class OffsetsReply(Struct):
    """A group's stored offsets on a topic."""

    group: str
    topic: str
    offsets: OffsetsByQueue


class ResetTimestamp(Request):
    """Reset to the first message stored at or after a time."""

    timestamp_ms: TimestampMs | TimeText


class ResetRequest(Request):
    """Where to set a group's offsets. A number or an ISO 8601 text is a time.

    If `queues` is given, only the offsets of these queues are set, otherwise those of all queues.
    With `dry_run`, the request changes nothing and only returns the offsets.
    """

    to: Annotated[StartText | TimestampMs | ResetTimestamp, Meta(description=START_DOC)]
    dry_run: bool = False
    queues: list[QueueId] | None = None


class ResetReply(Struct):
    """The offsets of the queues `before` and `after` the reset.

    Queues that had no stored offset are not in `before`.
    """

    group: str
    topic: str
    dry_run: bool
    before: OffsetsByQueue
    after: OffsetsByQueue


# -- lists of groups ----------------------------------------------------------------------


class GroupSummary(Struct):
    """A group in a list of groups. A group without a `mode` only stores offsets."""

    group: str
    topics: list[str]
    lag_messages: int
    mode: Mode | UnsetType = UNSET


class GroupsReply(Struct):
    """A page of groups, by name. `next` is the `after` of the next page; null on the last page."""

    groups: list[GroupSummary]
    next: str | None
