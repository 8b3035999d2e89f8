"""Real groups with leases that record the requests of the API. A test may script an answer.

groups.answers.append(Received(deliveries_of(batch), available=3))
groups.answers.append(ExclusiveHeld("b", "a"))
"""

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.commitlog.format.batch import Batch
from holdfast.consumequeue.topics import Topic
from holdfast.groups.service import GroupService
from holdfast.groups.service_types import (
    Delivery,
    GroupState,
    Receipt,
    Received,
    ReceiveRequest,
    RedriveOptions,
    RedriveResult,
    Status,
    Verb,
)
from holdfast.groups.serving.group_server import HeldReceive, UnfinishedReceive


def deliveries_of(topic: Topic, batch: Batch, rows: Sequence[int], **more: Any) -> list[Delivery]:
    """Return rows of a stored batch as first deliveries."""
    queue, first = batch.header.queue_id, batch.header.base_offset
    lease = {"attempt": 1, "redelivered": False, **more}
    return [
        Delivery(
            topic, queue, first + row, batch, row, receipt=f"{topic.name}-{first + row}", **lease
        )
        for row in rows
    ]


class RecordedGroups(GroupService):
    def __init__(self, *parts: Any, **more: Any) -> None:
        super().__init__(*parts, **more)
        self.answers: list[Received | Exception] = []
        """The results of the next receives, in order. If the list is empty, the group answers."""
        self.error: Exception | None = None
        """The error that every change of settings raises."""
        self.asks: list[ReceiveRequest] = []
        self.settled: list[tuple[Verb, list[str | Receipt], dict[str, Any]]] = []
        self.undelivered_: list[list[str | Receipt]] = []
        self.left: list[tuple[str, str]] = []
        self.redrives: list[tuple[str, RedriveOptions]] = []
        self.redriven: RedriveResult | None = None
        """The result of a redrive. None means that the group redrives."""

    async def put_group(self, *what: Any, **more: Any) -> tuple[GroupState, bool]:
        if self.error is not None:
            raise self.error
        return await super().put_group(*what, **more)

    async def receive(self, group: str, request: ReceiveRequest) -> Received:
        self.asks.append(request)
        if not self.answers:
            return await super().receive(group, request)
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def begin_receive(
        self, group: str, request: ReceiveRequest
    ) -> Received | HeldReceive | UnfinishedReceive | None:
        self.asks.append(request)
        if not self.answers:
            begun = super().begin_receive(group, request)
            if begun is None:  # `receive` follows
                del self.asks[-1]
            return begun
        answer = self.answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer

    def release_undelivered(self, group: str, receipts: Sequence[str | Receipt]) -> None:
        self.undelivered_.append(list(receipts))
        super().release_undelivered(group, receipts)

    def begin_settling(
        self, group: str, verb: Verb, receipts: Sequence[str | Receipt], **more: Any
    ) -> "tuple[list[Status], asyncio.Future[Any] | None]":
        self.settled.append((verb, list(receipts), more))
        return super().begin_settling(group, verb, receipts, **more)

    async def redrive(self, group: str, ask: RedriveOptions) -> RedriveResult:
        self.redrives.append((group, ask))
        return self.redriven or await super().redrive(group, ask)

    async def leave(self, group: str, member: str, **more: Any) -> None:
        self.left.append((group, member))
        await super().leave(group, member, **more)
