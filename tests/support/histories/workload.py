"""A workload of all kinds of clients at the same time, and the judgement of its result.

It has five topics: a durable one with idempotent producers, a durable one with plain producers
(which may store a message twice), one in written mode, one that retention trims all the time, and
one that is created and deleted repeatedly. Members of a group with leases settle the messages of
the first topic. With `written_only` only the third topic is used, because the syncs of the other
topics would soon sync its messages too.
"""

import threading
from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.client import Client
from holdfast.client.errors import ApiError
from holdfast.running_broker import RunningBroker
from tests.support.clients.broker_calls import wait_until
from tests.support.damage.loop_volume import LoopVolume
from tests.support.event_loop.gate import Gate, GateClient
from tests.support.histories.group_load import GroupLoad
from tests.support.histories.history import Record, check_history, settle_power_loss
from tests.support.histories.workload_clients import (
    BatchPublisher,
    GroupConsumer,
    LoadTopic,
    OffsetKeeper,
    Publisher,
    Puller,
    TopicChurner,
)

#: Arguments of the broker under this load: small segments that roll often, frequent retention.
ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "1MiB"),
    *("--commitlog-retention-interval-ms", "200"),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """The counts of a judgement; `lost` messages were acknowledged in written mode."""

    acknowledged: int
    stored: int
    seen: int
    lost: int

    def __str__(self) -> str:
        return (
            f"{self.acknowledged} acknowledged, {self.stored} stored, {self.seen} seen, "
            f"{self.lost} lost in written mode"
        )


