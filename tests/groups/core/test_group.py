"""A group in steps: delivered messages, their order, and the wake-up of waiting requests."""

import heapq
import random

import pytest

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import FAIR_ENGINES
from holdfast.groups.core import receiving, settling
from holdfast.groups.core.group import Group
from holdfast.groups.core.receipts import Receipt
from holdfast.groups.core.receiving import continue_reply, receive, serve
from holdfast.groups.core.requests import Limits, ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.core.settling import Status, Verb, release_undelivered
from holdfast.groups.errors import ExclusiveHeld, FilterNotAllowed
from tests.groups.pages import progress_of
from tests.groups.queues import Stage, browse_stage, park, served, settle

DONE, STALE, INVALID = Status.DONE, Status.STALE, Status.INVALID


# -- competing -----------------------------------------------------------------------------------


def test_each_message_goes_to_one_member() -> None:  # T1, T20, Q5
    stage = Stage()
    stage.publish(1_000)
    got = [stage.offsets(member, 7) for _ in range(60) for member in "abcde"]
    assert sorted(offset for each in got for offset in each) == list(range(1_000))


def test_messages_of_a_member_that_leaves_regain_their_places() -> None:  # T24, Q17
    stage = Stage()
    stage.publish(7)
    for offset in range(6):
        stage.take("ab"[offset % 2], 1)
    stage.group.leave("a", stage.now)
    messages = stage.take("b")
    assert [message.offset for message in messages] == [0, 2, 4, 6]
    assert [message.redelivered for message in messages] == [True, True, True, False]


def test_the_smaller_limit_counts() -> None:  # T18, T19
    stage = Stage(max_in_flight=12, max_in_flight_per_member=10)
    stage.publish(100)
    messages = stage.take("a")
    assert len(messages) == 10
    assert len(stage.take("b")) == 2
    assert stage.offsets("c") == []
    settle(stage, Verb.ACK, messages[:3])
    assert len(stage.take("a")) == 3


def test_a_lease_that_ends_makes_room_and_a_redelivery() -> None:  # T23
    stage = Stage(max_in_flight=2, lease_ms=5_000)
    stage.publish(3)
    assert stage.offsets("a") == [0, 1]
    assert stage.offsets("b") == []
    stage.later(5_000)
    messages = stage.take("b")
    assert [(message.offset, message.attempt) for message in messages] == [(0, 2), (1, 2)]


def test_a_settled_delivery_is_never_repeated() -> None:  # T22
    stage = Stage()
    stage.publish(3)
    reply = stage.ask(settled=True)
    assert [message.receipt for message in reply.messages] == [None] * 3
    assert reply.commit_first
    assert stage.group.lease_count == 0
    stage.later(10**9)
    assert stage.offsets() == []


def test_returned_messages_regain_their_places_in_any_order() -> None:  # Q1, Q14, Q16
    stage = Stage()
    stage.publish(12)
    messages = stage.take(max_messages=10)
    for offset in (7, 2, 5):
        settle(stage, Verb.RELEASE, [messages[offset]])
    assert stage.offsets("b") == [2, 5, 7, 10, 11]


def test_a_returned_head_comes_before_the_messages_after_it() -> None:  # Q14
    stage = Stage()
    stage.publish(4)
    head = stage.take("a", 1)
    assert [each.offset for each in head] == [0]
    assert stage.offsets("b", 1) == [1]
    assert settle(stage, Verb.RELEASE, head) == [DONE]
    assert stage.offsets("b", 1) == [0]
    assert stage.offsets("b") == [2, 3]


@pytest.mark.parametrize("taken", [1, 3])
def test_a_release_marks_only_the_released_message_as_redelivered(taken: int) -> None:  # Q17
    stage = Stage()
    stage.publish(3)
    first = stage.take("a", taken)
    assert [(each.offset, each.redelivered) for each in first] == [
        (at, False) for at in range(taken)
    ]
    assert settle(stage, Verb.RELEASE, first[:1]) == [DONE]
    rest = stage.take("b")
    flags = [(0, True), (1, False), (2, False)]
    assert [(each.offset, each.redelivered) for each in rest] == (
        flags[:1] if taken == 3 else flags
    )
    if taken == 3:  # the flags of the others stay clear, and count no delivery by the release
        assert [(each.redelivered, each.attempt) for each in first[1:]] == [(False, 1)] * 2
        assert settle(stage, Verb.ACK, first[1:]) == [DONE] * 2


def test_a_settled_prefix_is_scanned_once() -> None:  # Q13
    stage = Stage()
    stage.publish(3_000)
    for _ in range(3):
        settle(stage, Verb.ACK, stage.take(max_messages=1_000)[::-1])
    stage.queues.reads.clear()
    stage.publish(1)
    assert stage.offsets("b") == [3_000]
    assert stage.queues.reads == [((1, 0), 3_000, 3_001)]


@pytest.mark.parametrize("how", ["release", "nack", "delay", "leave", "lease"])
def test_an_expired_message_is_neither_delivered_nor_redelivered(how: str) -> None:  # T32, Q18
    stage = Stage(lease_ms=5_000, backoff_ms=())
    stage.publish(2, expires_at_ms=stage.now + 100)
    stage.publish(1)
    messages = stage.take(max_messages=1)
    stage.now += 100
    if how == "delay":
        park(stage, "b", filter="x")
        assert settle(stage, Verb.NACK, messages, delay_ms=700) == [DONE]
        stage.later(700)
        assert served(stage) == []
    elif how == "leave":
        stage.group.leave("a", stage.now)
    elif how == "lease":
        stage.later(5_000)
    else:
        assert settle(stage, Verb(how), messages) == [DONE]
    assert (stage.cursor().expired_count, stage.cursor().floor) == (1, 1)
    assert [offset for _, offset in browse_stage(stage, {}).messages] == [2]
    assert stage.offsets() == [2]
    assert (stage.cursor().expired_count, stage.cursor().floor) == (2, 2)


