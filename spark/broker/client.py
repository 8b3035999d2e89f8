"""The part of the broker's HTTP API that Spark jobs need: synchronous, with retries.

Every call raises BrokerUnavailable if the broker gives no usable answer in time, and BrokerRefused
if the broker answers with a problem that no retry fixes. The docstrings name only further errors.
"""

import logging
from collections.abc import Iterable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any, Generic, Self, TypeVar
from urllib.parse import quote

from holdfast.client.transport.requests import BATCH, MSGPACK, REBUILT_BATCH
from holdfast.commitlog.format.batch_header import Buffer
from holdfast.commitlog.format.segment_format import SEGMENT_HEADER_SIZE
from holdfast.log_files.descriptions import Split, StoredOffsets, TopicState
from holdfast.log_files.ranges import OffsetRange, QueueState, SegmentRange
from holdfast.spark.broker.block_receiver import BlockGatherer
from holdfast.spark.broker.transport import (
    NO_LEASES_LEFT,
    RETRY_FOR_S,
    TIMEOUT_S,
    Query,
    Reply,
    Transport,
)
from holdfast.spark.errors import (
    BrokerRefused,
    BrokerUnavailable,
    OffsetsMoved,
    ReplyMismatch,
    SparkError,
    TopicRecreated,
)
from holdfast.spark.options.location import Address

_log = logging.getLogger("holdfast.spark")

_Body = TypeVar("_Body")

MAX_MESSAGES = 10_000  # the broker's maximum for one pull
_PAGE = 1000
_QUEUES_PER_PLAN = 100  # so that a request line stays below the usual limit of 8 KiB


@dataclass(frozen=True, slots=True)
class PullOutcome(Generic[_Body]):
    """The result of a pull. Continue at `next_offset`. `skipped` are offset ranges (start
    inclusive, end exclusive) that the broker left out because their data is damaged and an operator
    has given it up."""

    body: _Body
    next_offset: int
    skipped: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class PublishedBatch:
    """The location of a published batch. `is_duplicate` is True if it had been stored before."""

    queue: int
    offset: int
    count: int
    is_duplicate: bool


