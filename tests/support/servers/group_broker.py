"""Groups over a real storage in a temporary directory, without HTTP, with short calls for tests."""

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from holdfast.config import Config
from holdfast.consumequeue.message_store import MessageStore
from holdfast.consumequeue.topics import QueueKey, Topic
from holdfast.groups.config import GroupsConfig
from holdfast.groups.service import GroupService
from holdfast.groups.service_types import (
    GroupState,
    Receipt,
    Received,
    ReceiveRequest,
    Status,
    Verb,
)
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice.config import HoldServiceConfig
from holdfast.holdservice.pull_request_hold_service import PullRequestHoldService
from holdfast.storage.storage import Storage, StorageEvents
from tests.support.storage.stored import batch, small_config, until


class GroupBroker:
    """Storage, hold service and groups.

    `skipped_s` is the time that tests have skipped; set it with `later`. `set_ahead_s` moves only
    the wall clock ahead.
    """

    def __init__(
        self, config: Config, hold: HoldServiceConfig | None = None, boot_id: bytes | None = None
    ) -> None:
        self.skipped_s = 0.0
        self.set_ahead_s = 0.0
        self.failures: list[Exception] = []
        self.may_subscribe: Callable[[str, str, str], bool] = lambda owner, topic, group: True
        self.storage = Storage(
            config,
            StorageEvents(
                arrival_listeners=[self._arrived],
                on_failure=self.failures.append,
                on_trim=self._trimmed,
            ),
            now_us=self._now_us,
            boot_id=boot_id,
        )
        self._config = config
        # The hold service counts a message that two scans in a row find as a lost wake-up. On a
        # busy machine the cause can also be a thread that was suspended between making a message
        # readable and reporting it.
        self._hold_config = hold or HoldServiceConfig(scan_interval_ms=500)
        self.groups: GroupService
        self.hold: PullRequestHoldService

    async def start(self) -> None:
        self.storage.lock()
        store = await self.storage.open()
        self.hold = PullRequestHoldService(
            self._hold_config, max_offset=store.reading.max_offset, scan=store.reading.scan_hot
        )
        self.groups = GroupService(
            store,
            self.storage.groups,
            self._config.groups,
            hold=self.hold,
            ageing_us=self.storage.ageing.now_us,
            wall_us=self._now_us,
            passed_s=lambda: time.monotonic() + self.skipped_s,
            may_subscribe=lambda owner, topic, group: self.may_subscribe(owner, topic, group),
        )
        store.topics.check_new_queues = self.groups.registry.check_new_queues
        store.topics.created = self.groups.changes.topic_created
        store.topics.deleted_listeners.append(self.groups.registry.topic_deleted)
        await self.groups.start()
        await self.hold.start(self.groups.scan)

    async def stop(self) -> None:
        await self.hold.stop()
        await self.groups.stop()
        await self.storage.close()
        assert not self.failures
        assert self.hold.stats().scan_rescues == 0

    @property
    def store(self) -> MessageStore:
        return self.storage.store

    # -- short words for tests -----------------------------------------------------------------

    async def topic(self, name: str = "t", queues: int = 1, **fields: Any) -> Topic:
        topic, _ = await self.store.topics.create(name, queues=queues, fields=fields)
        return topic

    async def group(
        self, name: str = "g", topics: Mapping[str, Subscription] | str = "t", **fields: Any
    ) -> GroupState:
        if isinstance(topics, str):
            topics = {topics: Subscription()}
        state, _ = await self.groups.put_group(name, GroupSettings(topics=dict(topics), **fields))
        return state

    async def publish(
        self, bodies: Sequence[str] | str, topic: str = "t", queue: int = 0, **fields: Any
    ) -> None:
        await self.store.publishing.publish(
            self.store.table.get(topic), [batch(bodies, queue, **fields)]
        )

    async def receive(
        self, most: int = 32, member: str = "a", group: str = "g", **fields: Any
    ) -> Received:
        for name, to in (("topics", "topic_names"), ("filter", "filter_text")):
            if name in fields:
                fields[to] = fields.pop(name)
        fields = {"client": "c", "max_bytes": 1 << 20, **fields}
        return await self.groups.receive(group, ReceiveRequest(member, most, **fields))

    def start_receiving(self, most: int = 32, **fields: Any) -> "asyncio.Task[Received]":
        return asyncio.create_task(self.receive(most, **fields))

    async def wait_to_receive(self, most: int = 32, **fields: Any) -> "asyncio.Task[Received]":
        """Start a receive, and return its task when the receive waits for messages."""
        count = self.groups.stats().waiting
        task = self.start_receiving(most, **{"wait_s": 60.0, **fields})
        await until(lambda: self.groups.stats().waiting == count + 1)
        return task

    async def settle(
        self,
        received: Received | Sequence[str] | Sequence[Receipt],
        verb: Verb = Verb.ACK,
        group: str = "g",
        **how: Any,
    ) -> list[Status]:
        receipts = received.receipts() if isinstance(received, Received) else received
        return await self.groups.settle(group, verb, receipts, **how)

    def later(self, seconds: float, group: str = "g") -> None:
        """Skip time, and let the group process it."""
        self.skipped_s += seconds
        self.groups.registry.by_name[group].process_deadlines()

    # -- inside ------------------------------------------------------------------------------

    def _now_us(self) -> int:
        ahead_s = self.skipped_s + self.set_ahead_s
        return time.time_ns() // 1000 + round(ahead_s * 1e6)

    def _arrived(self, advanced: dict[QueueKey, int]) -> None:
        self.hold.message_arriving(advanced)
        self.groups.queue_changes.note(advanced)

    def _trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        self.groups.queue_changes.note(begins)


def bodies_of(received: Received) -> list[str]:
    """Return the bodies of the delivered messages."""
    return [each.batch.body(each.row).decode() for each in received.deliveries]


def receipts_of(received: Received) -> list[str]:
    """Return the receipts of the delivered messages, as texts."""
    return [each.receipt for each in received.deliveries if isinstance(each.receipt, str)]


@asynccontextmanager
async def running(
    data_dir: Path,
    *,
    hold: HoldServiceConfig | None = None,
    limits: GroupsConfig | None = None,
    skipped_s: float = 0.0,
    may_subscribe: Callable[[str, str, str], bool] = lambda owner, topic, group: True,
    **commitlog: Any,
) -> AsyncIterator[GroupBroker]:
    """Run storage and groups on a directory until the block ends. Their clock is `skipped_s`
    ahead."""
    config = small_config(data_dir, **commitlog)
    broker = GroupBroker(replace(config, groups=limits or config.groups), hold)
    broker.skipped_s = skipped_s
    broker.may_subscribe = may_subscribe
    await broker.start()
    try:
        yield broker
    finally:
        await broker.stop()


@asynccontextmanager
async def running_group(
    data_dir: Path,
    bodies: Sequence[str] | str = (),
    *,
    topics: Mapping[str, Subscription] | str = "t",
    queues: int = 1,
    limits: GroupsConfig | None = None,
    hold: HoldServiceConfig | None = None,
    **settings: Any,
) -> AsyncIterator[GroupBroker]:
    """Run a broker with these topics, the group "g" on them, and these messages in "t"."""
    async with running(data_dir, limits=limits, hold=hold) as broker:
        for name in topics:
            await broker.topic(name, queues)
        await broker.group(topics=topics, **settings)
        if bodies:
            await broker.publish(bodies)
        yield broker


async def turns(count: int = 3) -> None:
    """Run `count` iterations of the event loop."""
    for _ in range(count):
        await asyncio.sleep(0)