def test_a_rejected_expired_message_is_a_dead_letter() -> None:
    stage = Stage(has_dead_letters=True)
    stage.publish(1, expires_at_ms=stage.now + 100)
    messages = stage.take()
    stage.now += 100
    assert settle(stage, Verb.REJECT, messages) == [DONE]
    assert [letter.offset for letter in stage.group.outbox.take_dead_letters()] == [0]


def test_available_does_not_count_leased_messages() -> None:  # A35, T27
    stage = Stage()
    stage.publish(4)
    assert stage.ask(max_messages=1).available == 3
    assert stage.ask().available == 0


def test_max_bytes_limits_all_but_the_first_message() -> None:
    stage = Stage()
    stage.publish(3, size_bytes=400)
    assert stage.offsets(max_bytes=10) == [0]
    assert stage.offsets(max_bytes=800) == [1, 2]
    assert stage.group.fair.served[1] == 3


# -- filters and browsing ------------------------------------------------------------------------


def test_members_with_disjoint_filters_get_their_messages_in_order() -> None:  # Q3
    stage = Stage()
    for offset in range(100):
        stage.publish(tag="odd" if offset % 2 else "even")
    assert stage.offsets("a", filter="odd") == list(range(1, 100, 2))
    assert stage.offsets("b", filter="even") == list(range(0, 100, 2))
    assert stage.offsets("c") == []


def test_a_member_that_joins_late_gets_what_a_filter_skipped() -> None:  # Q28
    stage = Stage()
    for offset in range(6):
        stage.publish(tag="odd" if offset % 2 else "even")
    assert stage.offsets("a", filter="odd") == [1, 3, 5]
    assert stage.offsets("b") == [0, 2, 4]


def test_messages_that_the_groups_filter_skips_are_settled_and_scanned_once() -> None:
    stage = Stage(filter="yes")
    stage.publish(5_000, tag="no")
    stage.publish(1, tag="yes")
    assert stage.offsets() == [5_000]
    assert stage.cursor().floor == 5_000
    looked_at = sum(end - start for _, start, end in stage.queues.reads)
    assert looked_at <= 5_001


def test_a_changed_filter_applies_to_returned_messages() -> None:
    stage = Stage()
    stage.publish(2, tag="x")
    stage.publish(1, tag="y")
    messages = stage.take(max_messages=2)
    stage.set_filter("y")
    settle(stage, Verb.RELEASE, messages)
    assert stage.offsets() == [2]
    assert stage.cursor().floor == 2


def test_a_changed_filter_applies_to_messages_that_are_returned_after_a_read() -> None:
    stage = Stage()
    stage.publish(2, tag="x")
    stage.publish(2, tag="y")
    messages = stage.take(max_messages=2)
    stage.set_filter("y")
    assert stage.offsets(max_messages=1) == [2]
    settle(stage, Verb.RELEASE, messages)
    assert stage.offsets() == [3]
    assert stage.cursor().floor == 2


def test_a_returned_message_is_delivered_again_without_a_read() -> None:
    stage = Stage()
    stage.publish(3)
    messages = stage.take(max_messages=3)
    stage.queues.reads.clear()
    settle(stage, Verb.RELEASE, messages)
    assert stage.offsets() == [0, 1, 2]
    assert stage.queues.reads == []


@pytest.mark.parametrize("mode", ["competing", "keyed"])
def test_a_changed_filter_finds_skipped_messages_beyond_next(mode: str) -> None:
    # R8: messages that were skipped at `next` and beyond were dropped, up to the whole look-ahead
    stage = Stage(filter="few", mode=mode)
    stage.publish(10, tag="few")
    stage.publish(5_000, tag="rest")
    messages = stage.take(max_messages=2)
    settle(stage, Verb.ACK, messages)
    assert stage.cursor().next == 2
    assert stage.cursor().available < 5_008, "it has looked ahead"
    stage.commit()
    stage.set_filter("rest")
    assert stage.cursor().available == 5_008
    stage.commit()
    assert stage.offsets(max_messages=3) == [10, 11, 12]
    stage.commit()
    stage.restart()
    assert [each for each in range(5_010) if each in stage.cursor().done] == [*range(10)]


def test_a_changed_filter_counts_expired_messages_once() -> None:  # R8
    stage = Stage()
    stage.publish(1, tag="x")
    stage.publish(2, tag="xy", expires_at_ms=stage.now)
    stage.publish(1, tag="y")
    assert stage.offsets(max_messages=1) == [0]
    assert stage.offsets("b", max_messages=1, filter="unused") == []
    expired = stage.cursor().expired_count
    stage.set_filter("y")
    assert stage.cursor().expired_count <= expired
    assert stage.offsets() == [3]
    assert stage.cursor().expired_count == 2