class BrokerClient:
    """A client of one broker, and a LiveCatalog. It connects on first use. Close it, or use it as a
    context manager; `close` may be called twice. Use it from one thread at a time."""

    def __init__(self, transport: Transport) -> None:
        self._transport = transport

    @classmethod
    def open(
        cls, address: Address, *, retry_for_s: float = RETRY_FOR_S, timeout_s: float = TIMEOUT_S
    ) -> Self:
        return cls(Transport(address, retry_for_s=retry_for_s, timeout_s=timeout_s))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._transport.close()

    def topic_names(self) -> Iterator[str]:
        query: dict[str, str | int] = {"limit": _PAGE}
        while True:
            page = self._transport.get("/v1/topics", query).json()
            for topic in page["topics"]:
                yield topic["topic"]
            if (following := page.get("next")) is None:
                return
            query["after"] = following

    def describe(self, topic: str) -> TopicState:
        found = self._transport.get(_topic_path(topic)).json()
        return TopicState(
            name=topic,
            topic_id=found["topic_id"],
            queues={
                queue["queue"]: QueueState(queue["min_offset"], queue["max_offset"])
                for queue in found["queues"]
            },
            priority_levels=found.get("config", {}).get("priority_levels"),
        )

    def check_topic(self, topic: str, topic_id: int) -> None:
        """Raise TopicRecreated if the topic's id is no longer `topic_id`."""
        _check_topic_id(topic, topic_id, self.describe(topic).topic_id)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        path = f"{_queue_path(topic, queue)}/offset"
        return int(self._transport.get(path, {"timestamp_ms": timestamp_ms}).json()["offset"])

    def stored_offsets(self, group: str, topic: str) -> StoredOffsets | None:
        reply = self._get_of_group(_offsets_path(group, topic))
        return None if reply is None else _parse_stored_offsets(reply)

    def store_offsets(
        self, group: str, topic: str, offsets: Mapping[int, int], *, etag: str | None
    ) -> StoredOffsets:
        """Store a group's offsets if the stored offsets still have the version `etag`. If `etag` is
        None, store them in any case.

        Raises OffsetsMoved if the stored offsets have another version. But if they already equal
        `offsets`, the call succeeds, so it may be repeated after a lost reply.
        """
        content = {"offsets": {str(queue): offset for queue, offset in offsets.items()}}
        try:
            return _parse_stored_offsets(
                self._transport.put(_offsets_path(group, topic), content, if_match=etag)
            )
        except BrokerRefused as refused:
            if refused.status != 412:
                raise
            stored = self.stored_offsets(group, topic)
            if stored is None or any(
                stored.offsets.get(queue) != offset for queue, offset in offsets.items()
            ):
                raise OffsetsMoved(group, topic) from refused
            return stored

    def has_leases(self, group: str) -> bool:
        """Return True if the group exists and leases messages to members. Storing offsets for such
        a group would change which messages its members get."""
        reply = self._get_of_group(_group_path(group))
        return reply is not None and "config" in reply.json()

    def _get_of_group(self, path: str) -> Reply | None:
        """GET `path`. Return None if the group does not exist."""
        try:
            return self._transport.get(path)
        except BrokerRefused as refused:
            if refused.type != "/problems/unknown-group":
                raise
            return None

    def hold(self, topic: str, offsets: Mapping[int, int], wait_ms: int) -> None:
        """Wait as LiveCatalog describes. Return immediately if there are too many queues for one
        request, or if the request fails."""
        if len(offsets) > _QUEUES_PER_PLAN:
            return
        query: Query = {
            "offsets": ",".join(f"{queue}:{offset}" for queue, offset in sorted(offsets.items())),
            "wait_ms": wait_ms,
            "max_messages": 1,
            "max_bytes": 1,
        }
        try:
            self._transport.get(
                f"{_topic_path(topic)}/messages", query, accept=MSGPACK, retry_for_s=0
            )
        except (BrokerRefused, BrokerUnavailable) as error:
            _log.info("a wait for messages of %r failed, so it is polled: %s", topic, error)

    def splits(
        self,
        topic: str,
        topic_id: int,
        ranges: Mapping[int, OffsetRange],
        *,
        max_bytes: int,
        min_splits: int,
        lease_ms: int = 0,
    ) -> list[Split]:
        """Return the ranges cut into parts, as Catalog describes. With `lease_ms`, the broker
        protects the ranges from retention for that time, if it can grant leases. After an error,
        all leases are released. Raises TopicRecreated if the topic's id is no longer `topic_id`."""
        queues = sorted(ranges.items())
        found = []
        leases: list[tuple[str, str]] = []
        with ExitStack() as on_error:
            on_error.callback(self.release_leases, leases)
            for at in range(0, len(queues), _QUEUES_PER_PLAN):
                part_of_plan = dict(queues[at : at + _QUEUES_PER_PLAN])
                reply = self._plan(topic, part_of_plan, max_bytes, min_splits, lease_ms)
                lease_id = reply.get("lease", {}).get("id")
                if lease_id is not None:
                    leases.append((topic, lease_id))
                _check_topic_id(topic, topic_id, reply["topic_id"])
                segments = reply.get("segments", ())
                found += [
                    Split(
                        split["queue"],
                        split["start_offset"],
                        split["end_offset"],
                        split["bytes"],
                        _find_segments(split, segments),
                        lease_id,
                    )
                    for split in reply["splits"]
                    if split["queue"] in part_of_plan  # a plan without a lease covers every queue
                ]
            on_error.pop_all()
        return sorted(found, key=lambda split: (split.queue, split.start))

    def _plan(
        self,
        topic: str,
        ranges: Mapping[int, OffsetRange],
        max_bytes: int,
        min_splits: int,
        lease_ms: int,
    ) -> dict[str, Any]:
        """Return a plan, with a lease if the broker supports leases and can grant one."""
        path = f"{_topic_path(topic)}/splits"
        query: Query = {
            "start": ",".join(f"{queue}:{part.start}" for queue, part in ranges.items()),
            "end": ",".join(f"{queue}:{part.end}" for queue, part in ranges.items()),
            "max_bytes": max_bytes,
            "min_splits": min_splits,
        }
        if lease_ms:
            leased = {**query, "only_named": "true", "lease_ms": lease_ms}
            try:
                return dict(self._transport.get(path, leased).json())
            except BrokerRefused as refused:
                if not _means_no_lease(refused):
                    raise
                _log.warning("%r is read without a lease against retention: %s", topic, refused)
        return dict(self._transport.get(path, query).json())

    def release_leases(self, leases: Iterable[tuple[str, str]]) -> None:
        """Release leases, as LiveCatalog describes. If the broker does not answer, the remaining
        leases expire later."""
        for topic, lease_id in leases:
            try:
                self._transport.delete(_lease_path(topic, lease_id))
            except BrokerRefused as refused:
                _log.info("a lease on %r was not released and will expire: %s", topic, refused)
            except SparkError as error:
                _log.info("leases were not released and will expire: %s", error)
                return

    def extend_lease(self, topic: str, lease_id: str, lease_ms: int) -> bool:
        """Extend a lease to `lease_ms` from now. Return False if it does not exist."""
        try:
            self._transport.put(_lease_path(topic, lease_id), {"lease_ms": lease_ms})
        except BrokerRefused as refused:
            if refused.status != 404:
                raise
            _log.warning("%r is read without a lease against retention now: %s", topic, refused)
            return False
        return True

    def pull(
        self,
        topic: str,
        topic_id: int,
        queue: int,
        offset: int,
        *,
        max_bytes: int,
        accept: str = BATCH,
        tags: frozenset[str] = frozenset(),
        expression: str | None = None,
    ) -> PullOutcome[Buffer]:
        """Return messages from `offset` on, in the format `accept`: whole blocks or msgpack. Raises
        TopicRecreated if the topic's id is no longer `topic_id`."""
        query = _pull_query(offset, MAX_MESSAGES, max_bytes, tags)
        if expression is not None:
            query["filter"] = expression
        reply = self._transport.get(f"{_queue_path(topic, queue)}/messages", query, accept=accept)
        return _make_outcome(topic, topic_id, reply, reply.body or b"")

    def pull_blocks(
        self,
        topic: str,
        topic_id: int,
        queue: int,
        offset: int,
        gatherer: BlockGatherer,
        *,
        max_messages: int,
        max_bytes: int,
        tags: frozenset[str] = frozenset(),
    ) -> PullOutcome[Buffer | None]:
        """Return whole blocks from `offset` on, in the form that BatchRun reads. The broker may
        return fewer than requested. The body is None if the blocks were added to `gatherer`. Raises
        TopicRecreated if the topic's id is no longer `topic_id`."""
        query = _pull_query(offset, min(max_messages, MAX_MESSAGES), max_bytes, tags)
        path = f"{_queue_path(topic, queue)}/messages"
        reply = self._transport.get(path, query, accept=REBUILT_BATCH, gatherer=gatherer)
        pulled = _make_outcome(topic, topic_id, reply, reply.body)
        if pulled.body is None:
            # The blocks are whole, so they may end after the offset that the broker reports.
            pulled = replace(pulled, next_offset=max(pulled.next_offset, gatherer.end_offset))
        return pulled

    def create_topic(self, topic: str) -> None:
        """Create the topic with the broker's defaults, unless it exists."""
        self._transport.put(_topic_path(topic), {})

    def publish(self, topic: str, batches: bytes, *, durability: str) -> list[PublishedBatch]:
        """Publish encoded batches, wait until they are as durable as requested (`fsync` or
        `written`), and return their locations in the same order.

        Either all batches are stored or none. The request may be sent several times; batches with a
        producer id are still stored only once.
        """
        reply = self._transport.post(
            f"{_topic_path(topic)}/messages", batches, {"durability": durability}
        ).json()
        return [
            PublishedBatch(
                result["queue"], result["offset"], result["count"], result.get("duplicate", False)
            )
            for result in reply["results"]
        ]


