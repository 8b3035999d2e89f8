"""Old objects are frozen after a slow garbage collection, and collected again now and then."""

import gc
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.process.garbage_freezer import (
    LONG_S,
    MIDDLE_ONES,
    MOST_GONE,
    MOST_S,
    OLDEST,
    GarbageFreezer,
    no_collections,
)
from tests.support.servers.group_broker import running


@pytest.mark.parametrize("is_enabled", [True, False])
def test_no_collection_runs_in_the_block_and_its_objects_are_frozen(is_enabled: bool) -> None:
    (gc.enable if is_enabled else gc.disable)()
    before = gc.get_freeze_count()
    try:
        with no_collections():
            assert not gc.isenabled()
            made = [[] for _ in range(1000)]  # type: ignore[var-annotated]
        assert gc.isenabled() == is_enabled
        assert gc.get_freeze_count() - before > len(made) / 2  # other objects may end meanwhile
    finally:
        gc.enable()


class _Collector:
    """A collector whose collections take as long as the test sets; it records the calls."""

    def __init__(self) -> None:
        self.now_s = 0.0
        self.used_s = 0.0
        self.gone = 7
        self.calls: list[str] = []
        self.freezing = GarbageFreezer(
            lambda: self.gone,
            now_s=lambda: self.now_s,
            used_s=lambda: self.used_s,
            freeze=lambda: self.calls.append("freeze"),
            unfreeze=lambda: self.calls.append("unfreeze"),
        )

    def collect(self, took_s: float, generation: int = OLDEST) -> list[str]:
        """Collect once; return the calls that followed."""
        self.calls.clear()
        info: dict[str, Any] = {"generation": generation}
        self.freezing.on_collection("start", info)
        self.used_s += took_s
        self.freezing.on_collection("stop", info)
        return self.calls


def test_survivors_of_a_long_collection_are_frozen() -> None:
    collector = _Collector()
    assert collector.collect(LONG_S / 2) == []
    assert collector.collect(LONG_S) == ["freeze"]
    assert collector.collect(LONG_S / 2) == []
    assert collector.collect(1.0, generation=1) == [], "the young are few, and stay"


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_after_many_deletions_everything_is_collected_once(more: int) -> None:
    collector = _Collector()
    collector.gone += MOST_GONE + more
    thaws = ["unfreeze"] if more >= 0 else []
    assert collector.collect(1.0) == [*thaws, "freeze"]
    assert collector.collect(0.0) == []


@pytest.mark.parametrize("more", [-1, 0, 1])
def test_after_hours_everything_is_collected_once(more: int) -> None:
    collector = _Collector()
    collector.now_s = MOST_S + more
    assert collector.collect(0.0) == (["unfreeze"] if more >= 0 else [])
    assert collector.collect(0.0) == []


def test_it_ends_as_it_began() -> None:
    before, frozen = gc.get_threshold(), gc.get_freeze_count()
    freezing = GarbageFreezer(lambda: 0)
    freezing.start()
    try:
        assert gc.get_threshold() == (*before[:2], MIDDLE_ONES)
        assert gc.get_freeze_count() > frozen
    finally:
        freezing.stop()
        freezing.stop()
    assert gc.get_threshold() == before
    assert freezing.on_collection not in gc.callbacks


async def test_groups_and_their_queues_count_as_they_go(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        await broker.topic(queues=3)
        await broker.group("g")
        await broker.group("h")
        assert broker.groups.gone_count == 0
        await broker.groups.delete_group("g")
        assert broker.groups.gone_count == 4
        await broker.groups.delete_group("h")
        assert broker.groups.gone_count == 8