def test_browsing_changes_nothing() -> None:  # Q12, I15
    stage = Stage()
    stage.publish(5)
    settle(stage, Verb.NACK, stage.take("a", 3)[2:], delay_ms=0)
    stage.commit()

    def state() -> object:
        group, cursor = stage.group, stage.cursor()
        states = [(cursor.state(at), cursor.attempt(at), cursor.failures(at)) for at in range(5)]
        counts = group.available(), group.lease_count, dict(group.fair.served)
        return repr(progress_of(cursor)), states, counts

    before = state()

    def look(place: dict[QueueKey, int], *, leased: bool = False) -> list[int]:
        shown = browse_stage(stage, place, max_messages=2, include_leased=leased)
        place.update(shown.place)
        return [offset for _, offset in shown.messages]

    one: dict[QueueKey, int] = {}
    other: dict[QueueKey, int] = {}
    assert (look(one), look(one), look(one)) == ([2, 3], [4], [])
    assert (look(other, leased=True), look(other)) == ([0, 1], [2, 3])
    assert state() == before
    assert not stage.group.outbox.has_writes
    assert stage.offsets("b") == [2, 3, 4]


# -- keyed ---------------------------------------------------------------------------------------


def publish_keys(stage: Stage, *keys: int) -> None:
    for key in keys:
        stage.publish(key=key)


def test_a_key_belongs_to_one_member_and_other_keys_continue() -> None:  # I11
    stage = Stage(mode="keyed")
    publish_keys(stage, 1, 1, 2, 1, 2, 3)
    first = stage.take("a", 1)
    assert stage.offsets("b") == [2, 4, 5]
    assert stage.offsets("a") == [1, 3]
    settle(stage, Verb.ACK, first)


def test_a_failure_blocks_its_key_and_revokes_later_leases() -> None:  # I11
    stage = Stage(mode="keyed")
    publish_keys(stage, 1, 1, 1, 2)
    messages = stage.take("a")
    settle(stage, Verb.NACK, messages[:1], delay_ms=500)
    assert settle(stage, Verb.ACK, messages[1:3]) == [STALE, STALE]
    assert stage.offsets("b") == []
    stage.later(500)
    assert stage.offsets("b") == [0, 1, 2]


def test_a_key_continues_after_an_expired_message() -> None:
    stage = Stage(mode="keyed", max_in_flight_per_key=1)
    stage.publish(1, key=1, expires_at_ms=stage.now + 100)
    publish_keys(stage, 1, 1)
    messages = stage.take("a")
    park(stage, "b")
    assert served(stage) == []
    stage.now += 100
    settle(stage, Verb.RELEASE, messages)
    assert served(stage) == [("b", [1])]


def test_messages_without_a_key_block_no_member() -> None:
    stage = Stage(mode="keyed")
    publish_keys(stage, 0, 0, 0)
    assert stage.offsets("a", 1) == [0]
    assert stage.offsets("b") == [1, 2]


def test_a_key_may_be_limited_to_one_lease() -> None:
    stage = Stage(mode="keyed", max_in_flight_per_key=1)
    publish_keys(stage, 1, 1, 2)
    messages = stage.take("a")
    assert [message.offset for message in messages] == [0, 2]
    settle(stage, Verb.ACK, messages[:1])
    assert stage.offsets("b") == [1]


def test_reading_ahead_is_limited() -> None:
    stage = Stage(mode="keyed", max_in_flight_per_key=1)
    publish_keys(stage, *[1] * 5_000, 2)
    assert stage.offsets("a") == [0]
    assert stage.offsets("b") == []


def test_a_member_of_a_keyed_group_may_not_filter() -> None:
    with pytest.raises(FilterNotAllowed):
        Stage(mode="keyed").ask(filter="x")


# -- single active and exclusive -----------------------------------------------------------------


def test_the_next_member_gets_a_notice_when_no_lease_is_left() -> None:  # I12, A33, A37
    stage = Stage(mode="single_active")
    stage.publish(4)
    messages = stage.take("a", 2)
    assert stage.ask("a", 0).available == 2
    waiting = stage.ask("b")
    assert (waiting.is_active, waiting.available, waiting.messages) == (False, 0, [])
    park(stage, "b")
    stage.group.retire("a")
    assert served(stage) == []
    settle(stage, Verb.ACK, messages)
    ((waiter, notice),) = serve(stage.group, stage.now)
    assert isinstance(notice, Reply)
    assert (waiter.ticket, notice.is_notice, notice.messages) == ("b", True, [])
    assert (stage.ask("a", 0).available, stage.ask("b", 0).available) == (0, 2)
    assert stage.offsets("b") == [2, 3]
    assert not stage.ask("a").is_active


def test_the_receipts_of_a_fenced_member_are_stale() -> None:  # A34, T29
    stage = Stage(mode="single_active")
    stage.publish(5)
    left = list(range(5))
    for member, following in ("ab", "bc", "cd"):  # each fails in its turn
        messages = stage.take(member, 3)
        assert [message.offset for message in messages] == left[:3]
        settle(stage, Verb.ACK, messages[:1])
        del left[0]
        assert not stage.ask(following).is_active
        stage.group.leave(member, stage.now)
        assert stage.ask(following).is_notice
        assert settle(stage, Verb.ACK, messages[1:]) == [STALE] * len(messages[1:])
    assert stage.offsets("d") == left


def test_a_member_that_retires_and_then_fails_keeps_the_order() -> None:  # A34
    stage = Stage(mode="single_active")
    stage.publish(4)
    messages = stage.take("a", 3)
    stage.group.retire("a")
    assert not stage.ask("b").is_active
    settle(stage, Verb.ACK, messages[1:2])
    assert not stage.ask("b").is_active  # two messages of the first member are not settled
    stage.group.leave("a", stage.now)
    assert stage.ask("b").is_notice
    assert stage.offsets("b") == [0, 2, 3]