def _means_no_lease(refused: BrokerRefused) -> bool:
    """Return True if the broker has no lease left, or does not support leases."""
    return refused.type == NO_LEASES_LEFT or (
        refused.type == "/problems/invalid-parameter"
        and refused.problem.get("parameter") in {"lease_ms", "only_named"}
    )


def _find_segments(
    split: Mapping[str, int], segments: Iterable[Mapping[str, int]]
) -> tuple[SegmentRange, ...]:
    """Return the ranges of segment files in which a split is stored. If the reply lacks a segment,
    the reader does not find its rows in the files, and requests them from the broker."""
    split_start, split_end = split.get("physical_offset", 0), split.get("end_physical_offset", 0)
    found = []
    for segment in segments:
        start = segment["start_offset"]
        first = max(split_start, start + SEGMENT_HEADER_SIZE)
        end = min(split_end, start + segment["size"])
        if first < end:
            found.append(SegmentRange(start, segment["created_timestamp_us"], first, end))
    return tuple(found)


def _pull_query(
    offset: int, max_messages: int, max_bytes: int, tags: frozenset[str]
) -> dict[str, str | int]:
    tag = {"tag": ",".join(sorted(tags))} if tags else {}
    return {"offset": offset, "max_messages": max_messages, "max_bytes": max_bytes, **tag}


