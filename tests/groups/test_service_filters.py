"""Filters of groups: each text is parsed once, outside the event loop, and their total length is
limited."""

import threading
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.consumequeue.errors import LimitReached
from holdfast.groups.config import GroupsConfig
from holdfast.groups.settings import GroupSettings, Subscription
from holdfast.holdservice import filters, sql92
from holdfast.holdservice.errors import InvalidFilter
from holdfast.holdservice.sql92 import parse_condition
from tests.support.servers.group_broker import bodies_of, running, running_group


class Parsed(Counter[str]):
    """Counts how often each text was parsed. `on_loop` has the texts parsed on the event loop."""

    def __init__(self) -> None:
        super().__init__()
        self.on_loop: list[str] = []


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch) -> Iterator[Parsed]:
    counted, loop = Parsed(), threading.get_ident()

    def count(text: str) -> object:
        counted[text] += 1
        if threading.get_ident() == loop:
            counted.on_loop.append(text)
        return parse_condition(text)

    filters.parse_filter.cache_clear()
    monkeypatch.setattr(sql92, "parse_condition", count)
    yield counted
    filters.parse_filter.cache_clear()


def long_filter(number: int = 0) -> str:
    return " OR ".join(f"a{number} = '{term}'" for term in range(12))


def many(count: int, distinct: int) -> GroupSettings:
    """Return a group of `count` topics with `distinct` different filters."""
    return GroupSettings(
        {f"t{n}": Subscription(filter=long_filter(n % distinct)) for n in range(count)}
    )


async def test_a_groups_filters_are_parsed_once_each_and_apart_from_the_loop(
    tmp_path: Path, parsed: Parsed
) -> None:
    # S3: a thousand long filters blocked the loop for 14 s, and were parsed again for each topic
    async with running(tmp_path) as broker:
        for number in range(3):
            await broker.topic(f"t{number}")
        # More than the cache of recent filters holds.
        await broker.groups.put_group("g", many(300, distinct=200))
        assert sorted(parsed) == sorted({long_filter(n) for n in range(200)})
        assert set(parsed.values()) == {1}
        await broker.groups.put_group("g", GroupSettings(lease_ms=5_000))
        await broker.groups.put_group("h", many(300, distinct=200))
        await broker.topic("t7")
        await broker.publish("no", "t7", properties={"a7": "12"})
        await broker.publish("yes", "t7", properties={"a7": "11"})
        assert bodies_of(await broker.receive(wait_s=10.0)) == ["yes"]
        assert set(parsed.values()) == {1}
        assert parsed.on_loop == []
    filters.parse_filter.cache_clear()
    async with running(tmp_path) as broker:
        assert set(parsed.values()) == {2}, "a start parses them again, once"
        assert parsed.on_loop == []


async def test_a_receives_long_filter_is_parsed_apart_from_the_loop(
    tmp_path: Path, parsed: Parsed
) -> None:
    # S3, in another place: the longest filter took some ten milliseconds
    async with running_group(tmp_path) as broker:
        await broker.publish("x", properties={"a0": "3"})
        assert bodies_of(await broker.receive(filter=long_filter())) == ["x"]
        assert (parsed[long_filter()], parsed.on_loop) == (1, [])


async def test_a_filter_is_forgotten_with_the_last_group_that_has_it(
    tmp_path: Path, parsed: Parsed
) -> None:
    async with running(tmp_path, limits=GroupsConfig(max_filter_characters=200)) as broker:
        await broker.topic()
        for _ in range(3):  # deleted groups no longer count
            await broker.group(topics={"t": Subscription(filter=long_filter())})
            await broker.groups.delete_group("g")
        await broker.group(topics={"t": Subscription(filter=long_filter())})
        await broker.group(topics={"t": Subscription()})
        await broker.group("h", topics={"t": Subscription(filter=long_filter())})


async def test_one_filter_that_cannot_be_read_leaves_no_group(tmp_path: Path) -> None:
    async with running(tmp_path) as broker:
        topics = {
            "a": Subscription(filter=long_filter()),
            "b": Subscription(filter="a = = 'x'" * 20),
        }
        with pytest.raises(InvalidFilter):
            await broker.groups.put_group("g", GroupSettings(topics))
        assert broker.groups.groups() == []


@pytest.mark.parametrize("more", [-1, 0, 1])
async def test_the_filters_of_all_groups_have_a_most_of_characters(
    tmp_path: Path, more: int
) -> None:
    limits = GroupsConfig(max_filter_characters=20)
    async with running(tmp_path, limits=limits) as broker:
        await broker.group("g", {"t": Subscription(filter="x" * 10)})
        second = GroupSettings({"t": Subscription(filter="y" * (10 + more))})
        if more > 0:
            with pytest.raises(LimitReached, match="max_filter_characters"):
                await broker.groups.put_group("h", second)
            assert broker.groups.groups() == ["g"]
        else:
            await broker.groups.put_group("h", second)


async def test_groups_beyond_a_limit_that_was_lowered_are_served_and_may_get_less(
    tmp_path: Path,
) -> None:
    # S4: a default that depends on the memory may be lower at the next start
    async with running(tmp_path) as broker:
        for name in ("t", "u", "v"):
            await broker.topic(name, queues=4)
        for name in ("g", "h"):
            topics = {each: Subscription(filter="x" * 10 + each) for each in ("t", "u")}
            await broker.group(name, topics)
        await broker.publish("old", "u", tag="x" * 10 + "u")
    limits = GroupsConfig(
        max_groups=1,
        max_topics=1,
        max_cursors=3,
        max_filter_characters=5,
        max_filter_characters_per_group=5,
    )
    async with running(tmp_path, limits=limits) as broker:
        for name in ("g", "h"):
            assert sorted(broker.groups.group_state(name).topics) == ["t", "u"]
            assert bodies_of(await broker.receive(group=name, wait_s=10.0)) == ["old"]
            await broker.groups.put_group(name, GroupSettings(lease_ms=5_000))
        for refused in ({"v": Subscription()}, {"t": Subscription(filter="y" * 30)}):
            with pytest.raises(LimitReached):
                await broker.groups.put_group("g", GroupSettings(refused))
        with pytest.raises(LimitReached):
            await broker.group("i")
        await broker.group("g", {"t": Subscription()})
        assert list(broker.groups.group_state("g").topics) == ["t"]
