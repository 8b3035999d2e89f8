"""The options of a batch read, parsed and checked. Pure.

An option that also exists in Spark's Kafka connector has the same name here. stream.py lists which
of these options a stream refuses, and which further options a stream has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.columns import SCHEMAS, choose_columns
from holdfast.spark.options.location import (
    LOCATION_OPTIONS,
    Address,
    DataLocation,
    parse_location,
)
from holdfast.spark.options.offsets import RANGE_OPTIONS, OffsetSpec, parse_range
from holdfast.spark.options.parser import OptionParser

#: Every option and what it does; docs/spark.md lists the same.
OPTIONS: Mapping[str, str] = {
    **LOCATION_OPTIONS,
    "topic": "topic to read, or several separated by commas",
    "subscribe": "Kafka's name for topic",
    "subscribePattern": "regular expression that must match the whole name of a topic",
    "assign": 'only these queues: {"topic": [0, 1]}',
    **RANGE_OPTIONS,
    "topicIds": "fail unless the topics still have these ids (set by a bound read)",
    "schema": "holdfast (default) or kafka",
    "columns": "names of the columns, separated by commas",
    "includeBody": "false omits the body (default true)",
    "includeHeaders": "true adds headers to the Kafka columns (default false)",
    "tag": "only messages with this tag, or with one of several tags separated by commas",
    "filter": "only messages for which this SQL92 expression over the properties is true",
    "pushdown": "true uses the filters of the Spark query to read less (default false)",
    "minPartitions": "minimum number of tasks, if there are enough blocks",
    "maxBytesPerPartition": "most bytes that one task reads (default 128m)",
    "fetchMaxBytes": "most bytes that a task requests at once (default 8m, at most 16m)",
    "leaseMs": "duration of the read lease on planned messages, which running tasks extend "
    "(default 600000; 0: no lease)",
    "failOnDataLoss": "false skips lost messages and logs their number (default true)",
}

#: Options that only a stream has; a batch refuses them.
STREAM_ONLY: Mapping[str, str] = {
    "maxOffsetsPerTrigger": "most messages of a micro-batch",
    "maxBytesPerTrigger": "most stored bytes of a micro-batch",
    "minOffsetsPerTrigger": "start a micro-batch only if this number of messages waits",
    "maxTriggerDelay": "longest wait for minOffsetsPerTrigger, such as 90s (default 15m)",
    "idleWaitMs": "longest single wait for messages if there are none (default 1000)",
    "groupId": "also store the stream's progress as the offsets of this group",
}
_STREAM_REFUSALS = dict.fromkeys(STREAM_ONLY, "is for streams (spark.readStream); omit it")

DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024  # Spark's default for files
DEFAULT_FETCH_BYTES = 8 * 1024 * 1024
DEFAULT_LEASE_MS = 600_000
MAX_FETCH_BYTES = 16 * 1024 * 1024  # the broker's maximum for one pull


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read. Exactly one of `topics`, `pattern` and `assigned` is set. A stream
    uses `start` only if it has no checkpoint yet, and never uses `end`."""

    location: DataLocation
    topics: tuple[str, ...] | None
    pattern: str | None
    assigned: Mapping[str, frozenset[int]] | None
    start: OffsetSpec
    end: OffsetSpec
    topic_ids: Mapping[str, int]
    columns: Mapping[str, str]
    tags: frozenset[str]
    filter: str | None
    min_partitions: int | None
    max_bytes_per_partition: int
    fetch_max_bytes: int
    fail_on_data_loss: bool
    pushdown: bool
    lease_ms: int

    @property
    def address(self) -> Address:
        """The broker's address. Raises InvalidOption if the options name only a directory."""
        return self.location.require_broker("this needs a broker")


def parse_options(given: Mapping[str, str]) -> ReadOptions:
    """Return the options of a batch read. Names are not case-sensitive. Raises InvalidOption."""
    return parse_read(OptionParser(given, OPTIONS, elsewhere=_STREAM_REFUSALS))


def parse_read(options: OptionParser, *, streaming: bool = False) -> ReadOptions:
    """Return the options that a batch and a stream share. Raises InvalidOption."""
    topics, pattern, assigned = _parse_topics(options)
    several = pattern is not None or len(topics or assigned or ()) > 1
    schema = options.one_of("schema", tuple(SCHEMAS), "holdfast")
    start, end = parse_range(options, several=several, streaming=streaming, schema=schema)
    include_headers = options.flag("includeHeaders", False)
    if include_headers and schema != "kafka":
        raise InvalidOption("includeHeaders", "needs schema=kafka; otherwise use column properties")
    location = parse_location(options)
    expression = options.text("filter")
    if expression is not None and (location.address is None or location.transport == "files"):
        raise InvalidOption("filter", "needs url: only a broker evaluates it; or filter in Spark")
    return ReadOptions(
        location=location,
        topics=topics,
        pattern=pattern,
        assigned=assigned,
        start=start,
        end=end,
        topic_ids=_parse_topic_ids(options),
        columns=choose_columns(
            schema,
            options.text("columns"),
            several_topics=several,
            include_body=options.flag("includeBody", True),
            include_headers=include_headers,
        ),
        tags=frozenset(options.words("tag")),
        filter=expression,
        min_partitions=options.number("minPartitions", None, minimum=1),
        max_bytes_per_partition=options.size("maxBytesPerPartition", DEFAULT_PARTITION_BYTES),
        fetch_max_bytes=options.size("fetchMaxBytes", DEFAULT_FETCH_BYTES, maximum=MAX_FETCH_BYTES),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        pushdown=options.flag("pushdown", False),
        lease_ms=options.number("leaseMs", DEFAULT_LEASE_MS),
    )


def _parse_topics(
    options: OptionParser,
) -> tuple[tuple[str, ...] | None, str | None, Mapping[str, frozenset[int]] | None]:
    """Return (topics, pattern, assigned queues); exactly one of them is not None."""
    name = options.exactly_one("topic", "subscribe", "subscribePattern", "assign")
    if name == "assign":
        return None, None, _parse_assigned(options.json("assign"))
    if name == "subscribePattern":
        pattern = options.text(name) or ""
        try:
            re.compile(pattern)
        except re.error as error:
            raise InvalidOption(
                name, f"{pattern!r} is not a regular expression: {error}"
            ) from error
        return None, pattern, None
    return options.words(name), None, None


def _parse_assigned(given: Mapping[str, Any]) -> dict[str, frozenset[int]]:
    for topic, queues in given.items():
        if (
            not isinstance(queues, list)
            or not queues
            or any(type(queue) is not int or queue < 0 for queue in queues)
        ):
            raise InvalidOption("assign", f"{topic!r} needs a list of queue numbers")
    return {topic: frozenset(queues) for topic, queues in given.items()}


def _parse_topic_ids(options: OptionParser) -> dict[str, int]:
    given = options.json("topicIds")
    if any(type(topic_id) is not int for topic_id in given.values()):
        raise InvalidOption("topicIds", 'needs a number for each topic: {"orders": 7}')
    return given