def test_a_silent_active_member_is_fenced() -> None:
    stage = Stage(mode="single_active", member_ttl_ms=9_000, lease_ms=5_000)
    stage.publish(1)
    stage.take("a")
    stage.ask("b")
    stage.later(7_000)
    assert not stage.ask("b").is_active
    stage.later(7_000)
    assert stage.ask("b").is_notice
    assert stage.offsets("b") == [0]


def test_an_exclusive_member_keeps_other_members_out() -> None:  # T29
    stage = Stage(mode="exclusive", member_ttl_ms=9_000)
    stage.publish(2)
    messages = stage.take("a", 1)
    with pytest.raises(ExclusiveHeld) as refused:
        stage.ask("b")
    assert refused.value.holder == "a"
    stage.group.leave("a", stage.now)
    assert stage.offsets("b") == [0, 1]
    assert settle(stage, Verb.ACK, messages) == [STALE]


@pytest.mark.parametrize("held", [0, 2])
def test_an_exclusive_member_that_falls_silent_is_succeeded_and_fenced(held: int) -> None:  # T29
    # The time to live begins when the last lease of the silent member has ended.
    stage = Stage(mode="exclusive", member_ttl_ms=9_000, lease_ms=5_000)
    stage.publish(3)
    messages = stage.take("a", held)
    assert len(messages) == held
    stage.later(9_000 - 1 + (5_000 if held else 0))
    for _ in range(2):
        with pytest.raises(ExclusiveHeld) as refused:
            stage.ask("b")
        assert refused.value.holder == "a"
    stage.later(1)
    assert stage.ask("b", 0).is_active
    assert settle(stage, Verb.ACK, messages) == [STALE] * held, "no other member has leased them"
    with pytest.raises(ExclusiveHeld) as refused:
        stage.ask("a")
    assert refused.value.holder == "b"
    assert stage.offsets("b") == [0, 1, 2]


# -- priorities ----------------------------------------------------------------------------------


def test_the_highest_level_comes_first_even_if_it_is_late() -> None:  # Q19, Q21, Q23
    stage = Stage(levels=3, queues=3)
    stage.publish(4, (1, 0))
    assert [message.queue[1] for message in stage.take(max_messages=2)] == [0, 0]
    stage.publish(1, (1, 2))
    stage.publish(1, (1, 1))
    messages = stage.take("b")
    places = [(message.queue[1], message.offset) for message in messages]
    assert places == [(2, 0), (1, 0), (0, 2), (0, 3)]


@pytest.mark.parametrize("seed", range(3))
def test_no_lower_level_is_delivered_while_a_higher_one_is_available(seed: int) -> None:  # Q19
    # Two queues of three levels each: queue = index * 3 + level. Messages arrive, are returned and
    # acknowledged between the deliveries; `waiting` has the available ones of each level.
    draw = random.Random(seed)
    stage = Stage(levels=3, queues=6)
    waiting: dict[int, set[tuple[int, int]]] = {0: set(), 1: set(), 2: set()}
    held: dict[str, list[SelectedMessage]] = {"a": [], "b": [], "c": []}
    ends = [0] * 6
    delivered = [0] * 3
    for _ in range(600):
        queue, member = draw.randrange(6), draw.choice("abc")
        act = draw.randrange(4)
        if act == 0:
            stage.publish(1, (1, queue))
            waiting[queue % 3].add((queue, ends[queue]))
            ends[queue] += 1
        elif act == 1 and held[member]:
            message = held[member].pop(draw.randrange(len(held[member])))
            if draw.random() < 0.5:
                assert settle(stage, Verb.RELEASE, [message]) == [DONE]
                waiting[message.queue[1] % 3].add((message.queue[1], message.offset))
            else:
                assert settle(stage, Verb.ACK, [message]) == [DONE]
        elif act == 2:
            for message in stage.take(member, draw.randint(1, 3)):
                level = message.queue[1] % 3
                assert not any(waiting[higher] for higher in range(level + 1, 3))
                waiting[level].remove((message.queue[1], message.offset))
                held[member].append(message)
                delivered[level] += 1
    assert min(delivered) > 10


def test_an_empty_level_is_skipped_and_the_lowest_is_the_last() -> None:  # Q21
    stage = Stage(levels=3, queues=3)
    stage.publish(2, (1, 0))
    stage.publish(2, (1, 2))
    places = [((1, 2), 0), ((1, 2), 1), ((1, 0), 0), ((1, 0), 1)]
    place: dict[QueueKey, int] = {}
    shown = []
    while found := browse_stage(stage, place, max_messages=1):
        place.update(found.place)
        if not found.messages:
            break
        shown += found.messages
    assert shown == places
    taken = [stage.take("a", 1) for _ in range(5)]
    assert [(each.queue, each.offset) for one in taken for each in one] == places
    assert taken[4] == []


def test_a_lease_stands_when_a_message_of_a_higher_level_arrives() -> None:  # Q25
    stage = Stage(levels=2, queues=2)
    stage.publish(2, (1, 0))
    (low,) = stage.take("a", 1)
    stage.publish(1, (1, 1))
    assert stage.group.lease_count == 1
    (high,) = stage.take("b", 1)
    assert (high.queue, high.offset) == ((1, 1), 0)
    assert [(each.queue, each.offset) for each in stage.take("b")] == [((1, 0), 1)]
    assert settle(stage, Verb.ACK, [low]) == [DONE]
    stage.group.leave("b", stage.now)
    assert [(each.queue, each.offset) for each in stage.take("c")] == [((1, 1), 0), ((1, 0), 1)]


