"""Which made-up replies the restart campaign reports as violations, and which it accepts."""

import json
import time
from typing import Any

import pytest

from tests.crash.restart_campaign import GroupBook, Message, Place
from tests.support.clients.broker_calls import Answer
from tests.support.histories.history import HistoryViolation


def book_of(**messages: str) -> GroupBook:
    """Return a book of messages of queue 0 by offset. Their states last a minute."""
    book = GroupBook("g", is_keyed=False)
    for name, state in messages.items():
        book.messages[0, int(name[1:])] = Message("key", "x", state, from_s=time.monotonic() + 60)
    return book


def answer(*messages: tuple[int, int]) -> Answer:
    """Return a reply with (offset, attempt) pairs of queue 0."""
    found: list[dict[str, Any]] = [
        {
            "queue": 0,
            "offset": offset,
            "attempt": attempt,
            "redelivered": attempt > 1,
            "receipt": f"{offset}-{attempt}",
        }
        for offset, attempt in messages
    ]
    return Answer(200, {}, json.dumps({"messages": found}).encode())


def check(book: GroupBook, *messages: tuple[int, int]) -> None:
    """Check a complete receive that returned these messages."""
    now_s = time.monotonic()
    states = book.states(now_s)
    book.check_all(states, book.delivered("judge", answer(*messages), now_s, 60_000))


def test_what_is_available_is_not_overtaken() -> None:
    check(book_of(_1="available", _2="available"), (1, 1), (2, 1))
    with pytest.raises(HistoryViolation, match="overtaken_offsets"):
        check(book_of(_1="available", _2="available"), (2, 1), (1, 1))


@pytest.mark.parametrize("state", ["delayed", "leased"])
def test_what_comes_back_while_an_answer_is_filled_may_be_behind_later_messages(state: str) -> None:
    book = book_of(_1=state, _2="available", _3="available")
    back = book.messages[0, 1]
    back.from_s, back.came_back = time.monotonic(), int(state == "delayed")
    check(book, (2, 1), (1, 2), (3, 1))


@pytest.mark.parametrize("state", ["delayed", "leased"])
def test_nothing_comes_before_its_time(state: str) -> None:
    with pytest.raises(HistoryViolation, match="too-early"):
        check(book_of(_1=state), (1, 2))


def test_what_is_available_does_not_wait() -> None:
    with pytest.raises(HistoryViolation, match="waits"):
        check(book_of(_1="available"))


def test_what_is_about_to_come_back_may_be_there_or_not() -> None:
    place: Place = 0, 1
    for found in ([], [(1, 2)]):
        book = book_of(_1="leased")
        book.messages[place].from_s = time.monotonic() - 0.1
        assert book.states(time.monotonic())[place] == "unsure"
        check(book, *found)
