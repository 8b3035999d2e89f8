"""The client with the most bytes gives way first, with its oldest entry before its newest."""

import random

import pytest

from holdfast.http_api.wire.connection_registry import ClientByteBudget


@pytest.mark.parametrize(("size", "gone"), [(39, []), (40, []), (41, ["greedy-1"])])
def test_nobody_goes_up_to_the_limit(size: int, gone: list[str]) -> None:
    share: ClientByteBudget[str] = ClientByteBudget(100)
    share.add("greedy-1", "greedy", 30)
    share.add("greedy-2", "greedy", 30)
    assert share.add("modest", "modest", size) == gone
    assert share.total_bytes == (60 + size if not gone else 30 + size)


def test_the_newcomer_itself_goes_when_its_client_holds_the_most() -> None:
    share: ClientByteBudget[str] = ClientByteBudget(100)
    share.add("modest", "modest", 40)
    assert share.add("greedy", "greedy", 90) == ["greedy"]
    assert share.total_bytes == 40


def test_who_is_alone_may_hold_more_than_the_limit() -> None:
    share: ClientByteBudget[str] = ClientByteBudget(100)
    assert share.add("one", "client", 1000) == []
    assert share.add("two", "client", 50) == ["one"]


def test_what_is_given_up_is_forgotten() -> None:
    share: ClientByteBudget[str] = ClientByteBudget(100)
    share.add("one", "client", 50)
    share.add("one", "client", 20)
    assert (share.total_bytes, len(share)) == (20, 1)
    share.discard("one")
    share.discard("one")
    share.discard("never-there")
    assert (share.total_bytes, len(share)) == (0, 0)
    assert share.bytes_of == {}


def test_it_stays_within_its_limit_whatever_happens() -> None:
    chance = random.Random(7)
    share: ClientByteBudget[int] = ClientByteBudget(1000)
    held: dict[int, int] = {}
    for _ in range(5000):
        holder = chance.randrange(200)
        if chance.random() < 0.3:
            share.discard(holder)
            held.pop(holder, None)
            continue
        size = chance.randrange(1, 200)
        held[holder] = size
        for each in share.add(holder, f"client-{holder % 7}", size):
            del held[each]
        assert share.total_bytes == sum(held.values()) <= 1000
        assert len(share) == len(held)
