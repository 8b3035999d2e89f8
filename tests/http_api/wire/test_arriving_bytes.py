"""Arriving bytes are counted per client: the largest client gives way, and each has a limit."""

import random

import pytest

from holdfast.http_api.wire.body_reader import LIMIT, SHARE, ArrivingBytes


class Room(ArrivingBytes):
    """An ArrivingBytes that records the clients that gave way."""

    def __init__(self, limit_bytes: int = 100, share_bytes: int = 100) -> None:
        super().__init__(limit_bytes, share_bytes)
        self.gone: list[str] = []

    def arrive(self, holder: str, client: str, size: int) -> str | None:
        return self.take(holder, client, size, lambda: self.gone.append(holder))


@pytest.mark.parametrize(("size", "gone"), [(39, []), (40, []), (41, ["greedy-1"])])
def test_nobody_gives_way_up_to_the_limit(size: int, gone: list[str]) -> None:
    room = Room()
    room.arrive("greedy-1", "greedy", 30)
    room.arrive("greedy-2", "greedy", 30)
    assert room.take("modest", "modest", size) is None
    assert room.gone == gone
    assert room.total_bytes == 60 + size - 30 * len(gone)


@pytest.mark.parametrize(("size", "refused"), [(29, None), (30, None), (31, SHARE)])
def test_a_client_has_no_more_than_its_share(size: int, refused: str | None) -> None:
    # M1: space for other clients stays free, however large the total is
    room = Room(limit_bytes=1000, share_bytes=60)
    assert room.arrive("first", "greedy", 30) is None
    assert room.arrive("second", "greedy", size) == refused
    assert room.bytes_of["greedy"] == (30 if refused else 30 + size)
    assert room.arrive("other", "modest", 60) is None


def test_who_holds_the_most_itself_is_refused_and_pushes_nobody_out() -> None:
    room = Room()
    room.arrive("modest", "modest", 40)
    assert room.arrive("greedy", "greedy", 61) == LIMIT
    assert (room.gone, room.total_bytes) == ([], 40)


def test_who_is_alone_may_hold_more_than_the_limit_and_the_share() -> None:
    room = Room(limit_bytes=100, share_bytes=50)
    assert room.arrive("one", "client", 1000) is None
    assert room.arrive("one", "client", 2000) is None
    assert room.arrive("two", "client", 1) == SHARE
    assert room.arrive("other", "other", 90) is None
    assert room.gone == ["one"]


def test_what_has_arrived_does_not_give_way() -> None:
    room = Room()
    room.arrive("at work", "greedy", 90)
    room.mark_arrived("at work")
    assert room.arrive("modest", "modest", 20) == LIMIT
    assert room.gone == []
    room.release("at work")
    assert room.arrive("modest", "modest", 20) is None


def test_a_refused_holder_keeps_what_it_had() -> None:
    room = Room(share_bytes=50)
    room.arrive("one", "client", 20)
    room.arrive("two", "client", 20)
    assert room.arrive("two", "client", 31) == SHARE
    assert (room.bytes_of["client"], len(room)) == (40, 2)


def test_what_is_counted_is_what_is_held_over_random_steps() -> None:
    chance = random.Random(7)
    room = Room(limit_bytes=300, share_bytes=120)
    held: dict[str, tuple[str, int]] = {}
    for step in range(5000):
        client = f"client {chance.randrange(5)}"
        holder = f"{client}/{chance.randrange(6)}"
        room.gone.clear()
        what = chance.randrange(4)
        if what == 0:
            room.release(holder)
            held.pop(holder, None)
        elif what == 1:
            room.mark_arrived(holder)
        else:
            size = chance.randrange(80)
            refused = room.arrive(holder, client, size)
            for gone in room.gone:
                del held[gone]
            if refused is None:
                held[holder] = client, size
        assert room.total_bytes == sum(size for _, size in held.values()), step
        assert len(room) == len(held)
        for number in range(5):
            each = f"client {number}"
            own = [size for whose, size in held.values() if whose == each]
            assert room.bytes_of.get(each, 0) == sum(own)
            assert sum(own) <= 120 or len(own) == 1
        assert room.total_bytes <= 300 or len(held) == 1
    for holder in held:
        room.release(holder)
    assert room.total_bytes == 0
    assert (room.arriving, room.bytes_of) == ({}, {})
