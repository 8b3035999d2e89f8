"""What a stream was asked for: a read that begins somewhere and does not end. Pure.

What is read, and how, are the options of any read (options.py). A stream's own say how much a
micro-batch takes, how it waits when there is nothing, and who is told how far it is.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from holdfast.spark.errors import InvalidOption
from holdfast.spark.option_parser import GivenOptions
from holdfast.spark.options import OPTIONS, STREAM_ONLY, ReadOptions, parse_read

#: Options of a batch that a stream refuses, and what is said of them.
_OF_BATCHES: Mapping[str, str] = {
    "endingOffsets": "a stream has no end; trigger(availableNow=True) stops at what is there now",
    "endingTimestamp": "a stream has no end; trigger(availableNow=True) stops at what is there now",
    "endingOffsetsByTimestamp": "a stream has no end; trigger(availableNow=True) stops at what is "
    "there now",
    "pushdown": "Spark tells a stream no filters; give tag or filter as options",
    "topicIds": "belongs to a bound read; a stream keeps its topics' ids in its checkpoint",
}
#: Every option of a stream and what it does; docs/spark.md lists the same.
STREAM_OPTIONS: Mapping[str, str] = {
    **{name: what for name, what in OPTIONS.items() if name not in _OF_BATCHES},
    "startingOffsets": "latest (default), earliest, JSON, or group:NAME; of a new stream only",
    **STREAM_ONLY,
}

DEFAULT_MAX_TRIGGER_DELAY_MS = 15 * 60_000  # Kafka's
DEFAULT_IDLE_WAIT_MS = 1000  # what stop() may find the source doing
MAX_IDLE_WAIT_MS = 10_000


@dataclass(frozen=True, slots=True)
class Limits:
    """How much a micro-batch takes. None: no limit. `min_offsets` are waited for, but no longer
    than `max_delay_ms` since the last micro-batch."""

    max_offsets: int | None = None
    max_bytes: int | None = None
    min_offsets: int | None = None
    max_delay_ms: int = DEFAULT_MAX_TRIGGER_DELAY_MS


#: What a trigger gets that takes everything at once.
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class StreamOptions:
    """One stream. `group` is told its progress, None: nobody is."""

    read: ReadOptions
    limits: Limits
    idle_wait_ms: int
    group: str | None


def parse_stream_options(given: Mapping[str, str]) -> StreamOptions:
    """Return the options of a stream. Names are not case-sensitive. Raises InvalidOption."""
    options = GivenOptions(given, STREAM_OPTIONS, elsewhere=_OF_BATCHES)
    read, group = parse_read(options, streaming=True), options.text("groupId")
    if group is not None:
        read.place.broker("groupId stores offsets with a broker")
    return StreamOptions(
        read=read,
        limits=_parse_limits(options),
        idle_wait_ms=_parse_idle_wait(options),
        group=group,
    )


def _parse_limits(options: GivenOptions) -> Limits:
    max_offsets = options.count("maxOffsetsPerTrigger")
    min_offsets = options.count("minOffsetsPerTrigger")
    if max_offsets is not None and min_offsets is not None and min_offsets > max_offsets:
        raise InvalidOption(
            "minOffsetsPerTrigger", f"{min_offsets} is more than maxOffsetsPerTrigger {max_offsets}"
        )
    if options.text("maxTriggerDelay") is not None and min_offsets is None:
        raise InvalidOption("maxTriggerDelay", "goes with minOffsetsPerTrigger; leave it out")
    max_bytes = options.size("maxBytesPerTrigger", 0)
    return Limits(
        max_offsets,
        max_bytes or None,
        min_offsets,
        options.duration_ms("maxTriggerDelay", DEFAULT_MAX_TRIGGER_DELAY_MS),
    )


def _parse_idle_wait(options: GivenOptions) -> int:
    wait_ms = options.number("idleWaitMs", minimum=0)
    if wait_ms is None:
        return DEFAULT_IDLE_WAIT_MS
    if wait_ms > MAX_IDLE_WAIT_MS:
        raise InvalidOption(
            "idleWaitMs", f"{wait_ms} is more than {MAX_IDLE_WAIT_MS}, which stop() would wait for"
        )
    return wait_ms