def test_queues_of_one_level_alternate_before_a_lower_level() -> None:
    stage = Stage({1: 1, 2: 1}, levels=2, queues=6)
    for queue in range(6):
        stage.publish(2, (1, queue))
    stage.publish(12, (2, 0))
    queues = [message.queue for message in stage.take()]
    assert [queue for topic_id, queue in queues if topic_id == 1] == [
        1,
        3,
        5,
        1,
        3,
        5,
        0,
        2,
        4,
        0,
        2,
        4,
    ]
    stage.publish(10, (1, 1))
    stage.publish(10, (2, 0))
    topics = [message.queue[0] for message in stage.take("b", 10)]
    assert topics.count(1) == 5, "levels of one topic do not starve another"


def test_a_key_keeps_its_order_inside_its_level() -> None:
    stage = Stage(mode="keyed", levels=2, queues=2, max_in_flight_per_key=1)
    for queue in (0, 1):
        stage.publish(2, (1, queue), key=1)
    high, low = stage.take("a")
    assert (high.queue[1], low.queue[1], high.offset, low.offset) == (1, 0, 0, 0)
    assert stage.take("b") == []
    settle(stage, Verb.NACK, [high], delay_ms=0)
    (again,) = stage.take("b")
    assert (again.queue, again.offset) == ((1, 1), 0)
    settle(stage, Verb.ACK, [low])
    (next_low,) = stage.take("a")
    assert (next_low.queue, next_low.offset) == ((1, 0), 1)


def test_a_returned_message_returns_to_its_level() -> None:  # Q19
    stage = Stage(levels=2, queues=2)
    stage.publish(2, (1, 0))
    stage.publish(2, (1, 1))
    messages = stage.take(max_messages=3)
    settle(stage, Verb.RELEASE, messages)
    again = [(message.queue[1], message.offset) for message in stage.take("b")]
    assert again == [(1, 0), (1, 1), (0, 0), (0, 1)]


def test_browsing_follows_the_levels() -> None:  # Q22
    stage = Stage(levels=3, queues=3)
    for queue in (2, 0, 1):
        stage.publish(4, (1, queue))
    shown = browse_stage(stage, {})
    assert [key[1] for key, _ in shown.messages] == [2] * 4 + [1] * 4 + [0] * 4


# -- a repeated request --------------------------------------------------------------------------


def test_a_lost_reply_can_be_requested_again() -> None:
    stage = Stage()
    stage.publish(5)
    first = stage.take(max_messages=3, attempt_id="x")
    settle(stage, Verb.ACK, first[:1])
    stage.now += 1_000
    again = stage.take(max_messages=3, attempt_id="x")
    assert [message.offset for message in again] == [1, 2]
    assert settle(stage, Verb.ACK, first[1:2]) == settle(stage, Verb.ACK, again[1:]) == [DONE]
    assert stage.offsets(max_messages=3, attempt_id="x") == [3, 4]
    assert stage.offsets(max_messages=3, attempt_id="y") == []


@pytest.mark.parametrize("passed_ms", [0, 1_000])
def test_a_repeated_request_keeps_its_messages_when_the_first_reply_is_lost(passed_ms: int) -> None:
    # The client repeated its request before the broker noticed that the first reply was lost.
    stage = Stage()
    stage.publish(3)
    lost = stage.take(max_messages=2, attempt_id="x")
    stage.now += passed_ms
    again = stage.take(max_messages=2, attempt_id="x")
    assert release_undelivered(stage.group, [pick.receipt for pick in lost], stage.now) == 0
    assert stage.offsets("b") == [2]
    assert settle(stage, Verb.ACK, again[:1]) == [DONE]
    assert release_undelivered(stage.group, [pick.receipt for pick in again[1:]], stage.now) == 1
    assert stage.offsets("b") == [1]


def test_each_reply_to_an_attempt_has_its_own_deadline() -> None:
    stage = Stage(lease_ms=1_000, longest_lease_ms=1_000)
    stage.publish(1)
    deadlines = set()
    for _ in range(4):  # all in one millisecond
        (message,) = stage.take(max_messages=1, attempt_id="x")
        assert message.receipt is not None
        deadlines.add(message.receipt.deadline_ms)
    assert len(deadlines) == 4
    assert max(deadlines) == stage.now + 1_000


def test_a_repeat_leaves_out_topics_that_it_does_not_request() -> None:
    # S1: a repeated attempt must not deliver messages of topics that the token does not grant
    stage = Stage({1: 1, 2: 1})
    stage.publish(2, (1, 0))
    stage.publish(2, (2, 0))
    first = stage.take(attempt_id="x")
    assert {message.queue for message in first} == {(1, 0), (2, 0)}
    assert queues_of(stage.take(attempt_id="x", topics=frozenset({2}))) == [(2, 0)] * 2
    assert queues_of(stage.take(attempt_id="x", may_receive=only_topic_1)) == [(1, 0)] * 2
    nothing = stage.ask(attempt_id="x", topics=frozenset({2}), may_receive=only_topic_1)
    assert (nothing.messages, nothing.available) == ([], 0)
    assert len(stage.take(attempt_id="x")) == 4, "what was left out is still to be had again"


