"""Everything that clients do to a broker, at once, and the judgement of it afterwards.

Five topics: durable with idempotent producers, durable with plain ones (which may store twice),
one in written mode, one whose retention trims it all the time, one that is made and deleted.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from holdfast.client import Client
from holdfast.client.errors import ApiError
from tests.support.gate import Gate, GateClient, wait_until
from tests.support.history import Found, check_history, settle_power_loss
from tests.support.workload_clients import (
    BatchPublisher,
    GroupConsumer,
    LoadTopic,
    OffsetKeeper,
    Publisher,
    Puller,
    TopicChurner,
)

#: What a broker under this load is started with: segments roll often, retention runs.
ARGUMENTS = (
    *("--commitlog-segment-bytes", "1MiB"),
    *("--commitlog-reserve-bytes", "1MiB"),
    *("--commitlog-retention-interval-ms", "200"),
)


@dataclass(frozen=True, slots=True)
class Judged:
    """What a judgement counted. `lost` were acknowledged in written mode, and are gone."""

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
    """Clients of the broker at `url`; they go on through its restarts. Use it in `with`."""

    def __init__(self, url: str, publishers: int = 2) -> None:
        gate = self._gate = Gate()
        client = self._client = Client(url, timeout_ms=120_000)
        self.durable = LoadTopic("durable", 4)
        self.plain = LoadTopic("plain", 2, is_idempotent=False)
        self.written = LoadTopic("written", 2, is_durable=False)
        self.trimmed = LoadTopic("trimmed", 1, retention_bytes=2_000_000)
        self.topics = (self.durable, self.plain, self.written, self.trimmed)
        self._offsets = [OffsetKeeper(f"keeper-{n}", url, gate, self.durable) for n in range(2)]
        self._churner = TopicChurner("churner", url, gate)
        self._consumer = GroupConsumer("consumers", client, self.durable)
        self._threads: list[GateClient | BatchPublisher | GroupConsumer] = [
            *(
                Publisher(f"{topic.name}-{n}", url, gate, topic)
                for topic in (self.durable, self.plain, self.written)
                for n in range(publishers)
            ),
            Publisher("trimmed-0", url, gate, self.trimmed, 60_000),
            *(
                Puller(f"pull-{topic.name}-{queue}", url, gate, topic, queue)
                for topic, queue in (
                    (self.durable, 0),
                    (self.durable, 1),
                    (self.plain, 0),
                    (self.written, 0),
                    (self.written, 1),
                    (self.trimmed, 0),
                )
            ),
            *self._offsets,
            self._churner,
            BatchPublisher("batches", client, gate, self.durable),
            self._consumer,
        ]

    def __enter__(self) -> "Workload":
        for topic in self.topics:
            self._client.create_topic(
                topic.name,
                queues=topic.queues,
                durability="fsync" if topic.is_durable else "written",
                retention_bytes=topic.retention_bytes,
            )
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._gate.end()
        self._consumer.end()
        self._client.close()
        for thread in self._threads:
            thread.join(30)

    @property
    def acknowledged(self) -> int:
        """How many messages were acknowledged so far."""
        return sum(len(topic.history.acks) for topic in self.topics)

    def verify(self) -> None:
        """Raise what a client found wrong."""
        for thread in self._threads:
            if thread.error is not None:
                raise thread.error

    def wait_for_more(self, count: int = 20) -> None:
        """Wait until that many more messages are acknowledged."""
        before = self.acknowledged

        def has_more() -> bool:
            self.verify()
            return self.acknowledged >= before + count

        wait_until(has_more, "more is acknowledged")

    def pause(self) -> None:
        """Return once no client has a request under way; they go on where they were."""
        self._gate.pause()

    def resume(self) -> None:
        self._gate.resume()

    def judge(self, *, power_was_lost: bool = False) -> Judged:
        """Read everything back and compare. The clients are paused, the broker runs.

        Raises HistoryViolation, AssertionError, or what a client met.
        """
        self.verify()
        for keeper in self._offsets:
            wait_until(keeper.verify, "stored offsets can be read")
        counts = [self._judge_topic(topic, power_was_lost) for topic in self.topics]
        return Judged(self.acknowledged, *(sum(each) for each in zip(*counts, strict=True)))

    def _judge_topic(self, topic: LoadTopic, power_was_lost: bool) -> tuple[int, int, int]:
        final, begins = _everything(self._client, topic)
        history = topic.history
        lost = 0
        if power_was_lost:
            lost = settle_power_loss(history, final, min_offsets=begins)
            if not topic.is_durable:
                _forget_what_was_not_promised(topic, final)
        assert topic.is_durable or power_was_lost or lost == 0
        check_history(history, final, allow_duplicates=not topic.is_idempotent, min_offsets=begins)
        return len(final), len(history.seen), lost


def _everything(client: Client, topic: LoadTopic) -> tuple[list[Found], dict[int, int]]:
    """Return the whole topic, and where each of its queues began when it was read."""
    while True:
        try:
            final = list(_read(client, topic))
        except ApiError as error:
            if error.status != 410:  # retention went on meanwhile
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


def _read(client: Client, topic: LoadTopic) -> Iterator[Found]:
    for queue in range(topic.queues):
        for message in client.pull(topic.name, queue=queue, start="earliest", follow=False):
            yield Found(queue, message.offset, message.key, bytes(message.body))


def _forget_what_was_not_promised(topic: LoadTopic, final: list[Found]) -> None:
    """Let go of what a consumer saw at the end of a queue in written mode, and the power loss
    took; the rest must be there."""
    ends = {found.queue: found.offset + 1 for found in final}
    history = topic.history
    history.seen = [each for each in history.seen if each.offset < ends.get(each.queue, 0)]
