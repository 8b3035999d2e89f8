"""Commits of one group over a disk whose answers the test controls."""

import asyncio
from collections.abc import Callable
from typing import cast

import pytest

from holdfast.consumequeue.errors import StateUnavailable
from holdfast.groups.core.outbox import WriteBatch
from holdfast.groups.core.settling import Verb
from holdfast.groups.cursor.rows import DeleteRange, Write
from holdfast.groups.service_types import GroupCounters
from holdfast.groups.serving.commits import QUIET_S, Commits, merge_batches
from holdfast.groups.storage.cursor_store import CursorStore, Writes
from tests.groups.queues import Disk, Stage, settle
from tests.support.event_loop.loop_clock import LoopClock
from tests.support.servers.group_broker import turns


class _Writer:
    """Holds the writes until `answer`."""

    def __init__(self) -> None:
        self.disk = Disk()
        self.waiting: list[tuple[Writes, Callable[[Exception | None], None]]] = []

    def commit(
        self, writes: Writes, done: Callable[[Exception | None], None], *, now_ms: int
    ) -> None:
        self.waiting.append((writes, done))

    def answer(self, error: Exception | None = None) -> Writes:
        writes, done = self.waiting.pop(0)
        if error is None:
            self.disk.write(list(writes))
        done(error)
        return writes


def _commits(stage: Stage) -> tuple[Commits, _Writer]:
    writer = _Writer()
    return Commits(
        stage.group, cast(CursorStore, writer), lambda: stage.now, GroupCounters()
    ), writer


async def test_the_next_commit_contains_all_changes_made_during_a_commit() -> None:
    stage = Stage()
    commits, writer = _commits(stage)
    stage.publish(5_000)
    stage.take(max_messages=10)
    first = commits.when_durable()
    await turns()
    assert len(writer.waiting) == 1
    assert commits.when_durable() is first, "nothing changed since"
    stage.take(settled=True, max_messages=10)
    second = commits.when_durable()
    stage.take(settled=True, max_messages=10)
    third = commits.when_durable()
    assert second is third is not first
    await turns()
    assert len(writer.waiting) == 1
    assert not first.done()
    writer.answer()
    await turns()
    assert first.done()
    assert not second.done()
    assert len(writer.waiting) == 1
    writer.answer()
    await second
    assert commits.when_durable().done()
    assert not writer.waiting


async def test_changes_for_which_no_caller_waits_share_a_commit() -> None:
    stage, clock = Stage(), LoopClock()
    commits, writer = _commits(stage)
    stage.publish(30)
    for _ in range(3):
        stage.take(settled=True, max_messages=10)
        commits.begin()
        await turns()
    await clock.advance(0.9 * QUIET_S)
    assert not writer.waiting
    await clock.advance(0.2 * QUIET_S)
    (writes, _), *others = writer.waiting
    assert writes
    assert not others
    writer.answer()
    await turns()
    assert commits.when_durable().done(), "nothing was left out"


async def test_a_caller_that_waits_ends_the_wait_for_other_changes() -> None:
    stage = Stage()
    commits, writer = _commits(stage)
    stage.publish(30)
    stage.take(settled=True, max_messages=10)
    commits.begin()
    stage.take(settled=True, max_messages=10)
    durable = commits.when_durable()
    await turns()
    assert len(writer.waiting) == 1
    writer.answer()
    await durable
    await asyncio.sleep(3 * QUIET_S)
    assert not writer.waiting


async def test_failed_writes_are_written_with_the_next_commit() -> None:
    stage = Stage()
    commits, writer = _commits(stage)
    stage.publish(10)
    messages = stage.take(max_messages=4)
    first = commits.when_durable()
    await turns()
    writer.answer(StateUnavailable("full"))
    with pytest.raises(StateUnavailable):
        await first
    assert stage.cursor().reserved_durable == 0
    again = commits.when_durable()
    await turns()
    assert len(writer.waiting) == 1, "whoever asks has it tried again at once"
    writer.answer()
    await again
    assert stage.cursor().reserved_durable > len(messages)
    assert writer.disk.tables["cur"]
    commits.stop()


async def test_waiting_can_be_cancelled_without_harm() -> None:
    stage = Stage()
    commits, writer = _commits(stage)
    stage.publish(3)
    stage.take()
    waits = [asyncio.create_task(commits.wait()) for _ in range(2)]
    await turns()
    waits[0].cancel()
    await turns()
    writer.answer()
    await waits[1]
    assert waits[0].cancelled()


def test_merged_writes_keep_their_order_and_do_not_grow() -> None:
    def of(*writes: Write | DeleteRange) -> WriteBatch:
        batch = WriteBatch()
        batch.writes += writes
        return batch

    one, two, three = (Write("cur", b"k", bytes([n])) for n in (1, 2, 3))
    other = Write("cur", b"l", b"")
    gone = DeleteRange("cur", b"a", b"z")
    assert merge_batches(of(one, other), of(two)).writes == [two, other]
    assert merge_batches(of(one, gone), of(two)).writes == [one, gone, two]
    assert merge_batches(of(one, two), of(gone, three)).writes == [two, gone, three]


def test_of_each_cursor_one_reserve_is_kept_however_often_writing_fails() -> None:
    stage = Stage()
    stage.publish(20_000)
    batch = WriteBatch()
    for _ in range(10):
        settle(stage, Verb.ACK, stage.take())
        stage.take(max_messages=1_000, settled=True)
        batch = merge_batches(batch, stage.group.outbox.take_writes())
    cursor = stage.cursor()
    assert batch.reserves == {cursor: (cursor.epoch, cursor.reserved_next, True)}
    stage.group.outbox.mark_committed(batch)
    assert cursor.reserved_durable == cursor.reserved_next > 10_000