def test_a_repeat_does_not_extend_leases_that_it_leaves_out() -> None:  # S1
    stage = Stage({1: 1, 2: 1}, lease_ms=10_000)
    stage.publish(1, (1, 0))
    stage.publish(1, (2, 0))
    stage.take(attempt_id="x")
    stage.now += 9_000
    assert queues_of(stage.take(attempt_id="x", may_receive=only_topic_1)) == [(1, 0)]
    stage.later(2_000)
    assert stage.ask("b", max_messages=0).available == 1
    assert queues_of(stage.take("b")) == [(2, 0)]


@pytest.mark.parametrize("settled", [False, True])
def test_a_request_gets_and_counts_only_permitted_topics(settled: bool) -> None:
    # S2: a held receive must not deliver messages of topics that were added to the group meanwhile
    stage = Stage({1: 1, 2: 1})
    stage.publish(3, (1, 0))
    stage.publish(3, (2, 0))
    reply = stage.ask(max_messages=1, settled=settled, may_receive=only_topic_1)
    assert (queues_of(reply.messages), reply.available) == ([(1, 0)], 2)
    assert queues_of(stage.take(settled=settled, may_receive=only_topic_1)) == [(1, 0)] * 2
    assert queues_of(stage.take("b")) == [(2, 0)] * 3


def test_a_continued_reply_has_only_permitted_topics() -> None:  # S2
    stage = Stage({1: 1, 2: 1})
    for topic_id in (1, 2):
        stage.publish(8, (topic_id, 0))
        stage.queues.cold_from[topic_id, 0] = 2
    assert {queue for queue, _ in filled(stage, 16, may_receive=only_topic_1)} == {(1, 0)}


def test_a_waiting_request_gets_only_permitted_topics() -> None:  # S2
    stage = Stage()
    for number in range(40):
        park(stage, f"narrow {number}", may_receive=only_topic_1)
    park(stage, "wide")
    assert served(stage) == []
    stage.group.add_topic(2, weight=1)
    stage.add_queue((2, 0))
    stage.publish(1, (2, 0))
    assert served(stage) == [("wide", [0])]
    stage.publish(1, (1, 0))
    assert served(stage) == [("narrow 0", [0])]


def only_topic_1(topic_id: int) -> bool:
    return topic_id == 1


def queues_of(messages: list[SelectedMessage]) -> list[QueueKey]:
    return sorted(message.queue for message in messages)


# -- waking --------------------------------------------------------------------------------------


def test_one_message_wakes_one_member_and_members_take_turns() -> None:  # L25, Q6, L16
    stage = Stage()
    for member in "abc":
        park(stage, member)
    assert served(stage) == []
    turns = []
    messages: list[SelectedMessage] = []
    for number in range(8):
        if number < 4:
            stage.publish()
        else:
            verb = Verb.RELEASE if number < 6 else Verb.NACK
            settle(stage, verb, messages[-1:], delay_ms=0)
        ((waiter, reply),) = serve(stage.group, stage.now)
        assert isinstance(reply, Reply)
        messages += reply.messages
        turns.append(waiter.ticket)
        park(stage, str(waiter.ticket))
    assert turns == [*"abcabcab"]
    assert [message.attempt for message in messages] == [1, 1, 1, 1, 2, 3, 4, 5]


@pytest.mark.parametrize("cause", ["arrival", "return", "delay", "lease", "leave", "room", "pause"])
def test_every_event_that_makes_a_message_available_wakes(cause: str) -> None:  # I13, F10, Q8, Q15
    stage = Stage(lease_ms=5_000, max_in_flight=2)
    stage.publish(2)
    messages = stage.take("a")
    if cause == "pause":
        settle(stage, Verb.ACK, messages)
        stage.group.pause(1, True)
        stage.publish()
    elif cause == "room":
        stage.publish()
    park(stage, "b", 1, 90_000)
    assert served(stage) == []
    if cause == "arrival":
        settle(stage, Verb.ACK, messages)
        stage.publish()
    elif cause == "return":
        settle(stage, Verb.RELEASE, messages)
    elif cause == "delay":
        settle(stage, Verb.NACK, messages, delay_ms=700)
        assert served(stage) == []
        assert stage.group.next_deadline() == stage.now + 700
        stage.later(700)
    elif cause == "lease":
        assert stage.group.next_deadline() == stage.now + 5_000
        stage.later(5_000)
    elif cause == "leave":
        stage.group.leave("a", stage.now)
    elif cause == "room":
        settle(stage, Verb.ACK, messages[:1])
    else:
        stage.group.pause(1, False)
    assert [member for member, _ in served(stage)] == ["b"]


def test_a_key_that_becomes_free_wakes() -> None:  # I13
    stage = Stage(mode="keyed")
    publish_keys(stage, 1, 1)
    messages = stage.take("a", 1)
    park(stage, "b")
    assert served(stage) == []
    settle(stage, Verb.ACK, messages)
    assert served(stage) == [("b", [1])]


def test_a_waiting_request_without_messages_ends_at_its_deadline() -> None:  # F11
    stage = Stage()
    park(stage, "a", wait_ms=5_000)
    assert stage.group.next_deadline() == stage.now + 5_000
    assert stage.group.tick(stage.now + 4_999) == []
    (waiter,) = stage.group.tick(stage.now + 5_000)
    assert waiter.ticket == "a"
    assert not stage.group.waiters.remove(waiter)