def _make_outcome(topic: str, topic_id: int, reply: Reply, body: _Body) -> PullOutcome[_Body]:
    _check_topic_id(topic, topic_id, _parse_header_number(reply, "Holdfast-Topic-Id"))
    return PullOutcome(
        body, _parse_header_number(reply, "Holdfast-Next-Offset"), _parse_skipped(reply)
    )


def _check_topic_id(topic: str, bound_id: int, found_id: int) -> None:
    if found_id != bound_id:
        raise TopicRecreated(topic, bound_id, found_id)


def _parse_stored_offsets(reply: Reply) -> StoredOffsets:
    offsets: Mapping[str, Any] = reply.json()["offsets"]
    return StoredOffsets(
        {int(queue): int(offset) for queue, offset in offsets.items()},
        etag=reply.headers.get("etag") or "",
    )


def _parse_header_number(reply: Reply, name: str) -> int:
    text = reply.headers.get(name.lower()) or ""
    if not text.isdecimal():
        raise ReplyMismatch(f"the broker's reply has {name} {text!r}; is it a Holdfast broker?")
    return int(text)


def _parse_skipped(reply: Reply) -> tuple[tuple[int, int], ...]:
    text = reply.headers.get("holdfast-skipped")
    if text is None:
        return ()
    try:
        ranges = (tuple(map(int, each.split(":"))) for each in text.split(","))
        return tuple((start, end) for _, start, end in ranges)
    except ValueError as error:
        raise ReplyMismatch(f"the broker's reply has Holdfast-Skipped {text[:80]!r}") from error


def _topic_path(topic: str) -> str:
    return f"/v1/topics/{quote(topic, safe='')}"


def _queue_path(topic: str, queue: int) -> str:
    return f"{_topic_path(topic)}/queues/{queue}"


def _lease_path(topic: str, lease_id: str) -> str:
    return f"{_topic_path(topic)}/read-leases/{quote(lease_id, safe='')}"


def _group_path(group: str) -> str:
    return f"/v1/groups/{quote(group, safe='')}"


def _offsets_path(group: str, topic: str) -> str:
    return f"{_group_path(group)}/topics/{quote(topic, safe='')}/offsets"
