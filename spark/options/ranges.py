"""Parse the options for the start and the end of a read. Pure.

The start and the end are each given as offsets, as one time for all queues, or as a time per queue.
The names are those of Spark's Kafka connector.
"""

from collections.abc import Mapping

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.offsets import (
    EARLIEST,
    LATEST,
    AtTime,
    AtTimes,
    EarliestOrLatest,
    ExplicitOffsets,
    OffsetSpec,
    parse_offsets,
    parse_times,
)
from holdfast.spark.options.parser import OptionParser

RANGE_OPTIONS: Mapping[str, str] = {
    "startingOffsets": "earliest (default), JSON, or group:NAME",
    "endingOffsets": "latest (default), JSON, or group:NAME; exclusive",
    "startingTimestamp": "begin at the first message stored at or after this time, in ms",
    "endingTimestamp": "end before the first message stored at or after this time, in ms",
    "startingOffsetsByTimestamp": 'the same queue by queue: {"topic": {"0": ms}}',
    "endingOffsetsByTimestamp": 'the same queue by queue: {"topic": {"0": ms}}',
    "startingOffsetsByTimestampStrategy": "what a starting time does in a queue with nothing so "
    "new: latest reads nothing of it (default), error fails (default with schema=kafka)",
}


def parse_range(
    options: OptionParser, *, several: bool, streaming: bool, schema: str
) -> tuple[OffsetSpec, OffsetSpec]:
    """Return the start and the end of a read. `several` is True if the read may have more than one
    topic. Raises InvalidOption."""
    must_match = _parse_strategy(options, schema) == "error"
    start = _parse_end(
        options,
        ("startingOffsets", "startingTimestamp", "startingOffsetsByTimestamp"),
        otherwise=EarliestOrLatest(LATEST if streaming else EARLIEST),
        useless=None if streaming else LATEST,
        must_match=must_match,
    )
    end = _parse_end(
        options,
        ("endingOffsets", "endingTimestamp", "endingOffsetsByTimestamp"),
        otherwise=EarliestOrLatest(LATEST),
        useless=EARLIEST,
    )
    match start, end:
        case AtTime(first_ms), AtTime(last_ms) if first_ms > last_ms:
            raise InvalidOption(
                "startingTimestamp", f"{first_ms} is after endingTimestamp {last_ms}"
            )
    for side, spec in (("starting", start), ("ending", end)):
        if several and isinstance(spec, ExplicitOffsets | AtTimes) and None in spec.by_topic:
            name = f"{side}Offsets" + ("ByTimestamp" if isinstance(spec, AtTimes) else "")
            raise InvalidOption(
                name, 'several topics are read: name them, as in {"orders": {"0": 12}}'
            )
    return start, end


def _parse_end(
    options: OptionParser,
    names: tuple[str, str, str],
    *,
    otherwise: OffsetSpec,
    useless: int | None,
    must_match: bool = False,
) -> OffsetSpec:
    by_offset, by_time, by_times = names
    for one, other in ((by_time, by_offset), (by_times, by_offset), (by_time, by_times)):
        options.at_most_one(one, other)
    if (text := options.text(by_offset)) is not None:
        return parse_offsets(by_offset, text, useless=useless)
    if (text := options.text(by_times)) is not None:
        return AtTimes(parse_times(by_times, text), must_match)
    timestamp_ms = options.number(by_time, minimum=0)
    return otherwise if timestamp_ms is None else AtTime(timestamp_ms, must_match)


def _parse_strategy(options: OptionParser, schema: str) -> str:
    name = "startingOffsetsByTimestampStrategy"
    if options.text(name) is not None and not any(
        options.text(each) for each in ("startingTimestamp", "startingOffsetsByTimestamp")
    ):
        raise InvalidOption(name, "goes with startingTimestamp or startingOffsetsByTimestamp")
    return options.one_of(name, ("error", "latest"), "error" if schema == "kafka" else "latest")
