"""The options of a stream, parsed and checked. Pure.

A stream has most options of a batch read (read.py). Its own options limit a micro-batch, control
waiting, and name a group in which the stream's progress is also stored.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.parser import OptionParser
from holdfast.spark.options.read import OPTIONS, STREAM_ONLY, ReadOptions, parse_read

#: Options of a batch that a stream refuses -> the refusal.
_BATCH_REFUSALS: Mapping[str, str] = {
    "endingOffsets": "a stream has no end; trigger(availableNow=True) stops at what is there now",
    "endingTimestamp": "a stream has no end; trigger(availableNow=True) stops at what is there now",
    "endingOffsetsByTimestamp": "a stream has no end; trigger(availableNow=True) stops at what is "
    "there now",
    "pushdown": "Spark tells a stream no filters; give tag or filter as options",
    "topicIds": "belongs to a bound read; a stream keeps its topics' ids in its checkpoint",
}
#: Every option of a stream and what it does; docs/spark.md lists the same.
STREAM_OPTIONS: Mapping[str, str] = {
    **{name: what for name, what in OPTIONS.items() if name not in _BATCH_REFUSALS},
    "startingOffsets": "latest (default), earliest, JSON, or group:NAME; of a new stream only",
    **STREAM_ONLY,
}

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000  # the default of Spark's Kafka connector
DEFAULT_IDLE_WAIT_MS = 1000  # a query's stop() may take this long
MAX_IDLE_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class TriggerLimits:
    """The limits of a micro-batch; None means that there is no limit. A micro-batch starts when
    `min_offsets` messages wait, or `max_delay_ms` after the last micro-batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


#: A trigger that reads everything at once has no limits.
NO_LIMITS = TriggerLimits()


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """The options of one stream. `group` is the group in which the stream's progress is also
    stored, or None."""

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
    return StreamOptions(
        read=read,
        limits=_parse_limits(options),
        idle_wait_ms=_parse_idle_wait(options),
        group=group,
    )


def _parse_limits(options: OptionParser) -> TriggerLimits:
    max_offsets = options.count("maxOffsetsPerTrigger")
    min_offsets = options.count("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise InvalidOption(
            "minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger {max_offsets}"
        )
    if options.text("maxTriggerDelay") is not None and min_offsets is None:
        raise InvalidOption("maxTriggerDelay", "goes with minOffsetsPerTrigger; leave it out")
    max_bytes = options.size("maxBytesPerTrigger", 0)
    return TriggerLimits(
        max_offsets,
        max_bytes or None,
        min_offsets,
        options.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )


def _parse_idle_wait(options: OptionParser) -> int:
    wait_ms = options.number("idleWaitMs", minimum=0)
    if wait_ms is None:
        return DEFAULT_IDLE_WAIT_MS
    if wait_ms > MAX_IDLE_WAIT_MS:
        raise InvalidOption(
            "idleWaitMs", f"{wait_ms} is more than {MAX_IDLE_WAIT_MS}, which stop() would wait for"
        )
    return wait_ms
