"""A read with fixed offsets: `bind` fixes them, `load` reads the rows as often as needed, and
`save` stores the end offsets in a group."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.log_files.descriptions import NO_STORED_OFFSETS, StoredOffsets
from holdfast.log_files.ranges import OffsetRange
from holdfast.spark.broker.client import BrokerClient
from holdfast.spark.options.offsets import RANGE_OPTIONS, ExplicitOffsets, format_offsets
from holdfast.spark.options.read import ReadOptions, parse_options
from holdfast.spark.read.plan import BoundTopic, bind_topics, require_topics

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: The options, in lower case, that `bind` replaces by explicit offsets, topic ids and columns.
_REPLACED = {"topic", "subscribe", "subscribepattern", "assign", "topicids", "columns"} | {
    name.lower() for name in RANGE_OPTIONS
}


@dataclass(frozen=True)
class Bound:
    """Fixed ranges of fixed topics. Each load returns the same rows. `options` are all options that
    a load needs, as plain strings. Keep `options` to read the same rows again later, in another
    session. They contain the token, if there is one."""

    options: Mapping[str, str] = field(repr=False)
    group: str | None
    topics: tuple[BoundTopic, ...]
    stored: Mapping[str, StoredOffsets] = field(repr=False)

    @property
    def offsets(self) -> dict[str, dict[int, OffsetRange]]:
        """The ranges: topic -> queue -> (start, end); the end is exclusive."""
        return {topic.name: dict(topic.ranges) for topic in self.topics}

    def load(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a DataFrame. Register the data source first if necessary."""
        from holdfast.spark.session import register

        register(spark)
        return spark.read.format("holdfast").options(**self.options).load()

    def save(self) -> None:
        """Durably store the end of this read as the group's offsets. Calling it again is safe.

        Call it after the rows have been processed; `save` does not check that. Topics are saved one
        by one, in order. At the first error, that topic and the topics after it are not saved.
        Raises OffsetsMoved if the group's offsets in a topic have changed since `bind`, and
        TopicRecreated if a topic was deleted and created again. Raises ValueError if there is no
        group, and InvalidOption if there is no broker: with `path`, also give `url` to `bind`.
        """
        if self.group is None:
            raise ValueError("save() needs a group: give bind(..., group=...)")
        location = parse_options(self.options).location
        address = location.require_broker("offsets are stored by a broker")
        with BrokerClient.open(address) as client:
            for topic in self.topics:
                client.check_topic(topic.name, topic.topic_id)
                ends = {queue: part.end for queue, part in topic.ranges.items()}
                client.store_offsets(
                    self.group, topic.name, ends, etag=self.stored[topic.name].etag
                )


def bind(
    url: str | None = None,
    topic: str | None = None,
    *,
    group: str | None = None,
    **options: object,
) -> Bound:
    """Resolve the options to fixed offsets of fixed topics, and return them as a read.

    `options` are those of the data source; `path` may replace `url`, or be given with it. With a
    `group`, each queue starts at the group's stored offset, or at its earliest message if nothing
    is stored (`save` creates a group that does not exist). An option whose name begins with
    `starting` overrides the group's offsets.
    """
    from holdfast.spark.read.reading import open_catalog  # imported here because it needs pyarrow

    all_options = {"url": url, "topic": topic, **options}
    given = {name: _option_text(value) for name, value in all_options.items() if value is not None}
    parsed = parse_options(given)
    with open_catalog(parsed) as catalog:
        stored: dict[str, StoredOffsets] = {}
        if group is not None:
            stored = {
                name: catalog.stored_offsets(group, name) or NO_STORED_OFFSETS
                for name in require_topics(catalog, parsed)
            }
            if not any(name.lower().startswith("starting") for name in given):
                parsed = replace(
                    parsed, start=ExplicitOffsets(_start_offsets(stored, parsed.assigned))
                )
        topics = bind_topics(catalog, parsed)
    return Bound(_fixed_options(given, parsed, topics), group, topics, stored)


def _start_offsets(
    stored: Mapping[str, StoredOffsets], assigned: Mapping[str, frozenset[int]] | None
) -> dict[str | None, Mapping[int, int]]:
    """Return the group's stored offsets, without the queues that are not read."""
    return {
        name: {
            queue: offset
            for queue, offset in found.offsets.items()
            if assigned is None or queue in assigned[name]
        }
        for name, found in stored.items()
    }


def _fixed_options(
    given: Mapping[str, str], parsed: ReadOptions, topics: tuple[BoundTopic, ...]
) -> dict[str, str]:
    """Return the options that read the same rows at every load. Queues are assigned one by one,
    because a topic may get more queues later."""
    kept = {name: value for name, value in given.items() if name.lower() not in _REPLACED}
    starts = {topic.name: {q: part.start for q, part in topic.ranges.items()} for topic in topics}
    ends = {topic.name: {q: part.end for q, part in topic.ranges.items()} for topic in topics}
    return kept | {
        "assign": json.dumps({topic.name: sorted(topic.ranges) for topic in topics}),
        "topicIds": json.dumps({topic.name: topic.topic_id for topic in topics}),
        "startingOffsets": format_offsets(starts),
        "endingOffsets": format_offsets(ends),
        "columns": ",".join(parsed.columns),
    }


def _option_text(value: object) -> str:
    """Return an option's value as text, in the form in which Spark passes it."""
    return str(value).lower() if isinstance(value, bool) else str(value)