def test_a_source_that_needs_a_read_is_asked_again() -> None:
    stage = Stage()
    stage.publish(2)
    stage.queues.is_cold = True
    reply = stage.ask()
    assert (reply.messages, reply.needs) == ([], ((1, 0), 0))
    park(stage, "a")
    ((_, reply_),) = serve(stage.group, stage.now)
    assert isinstance(reply_, Reply)
    assert reply_.needs == ((1, 0), 0)
    stage.queues.is_cold = False
    stage.group.mark_dirty(1)
    assert served(stage) == [("a", [0, 1])]


def test_a_request_behind_a_cold_topic_is_served() -> None:  # I13
    stage = Stage({1: 1, 2: 1})
    park(stage, "a", topics=frozenset({1}))
    park(stage, "b", topics=frozenset({2}))
    assert served(stage) == []
    stage.publish(1, (1, 0))
    stage.publish(1, (2, 0))
    stage.queues.is_cold = True
    assert served(stage) == [("a", [])]
    stage.queues.is_cold = False
    stage.group.mark_dirty(1)
    assert served(stage) == [("a", [0]), ("b", [0])]


def filled(stage: Stage, max_messages: int = 100, **fields: object) -> list[tuple[QueueKey, int]]:
    """Receive, and read three messages at a time from disk until the reply needs no more."""
    request = ReceiveRequest("a", max_messages, **fields)  # type: ignore[arg-type]
    reply = receive(stage.group, request, stage.now)
    while reply.needs is not None and len(reply.messages) < max_messages:
        queue, offset = reply.needs
        stage.queues.cold_from[queue] = offset + 3
        continue_reply(stage.group, reply, request, stage.now)
    return [(message.queue, message.offset) for message in reply.messages]


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@pytest.mark.parametrize("cost", ["count", "bytes"])
def test_a_cold_source_changes_neither_order_nor_shares(engine: str, cost: str) -> None:  # F15
    weights = {n: 4 * n for n in range(1, 11)}
    warm, cold = (Stage(weights, engine=engine, cost=cost, max_in_flight=10_000) for _ in "wc")
    for stage in (warm, cold):
        for n in weights:
            stage.publish(60, (n, 0), size_bytes=50 + 30 * (n % 4))
    cold.queues.cold_from = {(n, 0): 0 for n in weights}
    for max_messages in (1, 7, 200, 32, 500):
        assert filled(cold, max_messages) == filled(warm, max_messages)


def test_a_continued_reply_keeps_its_limits() -> None:
    stage = Stage(max_in_flight=20)
    stage.publish(50)
    stage.queues.cold_from[1, 0] = 0
    assert len(filled(stage, 7)) == 7
    assert len(filled(stage, max_bytes=500)) == 5
    assert len(filled(stage)) == 8, "as many as may be in flight"


@pytest.mark.parametrize("how", ["leave", "seek", "expire", "remove", "ack", "retire"])
def test_nothing_is_added_to_a_reply_whose_member_lost_a_lease_or_retired(how: str) -> None:
    stage = Stage(mode="single_active" if how == "retire" else "competing")
    stage.publish(10)
    stage.queues.cold_from[1, 0] = 3
    request = ReceiveRequest("a", 10)
    reply = receive(stage.group, request, stage.now)
    assert reply.needs == ((1, 0), 3)
    if how == "leave":
        stage.group.leave("a", stage.now)
    elif how == "seek":
        stage.group.seek((1, 0), 0)
    elif how == "expire":
        stage.later(60_000)
    elif how == "remove":
        stage.group.remove_topic(1)
    elif how == "retire":
        stage.group.retire("a")
    else:
        assert settle(stage, Verb.ACK, reply.messages[:1]) == [DONE]
    stage.queues.cold_from.clear()
    continue_reply(stage.group, reply, request, stage.now)
    assert [message.offset for message in reply.messages] == [0, 1, 2]
    assert reply.needs is None


# -- fairness ------------------------------------------------------------------------------------


@pytest.mark.parametrize("engine", FAIR_ENGINES)
@pytest.mark.parametrize(
    ("verb", "most", "reports"),
    [
        (Verb.ACK, 1, False),
        (Verb.ACK, 10, True),
        (Verb.NACK, 10, True),
        (Verb.REJECT, 10, True),
        (Verb.ACK, 10, False),
    ],
)
def test_time_is_shared_equally_if_it_is_the_cost(
    engine: str, verb: Verb, most: int, reports: bool
) -> None:  # F7, P8
    """Of members that receive several messages at once only the reported time is right."""
    stage = Stage({1: 1, 2: 1}, engine=engine, cost="time", lease_ms=30_000, backoff_ms=(600_000,))
    handling_ms, worked = {1: 100, 2: 1}, {1: 0, 2: 0}
    for topic_id in (1, 2):
        stage.publish(16_000, (topic_id, 0))
    workers: list[tuple[int, int, list[SelectedMessage]]] = [(stage.now, n, []) for n in range(10)]
    end = stage.now + 2_000
    while stage.now < end:
        stage.now, worker, messages = heapq.heappop(workers)
        for topic_id, used_ms in handling_ms.items():
            done = [message for message in messages if message.queue[0] == topic_id]
            settle(stage, verb, done, **({"used_ms": used_ms} if reports else {}))
        messages = stage.take(f"w{worker}", most)
        for message in messages:
            worked[message.queue[0]] += handling_ms[message.queue[0]]
        takes_ms = sum(handling_ms[message.queue[0]] for message in messages)
        heapq.heappush(workers, (stage.now + takes_ms, worker, messages))
    share = worked[1] / sum(worked.values())
    if most == 1 or reports:
        assert share == pytest.approx(0.5, abs=0.03)
    else:
        assert share > 0.6


