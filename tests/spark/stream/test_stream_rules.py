"""Random topics, limits and times: a stream skips and repeats nothing, and keeps its limits."""

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from holdfast.log_files.descriptions import Split, StoredOffsets, TopicState
from holdfast.log_files.ranges import OffsetRange, QueueState
from holdfast.spark.options.stream import NO_LIMITS, TriggerLimits, parse_stream_options
from holdfast.spark.stream.driver import StreamDriver
from holdfast.spark.stream.offsets import StreamOffsets, decode_offsets, encode_offsets

TOPICS = ("a", "b")


@dataclass
class Blocks:
    """A queue as a list of blocks: (message count, bytes)."""

    blocks: list[tuple[int, int]] = field(default_factory=list)

    @property
    def end(self) -> int:
        return sum(count for count, _ in self.blocks)

    def touched(self, start: int, end: int) -> Iterator[tuple[int, int, int]]:
        """Yield (start, end, bytes) of each block's part in a range."""
        base = 0
        for count, size in self.blocks:
            if max(base, start) < min(base + count, end):
                yield max(base, start), min(base + count, end), size
            base += count


@dataclass
class MemoryCatalog:
    """A catalog in memory whose topics only grow."""

    topics: dict[str, list[Blocks]]

    def topic_names(self) -> Iterator[str]:
        return iter(self.topics)

    def describe(self, topic: str) -> TopicState:
        queues = {n: QueueState(0, each.end) for n, each in enumerate(self.topics[topic])}
        return TopicState(topic, 1 + TOPICS.index(topic), queues, None)

    def offset_at(self, topic: str, queue: int, timestamp_ms: int) -> int:
        raise NotImplementedError

    def stored_offsets(self, group: str, topic: str) -> StoredOffsets | None:
        raise NotImplementedError

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
        splits: list[Split] = []
        for queue, (start, end) in sorted(ranges.items()):
            open_bytes = max_bytes + 1
            for first, last, size in self.topics[topic][queue].touched(start, end):
                if open_bytes + size <= max_bytes:
                    before = splits.pop()
                    first, size = before.start, size + before.size_bytes
                splits.append(Split(queue, first, last, size))
                open_bytes = size
        return splits


class StreamRules(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.catalog = MemoryCatalog({"a": [Blocks()]})
        self.read: dict[tuple[str, int], int] = defaultdict(int)
        self.options = parse_stream_options(
            {
                "url": "b:1",
                "subscribePattern": ".*",
                "startingOffsets": "earliest",
                "idleWaitMs": "0",
            }
        )
        self.driver = self.started()
        self.checkpoint: StreamOffsets = self.driver.initial()

    def started(self) -> StreamDriver:
        return StreamDriver(self.catalog, self.options, clock=lambda: 0.0, sleep=lambda _: None)

    @rule(
        topic=st.sampled_from(TOPICS),
        queue=st.integers(0, 2),
        count=st.integers(1, 50),
        size=st.integers(1, 100),
    )
    def publish(self, topic: str, queue: int, count: int, size: int) -> None:
        queues = self.catalog.topics.setdefault(topic, [])
        queues += [Blocks() for _ in range(queue + 1 - len(queues))]
        queues[queue].blocks.append((count, size))

    @rule()
    def restart(self) -> None:
        self.driver = self.started()
        self.checkpoint = decode_offsets(encode_offsets(self.checkpoint))

    @rule(
        max_offsets=st.none() | st.integers(1, 100),
        max_bytes=st.none() | st.integers(1, 300),
        replay=st.booleans(),
    )
    def micro_batch(self, max_offsets: int | None, max_bytes: int | None, replay: bool) -> None:
        limits = TriggerLimits(max_offsets, max_bytes)
        backlogged = self.backlog()
        end = self.driver.latest(self.checkpoint, limits)
        plan = self.driver.plan(self.checkpoint, end)
        if replay:
            assert self.started().plan(self.checkpoint, end) == plan
        parts = [part for parts in plan for part in parts]
        blocks = []
        for part in parts:
            key = (part.topic, part.queue)
            assert part.start == self.read[key] < part.end
            self.read[key] = part.end
            queue = self.catalog.topics[part.topic][part.queue]
            assert part.end <= queue.end
            blocks += [size for _, _, size in queue.touched(part.start, part.end)]
        taken = sum(part.end - part.start for part in parts)
        assert (taken > 0) == (backlogged > 0)
        assert max_offsets is None or taken <= max_offsets
        assert max_bytes is None or sum(blocks) <= max_bytes or len(blocks) == 1
        if limits == NO_LIMITS:
            assert taken == backlogged
        self.checkpoint = end

    def backlog(self) -> int:
        return sum(
            queue.end - self.read[name, number]
            for name, queues in self.catalog.topics.items()
            for number, queue in enumerate(queues)
        )

    @invariant()
    def the_checkpoint_says_what_was_read(self) -> None:
        for name, topic in self.checkpoint.items():
            for queue, offset in topic.queues.items():
                assert offset == self.read[name, queue]

    def teardown(self) -> None:
        for _ in range(10_000):
            if not self.backlog():
                break
            self.micro_batch(7, 150, False)
        assert not self.backlog()


TestStreamRules = StreamRules.TestCase
TestStreamRules.settings = settings(deadline=None, max_examples=60, stateful_step_count=25)
