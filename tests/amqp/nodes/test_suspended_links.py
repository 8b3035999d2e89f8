import asyncio
import tracemalloc
from dataclasses import replace
from typing import Any

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.engine.resumption import Resumable
from holdfast.amqp.nodes.suspended_links import LinkKey, SuspendedLinks
from holdfast.amqp.wire.performatives import Accepted

CONFIG = replace(AmqpConfig(), resume_timeout_ms=1_000)


def key(name: str = "link", container: str = "c", principal: str = "p") -> LinkKey:
    return LinkKey(principal, container, name)


def deliveries(count: int = 1) -> Resumable:
    found = Resumable()
    for number in range(count):
        found.keep(b"%d" % number, Accepted())
    return found


def keep(
    links: SuspendedLinks, at: LinkKey, count: int = 1, now_s: float = 0.0, client: str = "a",
    **config: Any,
) -> Resumable:  # fmt: skip
    found = deliveries(count)
    links.keep(at, client, "orders", found, (), replace(CONFIG, **config), now_s)
    return found


async def test_only_the_same_link_gets_its_deliveries_and_only_once() -> None:
    links = SuspendedLinks()
    kept = keep(links, key())
    for other in (key("other"), key(container="d"), key(principal="q")):
        assert not await links.take(other, "orders", 0.5)
    assert await links.take(key(), "orders", 0.5) is kept
    assert not await links.take(key(), "orders", 0.5)
    assert len(links) == 0


async def test_a_link_to_another_address_resumes_nothing() -> None:
    links = SuspendedLinks()
    keep(links, key())
    assert not await links.take(key(), "other", 0.5)
    assert not await links.take(key(), "orders", 0.5)


async def test_deliveries_are_kept_for_the_time_of_the_configuration() -> None:
    links = SuspendedLinks()
    keep(links, key())
    assert not await links.take(key(), "orders", 1.0)
    keep(links, key("1"), now_s=2.0)
    keep(links, key("2"), now_s=3.0)
    assert len(links) == 1
    keep(links, key("3"), resume_timeout_ms=0)
    assert not await links.take(key("3"), "orders", 0.0)


async def test_a_link_that_is_lost_again_replaces_its_deliveries() -> None:
    links = SuspendedLinks()
    keep(links, key(), 3)
    kept = keep(links, key(), 2)
    assert len(links) == 1
    assert await links.take(key(), "orders", 0.5) is kept
    keep(links, key())
    keep(links, key(), 0)
    assert len(links) == 0


async def test_above_a_limit_the_link_that_was_lost_first_is_forgotten() -> None:
    links = SuspendedLinks()
    limits = {"max_suspended_deliveries": 10, "max_client_suspended": 6}
    keep(links, key("1"), 3, client="a", **limits)
    keep(links, key("2"), 3, client="a", **limits)
    keep(links, key("3"), 4, client="b", **limits)
    keep(links, key("4"), 2, client="a", **limits)
    assert not await links.take(key("1"), "orders", 0.5)  # the limit of client a
    keep(links, key("5"), 2, client="b", **limits)
    assert not await links.take(key("2"), "orders", 0.5)  # the limit of all
    keep(links, key("6"), 7, client="c", **limits)
    assert not await links.take(key("6"), "orders", 0.5)
    for name in ("3", "4", "5"):
        assert await links.take(key(name), "orders", 0.5)


async def test_deliveries_that_are_not_resumed_yet_count_against_the_limits() -> None:
    links = SuspendedLinks()
    limits = {"max_suspended_deliveries": 10, "max_client_suspended": 6}
    links.count("a", 3)  # an attached link has them
    keep(links, key("1"), 4, client="a", **limits)
    assert len(links) == 0
    keep(links, key("2"), 3, client="a", **limits)
    keep(links, key("3"), 5, client="b", **limits)
    assert not await links.take(key("2"), "orders", 0.5)
    links.count("c", 5)
    keep(links, key("4"), 3, client="d", **limits)
    assert len(links) == 0
    links.count("a", -3)
    links.count("c", -5)
    kept = keep(links, key("4"), 6, client="a", **limits)
    assert await links.take(key("4"), "orders", 0.5) is kept


async def test_long_names_need_no_more_memory() -> None:
    links, names = SuspendedLinks(), ["name" * 250_000 + str(number) for number in range(4)]
    tracemalloc.start()
    try:
        for number in range(50):
            found = deliveries()
            at = key(f"{number}{names[0]}", names[1], names[2])
            links.keep(at, "a", f"{number}{names[3]}", found, (), CONFIG, 0.0)
        del at
        grown, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert grown < 1_000_000
    at = key(f"7{names[0]}", names[1], names[2])
    assert not await links.take(key(f"7{names[0]}x", names[1], names[2]), f"7{names[3]}", 0.5)
    assert await links.take(at, f"7{names[3]}", 0.5)


async def test_taking_waits_until_the_publishes_have_ended() -> None:
    links, found = SuspendedLinks(), deliveries(0)
    found.keep(b"1")
    publish = asyncio.get_running_loop().create_future()
    publishes = {publish}
    links.keep(key(), "a", "orders", found, publishes, CONFIG, 0.0)
    taking = asyncio.create_task(links.take(key(), "orders", 0.5))
    await asyncio.sleep(0)
    assert not taking.done()
    found.keep(b"1", Accepted())
    publish.set_result(None)
    publishes.clear()
    assert (await taking).states == {b"1": Accepted()}


async def test_clients_take_turns_to_search_for_copies() -> None:
    links, turns = SuspendedLinks(), list[str]()

    async def search(client: str) -> None:
        async with links.search(client):
            turns.append(client)
            await asyncio.sleep(0)

    searches = [asyncio.create_task(search(client)) for client in "aaaabcb"]
    await asyncio.sleep(0)
    searches.pop(1).cancel()
    await asyncio.gather(*searches)
    assert turns == [*"abcaba"]