def test_reported_time_is_limited_to_the_time_since_the_delivery() -> None:
    stage = Stage({1: 1, 2: 1}, cost="time")
    for topic_id in (1, 2):
        stage.publish(100, (topic_id, 0))
    messages = stage.take(max_messages=2, lease_ms=7_200_000)
    stage.now += 3_600_000
    for message in messages:
        hours = {1: 10, 2: 1}[message.queue[0]]
        settle(stage, Verb.ACK, [message], used_ms=hours * 3_600_000.0)
    topics = [message.queue[0] for message in stage.take(max_messages=20)]
    assert topics.count(1) == pytest.approx(10, abs=1)


def test_receipts_of_other_groups_are_invalid() -> None:
    stage = Stage()
    stage.publish()
    other = Receipt(9, 1, 0, 0, 1, 1, 1, 1, "a")
    unknown = Receipt(1, 5, 0, 0, 1, 1, 1, 1, "a")
    assert settling.settle(stage.group, Verb.ACK, [None, other, unknown], stage.now) == [
        INVALID, INVALID, STALE,
    ]  # fmt: skip


def test_a_request_that_has_just_looked_waits_without_another_look(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    stage = Stage()
    serve(stage.group, stage.now)
    for member in "ab":
        request = ReceiveRequest(member, 1)
        assert not receive(stage.group, request, stage.now).is_answer
        stage.group.park(request, member, stage.now, stage.now + 1_000, has_looked=True)
    looks: list[ReceiveRequest] = []

    def count(group: Group, request: ReceiveRequest, now_ms: int) -> Reply:
        looks.append(request)
        return receive(group, request, now_ms)

    monkeypatch.setattr(receiving, "receive", count)
    assert serve(stage.group, stage.now) == []
    assert looks == []
    stage.publish()
    assert [waiter.ticket for waiter, _ in serve(stage.group, stage.now)] == ["a"]


# -- limits of queues and keys -------------------------------------------------------------------


def test_a_limited_queue_gives_few_messages_and_the_others_all() -> None:
    # C1: a member that is slow with one queue can ask for messages of the other queues only
    stage = Stage(queues=3)
    for queue in range(3):
        stage.publish(4, (1, queue))
    limits = Limits(queues={(1, 0): 0, (1, 1): 2})
    messages = stage.take("a", 100, limits=limits)
    assert sorted(message.queue[1] for message in messages) == [1, 1, 2, 2, 2, 2]
    assert [message.offset for message in messages if message.queue[1] == 1] == [0, 1]
    assert stage.take("a", 100, limits=Limits(queues={(1, 0): 0, (1, 1): 0})) == []
    rest = [(message.queue[1], message.offset) for message in stage.take("a", 100)]
    assert sorted(rest) == [(0, 0), (0, 1), (0, 2), (0, 3), (1, 2), (1, 3)]


@pytest.mark.parametrize("cost", ["count", "bytes"])
@pytest.mark.parametrize("limit", [0, 1, 3])
def test_a_limit_changes_neither_order_nor_the_rest(cost: str, limit: int) -> None:  # C1
    stage = Stage(queues=5, cost=cost)
    for queue in range(5):
        stage.publish(20, (1, queue))
    seen: dict[int, list[int]] = {queue: [] for queue in range(5)}
    limits = Limits(queues={(1, 2): limit})
    for round_ in range(100):
        messages = stage.take("a", 7, limits=limits if round_ < 40 else None)
        assert round_ >= 40 or sum(message.queue[1] == 2 for message in messages) <= limit
        for message in messages:
            seen[message.queue[1]].append(message.offset)
    assert seen == {queue: list(range(20)) for queue in range(5)}


def test_a_limited_key_gives_few_messages_in_order() -> None:  # C1
    stage = Stage(mode="keyed")
    publish_keys(stage, *(4 * [7, 8, 9]))
    limits = Limits(keys={(1, 7): 0, (1, 8): 1})
    assert stage.offsets("a", 100, limits=limits) == [1, 2, 5, 8, 11]
    assert stage.offsets("a", 100, limits=limits) == [4]
    assert stage.offsets("b", 100, limits=limits) == []
    assert stage.offsets("a", 100) == [0, 3, 6, 7, 9, 10]


def test_a_limited_key_of_its_owner_is_offered_again_without_the_limit() -> None:  # C1
    stage = Stage(mode="keyed")
    publish_keys(stage, *(6 * [7]))
    first = stage.take("a", 3)
    settle(stage, Verb.RELEASE, [first[2]])
    settle(stage, Verb.RELEASE, [first[1]])
    publish_keys(stage, 8)
    assert stage.offsets("a", 100, limits=Limits(keys={(1, 7): 0})) == [6]
    assert stage.offsets("b") == []
    assert stage.offsets("a") == [1, 2, 3, 4, 5]


def test_a_waiting_request_with_limits_is_skipped_by_excluded_messages() -> None:  # C1
    stage = Stage(queues=2)
    for member, limits in {"a": Limits(queues={(1, 0): 0}), "b": None}.items():
        assert stage.take(member, limits=limits) == []
        park(stage, member, limits=limits)
    stage.publish(1, (1, 0))
    assert served(stage) == [("b", [0])]
    stage.publish(1, (1, 1))
    assert served(stage) == [("a", [0])]
