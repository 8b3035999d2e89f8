"""The options of a read, parsed and checked. Pure.

If Spark's Kafka connector has an option, its name is the same here. stream.py lists which of these
options a stream refuses, and which further options a stream has.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.spark.errors import InvalidOption
from holdfast.spark.options.address import Address
from holdfast.spark.options.columns import SCHEMAS, choose_columns
from holdfast.spark.options.location import LOCATION_OPTIONS, DataLocation, parse_location
from holdfast.spark.options.offsets import OffsetSpec
from holdfast.spark.options.parser import OptionParser, parse_list
from holdfast.spark.options.ranges import RANGE_OPTIONS, parse_range

#: Every option and what it does; docs/spark.md lists the same.
OPTIONS: Mapping[str, str] = {
    **LOCATION_OPTIONS,
    "topic": "topic to read, or several with commas between",
    "subscribe": "the same under its Kafka name",
    "subscribePattern": "regular expression that topics match as a whole",
    "assign": 'only these queues: {"topic": [0, 1]}',
    **RANGE_OPTIONS,
    "topicIds": "fail unless the topics still have these ids (a bound read sets it)",
    "schema": "holdfast (default) or kafka",
    "columns": "names of the columns wanted, with commas between",
    "includeBody": "false leaves the body out (default true)",
    "includeHeaders": "true adds headers to the Kafka columns (default false)",
    "tag": "only messages with this tag, or one of several with commas between",
    "filter": "only messages that this SQL92 expression over the properties holds for",
    "pushdown": "true lets Spark's own filters narrow what is read (default false)",
    "minPartitions": "split into at least so many tasks, if there are as many blocks",
    "maxBytesPerPartition": "split into tasks of at most so many bytes (default 128m)",
    "fetchMaxBytes": "bytes that a task asks for at once (default 8m, at most 16m)",
    "leaseMs": "keep retention from what is planned for so long, and longer while tasks read it "
    "(default 600000; 0: do not)",
    "failOnDataLoss": "false skips messages that are gone, and says so in the log (default true)",
}

#: Options that only a stream has; a batch refuses them.
STREAM_ONLY: Mapping[str, str] = {
    "maxOffsetsPerTrigger": "most messages of a micro-batch",
    "maxBytesPerTrigger": "most stored bytes of a micro-batch",
    "minOffsetsPerTrigger": "wait for so many messages before a micro-batch",
    "maxTriggerDelay": "but no longer than this, such as 90s (default 15m)",
    "idleWaitMs": "how long to wait for messages in one go when there are none (default 1000)",
    "groupId": "store the stream's progress as this group's offsets, too",
}
_STREAM_REFUSALS = dict.fromkeys(
    STREAM_ONLY, "belongs to a stream (spark.readStream); leave it out"
)

DEFAULT_PARTITION_BYTES = 128 * 1024 * 1024  # Spark's default for files
DEFAULT_FETCH_BYTES = 8 * 1024 * 1024
DEFAULT_LEASE_MS = 600_000
MAX_FETCH_BYTES = 16 * 1024 * 1024  # the broker's maximum for one pull


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """The options of one read. Exactly one of `topics`, `pattern` and `assigned` is set.

    A stream uses `start` only if it has no checkpoint yet, and never uses `end`.
    """

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
        raise InvalidOption("includeHeaders", "belongs to schema=kafka; the column is 'properties'")
    location = parse_location(options)
    expression = options.text("filter")
    if expression is not None and (location.address is None or location.transport == "files"):
        raise InvalidOption("filter", "only a broker evaluates it: give url, or filter in Spark")
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
        tags=frozenset(parse_list("tag", options.text("tag") or "")),
        filter=expression,
        min_partitions=options.count("minPartitions"),
        max_bytes_per_partition=options.size("maxBytesPerPartition", DEFAULT_PARTITION_BYTES),
        fetch_max_bytes=options.size("fetchMaxBytes", DEFAULT_FETCH_BYTES, maximum=MAX_FETCH_BYTES),
        fail_on_data_loss=options.flag("failOnDataLoss", True),
        pushdown=options.flag("pushdown", False),
        lease_ms=_parse_lease_ms(options),
    )


def _parse_lease_ms(options: OptionParser) -> int:
    lease_ms = options.number("leaseMs", minimum=0)
    return DEFAULT_LEASE_MS if lease_ms is None else lease_ms


def _parse_topics(
    options: OptionParser,
) -> tuple[tuple[str, ...] | None, str | None, Mapping[str, frozenset[int]] | None]:
    """Return (topics, pattern, assigned queues); exactly one of them is not None."""
    name = options.exactly_one("topic", "subscribe", "subscribePattern", "assign")
    text = options.text(name) or ""
    if name == "assign":
        return None, None, _parse_assigned(options.json("assign"))
    if name == "subscribePattern":
        try:
            re.compile(text)
        except re.error as error:
            raise InvalidOption(name, f"{text!r} is no regular expression: {error}") from error
        return None, text, None
    return tuple(parse_list(name, text)), None, None


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
        raise InvalidOption("topicIds", 'gives a topic\'s id as a number: {"orders": 7}')
    return given
