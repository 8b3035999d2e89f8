"""The options of a stream, parsed and checked. Pure.

A stream has most options of a batch read (read.py). Its own options limit a micro-batch, control
waiting, and name a group in which the stream's progress is also stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.parser import OptionParser
from holdfast.spark.options.read import OPTIONS, STREAM_ONLY, ReadOptions, parse_read

_NO_END = "has no meaning for a stream; trigger(availableNow=True) stops at the current end"
#: Options of a batch that a stream refuses -> the refusal.
_BATCH_REFUSALS: Mapping[str, str] = {
    "endingOffsets": _NO_END,
    "endingTimestamp": _NO_END,
    "endingOffsetsByTimestamp": _NO_END,
    "pushdown": "has no meaning for a stream, because Spark passes no filters to it; use the "
    "options tag or filter",
    "topicIds": "is for bound reads; a stream stores the ids of its topics in its checkpoint",
}
#: Every option of a stream and what it does; docs/spark.md lists the same.
STREAM_OPTIONS: Mapping[str, str] = {
    **{name: what for name, what in OPTIONS.items() if name not in _BATCH_REFUSALS},
    "startingOffsets": "latest (default), earliest, JSON, or group:NAME; only for a new stream",
    **STREAM_ONLY,
}

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000  # the default of Spark's Kafka connector
DEFAULT_IDLE_WAIT_MS = 1000  # a query's stop() may take this long
MAX_IDLE_WAIT_MS = 10_000  # because stop() waits for it


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch; None means that there is no limit. A micro-batch starts when
    `min_offsets` messages wait, or `max_delay_ms` after the last micro-batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


#: A trigger that reads everything in one micro-batch has no limits.
NO_LIMITS = TriggerLimits()


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of a stream. `group` is the group that also stores its progress, or None."""

    read: ReadOptions
    limits: TriggerLimits
    idle_wait_ms: int
    group: str | None


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream. Names are not case-sensitive. Raises InvalidOption."""
    options = OptionParser(given, STREAM_OPTIONS, elsewhere=_BATCH_REFUSALS)
    read, group = parse_read(options, streaming=True), options.text("groupId")
    if group is not None:
        read.location.require_broker("groupId stores offsets with a broker")
    idle_wait_ms = options.number("idleWaitMs", DEFAULT_IDLE_WAIT_MS, maximum=MAX_IDLE_WAIT_MS)
    return StreamOptions(read, _parse_limits(options), idle_wait_ms, group)


def _parse_limits(options: OptionParser) -> TriggerLimits:
    max_offsets = options.number("maxOffsetsPerTrigger", None, minimum=1)
    min_offsets = options.number("minOffsetsPerTrigger", None, minimum=1)
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        detail = f"{min_offsets} is more than maxOffsetsPerTrigger {max_offsets}"
        raise InvalidOption("minOffsetsPerTrigger", detail)
    if options.text("maxTriggerDelay") is not None and min_offsets is None:
        raise InvalidOption("maxTriggerDelay", "needs minOffsetsPerTrigger; omit it")
    max_bytes = options.size("maxBytesPerTrigger", 0)
    return TriggerLimits(
        max_offsets,
        max_bytes or None,
        min_offsets,
        options.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )
