"""Groups with leases as the API sees them, without an implementation of groups.

A test scripts the answers, and the requests are recorded.

    groups.answers.append(Received(deliveries_of(batch), available=3))
    groups.answers.append(ExclusiveHeld("b", "a"))
"""

from collections.abc import Mapping, Sequence
from typing import Any, cast

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.errors import UnknownGroup, UnknownTopic
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.groups.descriptions import (
    GroupReply,
    MemberReply,
    QueueLagReply,
    ServedReply,
    TopicLagReply,
)
from holdfast.groups.service import GroupService
from holdfast.groups.service_types import (
    CheckTopic,
    Delivery,
    GroupServiceStats,
    GroupState,
    MayConsume,
    Received,
    ReceiveRequest,
    RedriveOptions,
    RedriveResult,
    SeekTarget,
    Status,
    Verb,
)
from holdfast.groups.settings import GroupSettings
from holdfast.groups.storage.group_records import new_record


def deliveries_of(topic: Topic, batch: Batch, rows: Sequence[int], **more: Any) -> list[Delivery]:
    """Return rows of a stored batch as first deliveries."""
    header = batch.header
    lease = {"attempt": 1, "redelivered": False, **more}
    return [
        Delivery(
            topic,
            header.queue_id,
            header.base_offset + row,
            batch,
            row,
            receipt=f"{topic.name}-{header.base_offset + row}",
            **lease,
        )
        for row in rows
    ]


class FakeGroups:
    """Scripted groups. The receipt "stale" is stale, a receipt that ends in "?" is invalid, and
    every other receipt is valid."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._groups: dict[str, GroupState] = {}
        self._floors: dict[tuple[str, str], dict[int, int]] = {}
        self.answers: list[Received | Exception] = []
        """The results of the next receives, in order. An empty list means that no message
        arrives."""
        self.error: Exception | None = None
        """The error that every changing operation raises."""
        self.asks: list[ReceiveRequest] = []
        self.settled: list[tuple[Verb, list[str], dict[str, Any]]] = []
        self.undelivered_: list[list[str]] = []
        self.left: list[tuple[str, str]] = []
        self.redrives: list[tuple[str, RedriveOptions]] = []
        self.redriven: RedriveResult | None = None
        """The result of a redrive. None means that there was nothing to redrive."""

    def as_service(self) -> GroupService:
        return cast(GroupService, self)

    def _fail(self) -> None:
        if self.error is not None:
            raise self.error

    def drain(self) -> None:
        """Do nothing: no receive waits."""

    def has_leases(self, group: str) -> bool:
        return group in self._groups

    def groups(self) -> list[str]:
        return sorted(self._groups)

    async def put_group(
        self, group: str, settings: GroupSettings, owner: str = "", checks: object = None
    ) -> tuple[GroupState, bool]:
        check_name("group", group)
        self._fail()
        is_new = group not in self._groups
        before = self._groups.get(group)
        record = new_record(group, len(self._groups) + 1, 0) if before is None else before.record
        record = record.apply(settings, owner)
        names = [each.name for each in self._store.table.all()]
        topics = {name: each for name, each in record.subscriptions.items() if name in names}
        self._groups[group] = GroupState(record, topics)
        return self._groups[group], is_new

    async def delete_group(self, group: str, *, check_topic: CheckTopic | None = None) -> None:
        self._fail()
        self.group_state(group)
        del self._groups[group]

    def group_state(self, group: str) -> GroupState:
        if group not in self._groups:
            raise UnknownGroup(check_name("group", group))
        return self._groups[group]

    async def floors(self, group: str, topic: str) -> dict[int, int]:
        return self._floors_of(group, topic)

    async def lags(self, group: str) -> dict[str, int]:
        described = await self.describe(group)
        return {each.topic: each.lag_messages for each in described.topics}

    def _floors_of(self, group: str, topic: str) -> dict[int, int]:
        if topic not in self.group_state(group).topics:
            raise UnknownTopic(topic)
        count = self._store.table.get(topic).queue_count
        return self._floors.setdefault((group, topic), dict.fromkeys(range(count), 0))

    async def describe(self, group: str) -> GroupReply:
        state = self.group_state(group)
        served = ServedReply(3, 300, 0.05)
        topics, available = [], 0
        for name in state.topics:
            topic = self._store.table.get(name)
            queues = []
            for queue, floor in self._floors_of(group, name).items():
                end = self._store.reading.queue_state(topic, queue).max_offset
                lag = end - floor
                queues.append(
                    QueueLagReply(
                        queue, floor, 0, end, lag, 0, 0.0, floor, floor, lag, 2, 1, 4, 5, 6, served
                    )
                )
            lag = sum(each.lag_messages for each in queues)
            available += lag
            topics.append(
                TopicLagReply(name, topic.topic_id, lag, 0, 0.0, queues, lag, served, 1.5)
            )
        members = [MemberReply("m1", 2, 1, True)]
        config = state.record.describe_config()
        return GroupReply(group, 0, 0, 0.0, topics, config, available, 2, 1, 0, members)

    async def receive(self, group: str, ask: ReceiveRequest) -> Received:
        state = self.group_state(group)
        self.asks.append(ask)
        for name in ask.topic_names or ():
            if name not in state.topics:
                raise UnknownTopic(name)
        answer = self.answers.pop(0) if self.answers else Received([])
        if isinstance(answer, Exception):
            raise answer
        return answer

    def release_undelivered(self, group: str, receipts: Sequence[str]) -> None:
        self.undelivered_.append(list(receipts))

    async def settle(
        self,
        group: str,
        verb: Verb,
        receipts: Sequence[str],
        check_topic: CheckTopic | None = None,
        **terms: Any,
    ) -> list[Status]:
        self.group_state(group)
        self._fail()
        self.settled.append((verb, list(receipts), terms))
        return [
            Status.STALE
            if each == "stale"
            else Status.INVALID
            if each.endswith("?")
            else Status.DONE
            for each in receipts
        ]

    async def seek(
        self, group: str, target: SeekTarget, *, check_topic: CheckTopic | None = None
    ) -> Mapping[str, Mapping[int, int]]:
        state = self.group_state(group)
        self._fail()
        moved: dict[str, dict[int, int]] = {}
        if isinstance(target, Mapping):
            for name, offsets in target.items():
                self._floors_of(group, name).update(offsets)
                moved[name] = dict(offsets)
            return moved
        for name in state.topics:
            topic = self._store.table.get(name)
            floors = self._floors_of(group, name)
            for queue in floors:
                state_of = self._store.reading.queue_state(topic, queue)
                floors[queue] = state_of.max_offset if target == "latest" else state_of.min_offset
            moved[name] = dict(floors)
        return moved

    async def redrive(self, group: str, ask: RedriveOptions) -> RedriveResult:
        self.group_state(group)
        self._fail()
        self.redrives.append((group, ask))
        return self.redriven or RedriveResult(ask.dead_letter_topic or "")

    async def leave(
        self, group: str, member: str, *, may_consume: MayConsume | None = None
    ) -> None:
        self.group_state(group)
        self.left.append((group, member))

    def topic_deleted(self, topic_id: int) -> None:
        """Do nothing: this class stores only the names of topics."""

    async def stats_in_slices(self) -> GroupServiceStats:
        return GroupServiceStats()