class Workload:
    """Clients of the broker at `url`, which continue through restarts. Use as a context manager."""

    def __init__(
        self,
        url: str,
        publishers: int = 2,
        *,
        written_only: bool = False,
        written_body_bytes: int = 600,
        timeout_s: float = 20.0,
    ) -> None:
        """`timeout_s` is the timeout of the clients that use plain HTTP. Messages in written mode
        have at most `written_body_bytes`: larger ones fill segments with fewer requests."""
        gate = self._gate = Gate()
        self._client = Client(url, timeout_ms=120_000)
        self.durable = LoadTopic("durable", 4)
        self.plain = LoadTopic("plain", 2, is_idempotent=False)
        self.written = LoadTopic("written", 2, is_durable=False)
        self.trimmed = LoadTopic("trimmed", 1, retention_bytes=2_000_000)
        #: A separate client: closing it does not wait for the broker.
        self._consumer_client = Client(url, timeout_ms=120_000)
        self._consumer = GroupConsumer("consumers", self._consumer_client, gate, self.durable)
        self._offsets: list[OffsetKeeper] = []
        self._members: GroupLoad | None = None
        writers = [
            Publisher(f"written-{n}", url, gate, self.written, written_body_bytes)
            for n in range(publishers)
        ]
        pullers = [Puller(f"pull-written-{n}", url, gate, self.written, n) for n in range(2)]
        self._threads: list[GateClient | BatchPublisher | GroupConsumer] = [*writers, *pullers]
        self.topics: tuple[LoadTopic, ...] = (self.written,)
        if not written_only:
            self.topics = (self.durable, self.plain, self.written, self.trimmed)
            self._offsets = [OffsetKeeper(f"keeper-{n}", url, gate, self.durable) for n in (0, 1)]
            self._members = GroupLoad(url, gate, self.durable)
            self._threads += [*self._durable_clients(url, publishers), *self._offsets]
            self._threads += self._members.threads
        for thread in self._threads:
            if isinstance(thread, GateClient):
                thread.timeout_s = timeout_s

    def _durable_clients(
        self, url: str, publishers: int
    ) -> Iterator[GateClient | BatchPublisher | GroupConsumer]:
        gate = self._gate
        for topic in (self.durable, self.plain):
            for n in range(publishers):
                yield Publisher(f"{topic.name}-{n}", url, gate, topic)
        yield Publisher("trimmed-0", url, gate, self.trimmed, 60_000)
        yield Puller("pull-durable-0", url, gate, self.durable, 0)
        yield Puller("pull-durable-1", url, gate, self.durable, 1)
        yield Puller("pull-plain", url, gate, self.plain, 0)
        yield Puller("pull-trimmed", url, gate, self.trimmed, 0)
        yield TopicChurner("churner", url, gate)
        yield BatchPublisher("batches", self._client, gate, self.durable)
        yield self._consumer

    def __enter__(self) -> "Workload":
        for topic in self.topics:
            self._client.create_topic(
                topic.name,
                queues=topic.queues,
                durability="fsync" if topic.is_durable else "written",
                retention_bytes=topic.retention_bytes,
            )
        if self._members is not None:
            self._members.begin()
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._gate.end()
        self._consumer.end()
        self._consumer_client.close()
        if kind is None:
            self._client.close()
            for thread in self._threads:
                thread.join(30)
        else:  # the broker may be gone; then the producer ends with its delivery timeout
            closing = threading.Thread(target=self._client.close, daemon=True)
            closing.start()
            closing.join(5)

    @property
    def acknowledged(self) -> int:
        return sum(len(topic.history.acks) for topic in self.topics)

    def verify(self) -> None:
        """Raise the error of a client, if any client failed."""
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until `count` more messages are acknowledged."""
        before = self.acknowledged

        def has_more() -> bool:
            self.verify()
            return self.acknowledged >= before + count

        wait_until(has_more, "more is acknowledged")

    def close_gate(self) -> None:
        """Let no client start another request; those in flight may last until a restart."""
        self._gate.close()

    def pause(self) -> None:
        """Let the clients wait; return once none of them has a request in flight."""
        self._gate.pause()

    def resume(self) -> None:
        self._gate.resume()

    def disk_fails(self) -> None:
        """Before the power is cut, let the clients accept 5xx and ignore answers until `judge`."""
        self._gate.disk_failures += 1
        self._gate.disk_fails = True

    def lose_power(self, volume: LoopVolume, broker: RunningBroker) -> None:
        """Let the power fail under the broker, and end the broker's process."""
        self.disk_fails()
        volume.cut_power()
        self.close_gate()
        broker.kill()
        volume.restore_power()

    def judge(self, *, power_was_lost: bool = False) -> Judged:
        """Read all data back and judge it, while the clients are paused and the broker runs."""
        self._gate.disk_fails = False
        self.verify()
        for keeper in self._offsets:
            wait_until(keeper.verify, "stored offsets can be read")
        if self._members is not None:
            self._members.judge(self._client)
        counts = [self._judge_topic(topic, power_was_lost) for topic in self.topics]
        return Judged(self.acknowledged, *(sum(each) for each in zip(*counts, strict=True)))

    def _judge_topic(self, topic: LoadTopic, power_was_lost: bool) -> tuple[int, int, int]:
        final, begins = read_everything(self._client, topic)
        history = topic.history
        lost = 0
        if power_was_lost:
            lost = settle_power_loss(history, final, min_offsets=begins)
        assert topic.is_durable or power_was_lost or lost == 0
        check_history(history, final, allow_duplicates=not topic.is_idempotent, min_offsets=begins)
        return len(final), len(history.seen) + len(history.seen_written), lost


def read_everything(client: Client, topic: LoadTopic) -> tuple[list[Record], dict[int, int]]:
    """Return all messages of the topic, and the first offset of each queue at that time."""
    while True:
        try:
            final = list(_read(client, topic))
        except ApiError as error:
            if error.status != 410:  # retention trimmed the queue meanwhile
                raise
            continue
        states = client.describe_topic(topic.name)["queues"]
        begins = {state["queue"]: state["min_offset"] for state in states}
        ends = {found.queue: found.offset + 1 for found in final}
        for state in states:
            end = ends.get(state["queue"], state["min_offset"])
            assert end == state["max_offset"], f"{end} was read of {state}"
        kept = [found for found in final if found.offset >= begins[found.queue]]
        return kept, begins


def _read(client: Client, topic: LoadTopic) -> Iterator[Record]:
    for queue in range(topic.queues):
        for message in client.pull(topic.name, queue=queue, start="earliest", follow=False):
            yield Record(queue, message.offset, message.key, bytes(message.body))
