"""Waiting requests, and answers that are stored for repeated requests."""

import pytest

from holdfast.groups.core import requests
from holdfast.groups.core.receiving import continue_reply, receive
from holdfast.groups.core.requests import FEW, ReceiveRequest, Waiters
from tests.groups.queues import Stage


@pytest.mark.parametrize("count", [0, 1, FEW - 1, FEW, FEW + 1, 3 * FEW])
@pytest.mark.parametrize("removed", [0, 2, 3])
def test_all_waiters_are_visited_while_some_are_removed(count: int, removed: int) -> None:
    waiters = Waiters()
    held = [waiters.add(ReceiveRequest("a", 1), number, 1_000) for number in range(count)]
    seen, left = [], []
    for waiter in waiters:
        seen.append(waiter)
        if removed and len(seen) % removed == 0:
            assert waiters.remove(waiter)
        else:
            left.append(waiter)
    assert seen == held
    assert list(waiters) == left
    assert len(waiters) == len(left)


def test_deadlines_come_in_order_without_removed_waiters() -> None:
    waiters = Waiters()
    held = [waiters.add(ReceiveRequest("a", 1), None, deadline) for deadline in (30, 10, 20, 10)]
    assert waiters.deadlines.next_deadline() == 10
    assert waiters.remove(held[1])
    assert not waiters.remove(held[1])
    assert waiters.take_due(20) == [held[3], held[2]]
    assert waiters.deadlines.next_deadline() == 30
    assert waiters.take_due(29) == []


def stored_offsets(stage: Stage, attempt_id: str) -> list[int]:
    repeats = stage.group.answers
    return [message.offset for message in repeats.find("a", attempt_id, stage.now)]


@pytest.mark.parametrize(
    ("name", "limit", "kept"),
    [
        ("MAX_ANSWERED_MESSAGES", 29, "cd"),
        ("MAX_ANSWERED_MESSAGES", 30, "bcd"),
        ("MAX_ANSWERED_MESSAGES", 31, "bcd"),
        ("MAX_ANSWERS", 2, "cd"),
        ("MAX_ANSWERS", 3, "bcd"),
        ("MAX_ANSWERS", 4, "abcd"),
    ],
)
def test_stored_answers_and_their_messages_are_limited(
    monkeypatch: pytest.MonkeyPatch, name: str, limit: int, kept: str
) -> None:
    monkeypatch.setattr(requests, name, limit)
    stage = Stage()
    stage.publish(40)
    for attempt_id in "abcd":
        stage.take(max_messages=10, attempt_id=attempt_id)
    assert "".join(each for each in "abcd" if stored_offsets(stage, each)) == kept


@pytest.mark.parametrize("limit", ["MAX_ANSWERS", "MAX_ANSWERED_MESSAGES"])
def test_a_client_removes_its_own_answers_before_those_of_others(
    monkeypatch: pytest.MonkeyPatch, limit: str
) -> None:
    # M1: the requests of one client removed the remembered answers of all members of the group
    monkeypatch.setattr(requests, limit, 3)
    stage = Stage()
    stage.publish(20)
    stage.take(max_messages=1, attempt_id="mine", client="modest")
    for number in range(10):
        request = ReceiveRequest(f"made up {number}", 1, attempt_id="x", client="greedy")
        assert len(receive(stage.group, request, stage.now).messages) == 1
    assert stored_offsets(stage, "mine") == [0]
    repeats = stage.group.answers
    kept = [n for n in range(10) if repeats.find(f"made up {n}", "x", stage.now)]
    assert kept == [8, 9]
    stage.now += 300_000
    assert stored_offsets(stage, "mine") == []
    assert not repeats.shares


def test_a_continued_answer_is_stored_once_and_completely() -> None:
    stage = Stage()
    stage.publish(20)
    stage.queues.cold_from[1, 0] = 5
    request = ReceiveRequest("a", 20, attempt_id="x")
    reply = receive(stage.group, request, stage.now)
    del stage.queues.cold_from[1, 0]
    continue_reply(stage.group, reply, request, stage.now)
    assert stored_offsets(stage, "x") == [*range(20)]
    assert stage.group.answers.message_count == 20
    stage.now += 300_000
    assert stored_offsets(stage, "x") == []
    assert stage.group.answers.message_count == 0
