"""A read whose offsets are fixed here and now: to load, to replay, and to remember in a group."""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from holdfast.spark.broker_client import BrokerClient
from holdfast.spark.catalog import NEVER_STORED, StoredOffsets
from holdfast.spark.offsets import Given, OffsetRange, offsets_json
from holdfast.spark.options import ReadOptions, parse_options
from holdfast.spark.plan import BoundTopic, bind_topics, topic_names
from holdfast.spark.range_options import RANGE_OPTIONS

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: Options that `bind` answers: a bound read has numbers in their place.
_BOUND = frozenset(
    {
        "topic",
        "subscribe",
        "subscribepattern",
        "assign",
        "topicids",
        "columns",
        *(name.lower() for name in RANGE_OPTIONS),
    }
)


@dataclass(frozen=True)
class Bound:
    """Fixed ranges of fixed topics. It may be loaded again and again, with the same rows.

    `options` are all that it takes to load them, as plain strings: keep them (they hold the
    token, if there is one) to replay the same rows another day, in another session.
    """

    options: Mapping[str, str] = field(repr=False)
    group: str | None
    topics: tuple[BoundTopic, ...]
    stored: Mapping[str, StoredOffsets] = field(repr=False)

    @property
    def offsets(self) -> dict[str, dict[int, OffsetRange]]:
        """What is read: topic -> queue -> (start, end), the end exclusive."""
        return {topic.name: dict(topic.ranges) for topic in self.topics}

    def load(self, spark: "SparkSession") -> "DataFrame":
        """Return the rows as a DataFrame; registers the data source if need be."""
        from holdfast.spark.session import register

        register(spark)
        return spark.read.format("holdfast").options(**self.options).load()

    def save(self) -> None:
        """Move the group's offsets to the end of what is read, durably. May be called again.

        Call it when the rows are safely processed: it does not ask whether they were. Raises
        OffsetsMoved, and saves nothing of that topic, when somebody else moved the group since
        it was bound, and TopicRecreated when the topic is another one by now; with several topics
        each is saved on its own, in order. Raises ValueError when there is no group, and
        InvalidOption when there is no broker: give `bind` its url beside the path.
        """
        if self.group is None:
            raise ValueError("bind(..., group=...) names the group to save; this read has none")
        place = parse_options(self.options).place
        address = place.broker("files alone are never written, so nothing can be saved")
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
    """Fix what is to be read now, and return it; `options` are those of the data source, with
    `path` in place of `url`, or beside it.

    With a `group`, each queue starts where the group has stored that it is, or at its earliest
    message where it has stored nothing (a group that does not exist is created by `save`),
    unless startingOffsets or startingTimestamp says otherwise.
    """
    from holdfast.spark.reading import open_catalog  # needs pyarrow, this module does not

    all_options = {"url": url, "topic": topic, **options}
    given = {name: _text(value) for name, value in all_options.items() if value is not None}
    parsed = parse_options(given)
    with open_catalog(parsed) as catalog:
        stored: dict[str, StoredOffsets] = {}
        if group is not None:
            stored = {
                name: catalog.stored_offsets(group, name) or NEVER_STORED
                for name in topic_names(catalog, parsed)
            }
            if not any(name.lower().startswith("starting") for name in given):
                parsed = replace(parsed, start=Given(_starts(stored, parsed.assigned)))
        topics = bind_topics(catalog, parsed)
    return Bound(_replayable(given, parsed, topics), group, topics, stored)


def _starts(
    stored: Mapping[str, StoredOffsets], assigned: Mapping[str, frozenset[int]] | None
) -> dict[str | None, Mapping[int, int]]:
    """Return where a group is, in the queues that are read: it may be in others, too."""
    return {
        name: {
            queue: offset
            for queue, offset in found.offsets.items()
            if assigned is None or queue in assigned[name]
        }
        for name, found in stored.items()
    }


def _replayable(
    given: Mapping[str, str], parsed: ReadOptions, topics: tuple[BoundTopic, ...]
) -> dict[str, str]:
    """Return the options that read the same rows whenever they are loaded.

    Queues are assigned one by one, since a topic may get more of them.
    """
    kept = {name: value for name, value in given.items() if name.lower() not in _BOUND}
    starts = {topic.name: {q: part.start for q, part in topic.ranges.items()} for topic in topics}
    ends = {topic.name: {q: part.end for q, part in topic.ranges.items()} for topic in topics}
    return kept | {
        "assign": json.dumps({topic.name: sorted(topic.ranges) for topic in topics}),
        "topicIds": json.dumps({topic.name: topic.topic_id for topic in topics}),
        "startingOffsets": offsets_json(starts),
        "endingOffsets": offsets_json(ends),
        "columns": ",".join(parsed.columns),
    }


def _text(value: object) -> str:
    """Return an option's value as Spark would hand it over."""
    return str(value).lower() if isinstance(value, bool) else str(value)
