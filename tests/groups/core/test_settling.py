"""The effect of each settlement on a receipt, by the receipt's state; also after a restart."""

import pytest

from holdfast.groups.config import GroupConfig
from holdfast.groups.core import settling
from holdfast.groups.core.group import ENDED_A_TURN
from holdfast.groups.core.requests import SelectedMessage
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.cursor.cursor import NOT_KEPT, State
from holdfast.groups.cursor.rows import decode_settled
from tests.groups.pages import progress_of
from tests.groups.queues import Stage

DONE, STALE = Status.DONE, Status.STALE
KEY = (1, 0)


def settle(
    stage: Stage, verb: Verb, *messages: SelectedMessage, **terms: int | bool
) -> list[Status]:
    receipts = [message.receipt for message in messages]
    return settling.settle(stage.group, verb, receipts, stage.now, **terms)  # type: ignore[arg-type]


def new_stage(count: int = 10, **config: object) -> Stage:
    stage = Stage(**({"backoff_ms": (0,)} | config))  # type: ignore[arg-type]
    stage.publish(count)
    return stage


def test_a_repeated_settlement_is_done_and_changes_nothing() -> None:  # I6
    stage = new_stage(has_dead_letters=True)
    verbs = (Verb.ACK, Verb.NACK, Verb.RELEASE, Verb.REJECT)
    for verb, message in zip(verbs, stage.take(max_messages=4), strict=True):
        assert settle(stage, verb, message) == [DONE]
        before = stage.cursor().failures(message.offset), stage.cursor().available
        assert settle(stage, verb, message) == [DONE]
        assert (stage.cursor().failures(message.offset), stage.cursor().available) == before
        other = Verb.ACK if verb is not Verb.ACK else Verb.NACK
        assert settle(stage, other, message) == [STALE]


def test_a_late_ack_counts_while_no_member_has_the_message() -> None:
    stage = new_stage(2)
    one, other = stage.take()
    stage.later(30_000)
    assert settle(stage, Verb.NACK, one) == settle(stage, Verb.EXTEND, one) == [STALE]
    assert settle(stage, Verb.ACK, one) == [DONE]
    assert stage.offsets("b") == [1]
    assert settle(stage, Verb.ACK, other) == [STALE]


def test_a_strict_group_accepts_no_late_ack() -> None:
    stage = new_stage(1, strict_leases=True)
    (message,) = stage.take()
    stage.now += 30_000  # the group has not processed it yet
    assert settle(stage, Verb.ACK, message) == [STALE]
    assert stage.offsets("b") == [0]


def test_a_cumulative_ack_settles_the_members_own_messages() -> None:  # T25
    stage = new_stage()
    mine = stage.take("a", 3)
    stage.take("b", 3)
    mine += stage.take("a", 4)
    assert settle(stage, Verb.ACK, mine[4], cumulative=True) == [DONE]
    left = [each.head.offset for each in stage.cursor().leases]
    assert sorted(left) == [3, 4, 5, 8, 9]
    assert settle(stage, Verb.ACK, mine[4], cumulative=True) == [DONE]
    assert len(stage.cursor().leases) == 5


def test_extending_moves_the_deadline() -> None:
    stage = new_stage(1)
    (message,) = stage.take()
    stage.later(20_000)
    assert settle(stage, Verb.EXTEND, message, lease_ms=20_000) == [DONE]
    stage.later(19_999)
    assert stage.offsets("b") == []
    stage.later(1)
    assert stage.offsets("b") == [0]


def test_only_failures_count_and_the_last_one_makes_a_dead_letter() -> None:  # I9
    stage = new_stage(1, max_attempts=3, has_dead_letters=True)
    for _ in range(5):
        settle(stage, Verb.RELEASE, *stage.take())
    stage.take()
    stage.later(30_000)
    for _ in range(3):
        assert stage.group.outbox.take_dead_letters() == []
        settle(stage, Verb.NACK, *stage.take())
    (letter,) = stage.group.outbox.take_dead_letters()
    lease = stage.cursor().attempts[0].last_lease
    letter_id = "0000000100000001" + "0" * 24 + f"{lease:016X}"
    assert (letter.letter_id, letter.failures) == (letter_id, 3)
    assert stage.cursor().state(0) is State.DYING
    assert stage.group.outbox.take_dead_letters() == []
    assert stage.group.record_dead_letter(KEY, 0, 77)
    assert not stage.group.record_dead_letter(KEY, 0, 77)
    assert (stage.cursor().floor, stage.cursor().dead_count) == (1, 1)
    stage.commit()
    (row,) = stage.disk.tables["dead"].values()
    assert decode_settled(row) == (77, stage.cursor().settled[0].lease, 2)  # 2: nacked


def test_a_rejected_message_is_dropped_without_dead_letters() -> None:
    stage = new_stage(1)
    settle(stage, Verb.REJECT, *stage.take())
    assert stage.group.outbox.take_dead_letters() == []
    assert stage.cursor().changes.settled == {0}
    assert stage.cursor().settled[0].position == NOT_KEPT
    assert stage.cursor().floor == 1


def test_failures_are_delayed_longer_each_time() -> None:
    stage = new_stage(1, backoff_ms=(100, 5_000))
    for wait in (100, 5_000, 5_000):
        settle(stage, Verb.NACK, *stage.take())
        assert stage.group.next_deadline() == stage.now + wait
        stage.later(wait - 1)
        assert stage.offsets() == []
        stage.later(1)
    settle(stage, Verb.NACK, *stage.take(), delay_ms=0)
    assert stage.offsets() == [0]


def test_a_crash_before_the_mark_repeats_the_dead_letter_with_its_id() -> None:
    stage = new_stage(1, has_dead_letters=True)
    stage.commit()
    settle(stage, Verb.REJECT, *stage.take())
    stage.commit()
    (letter,) = stage.group.outbox.take_dead_letters()
    stage.restart()
    (again,) = stage.group.outbox.take_dead_letters()
    assert again == letter
    assert stage.offsets() == []


# -- over a restart ------------------------------------------------------------------------------


def test_receipts_from_before_a_restart_settle() -> None:  # I7, the grace of leases
    stage = new_stage(5_000)
    messages = stage.take("a", 500)
    settle(stage, Verb.ACK, *messages[:100])
    stage.commit()
    stage.restart(page=progress_of(stage.cursor()))
    assert stage.offsets("b", 3) == [500, 501, 502]
    assert settle(stage, Verb.ACK, *messages) == [DONE] * 500
    assert stage.cursor().floor == 500
    stage.later(30_000)
    assert stage.offsets("c", 4) == [500, 501, 502, 503]


def test_unsettled_messages_are_redelivered_after_the_last_lease() -> None:
    stage = new_stage(20)
    messages = stage.take("a", 10, lease_ms=8_000)
    stage.commit()
    stage.restart(page=progress_of(stage.cursor()))
    assert settle(stage, Verb.RELEASE, messages[4]) == [DONE]
    assert settle(stage, Verb.EXTEND, messages[5], lease_ms=90_000) == [DONE]
    assert stage.offsets("b", 2) == [4, 10]
    stage.later(8_000)
    again = stage.take("b", 9)
    assert [message.offset for message in again] == [0, 1, 2, 3, 6, 7, 8, 9, 11]
    assert all(message.redelivered for message in again[:-1])
    assert not again[-1].redelivered
    assert settle(stage, Verb.ACK, messages[0]) == [STALE]
    assert settle(stage, Verb.ACK, messages[5]) == [DONE]


@pytest.mark.parametrize("whose", ["other", "own"])
def test_a_late_ack_does_not_overtake_its_key(whose: str) -> None:  # I11
    stage = Stage(mode="keyed")
    stage.publish(3, key=7)
    messages = stage.take("own")
    stage.commit()
    stage.restart()  # after a power loss, which loses leases
    stage.later(30_000)
    (again,) = stage.take(whose, 1)
    assert again.offset == 0
    # The first message is leased again: later ones of its key may not be settled before it.
    assert settle(stage, Verb.ACK, *messages[1:]) == [STALE, STALE]
    assert settle(stage, Verb.ACK, again) == [DONE]
    assert settle(stage, Verb.ACK, *messages[1:]) == [DONE, DONE]


def test_without_the_page_the_whole_reserve_is_in_grace() -> None:
    stage = new_stage(3_000)
    stage.take("a", 10)
    stage.commit()
    stage.restart()
    assert stage.offsets("b", 1) == [10 + 1024]
    stage.later(30_000)
    assert stage.offsets("b", 2) == [0, 1]


def test_a_delivery_beyond_the_reserve_waits_for_a_commit() -> None:
    stage = new_stage(3_000)
    assert stage.ask(max_messages=1).commit_first
    assert stage.ask(max_messages=1).commit_first
    stage.commit()
    assert not stage.ask(max_messages=900).commit_first
    settle(stage, Verb.ACK, *[])
    stage.configure(GroupConfig(max_in_flight=9_999, max_in_flight_per_member=9_999))
    assert stage.ask(max_messages=900).commit_first


def test_a_commit_of_settlements_renews_the_reserve() -> None:
    stage = new_stage(3_000)
    settle(stage, Verb.ACK, *stage.take(max_messages=900))
    stage.commit()
    settle(stage, Verb.ACK, *stage.take(max_messages=900))
    stage.commit()
    assert not stage.ask(max_messages=900).commit_first


def test_the_reserve_is_four_times_what_was_delivered_since_the_last_commit() -> None:
    stage = new_stage(9_000, max_in_flight=9_999, max_in_flight_per_member=9_999)
    stage.take(max_messages=900)
    stage.commit()
    assert not stage.ask(max_messages=3 * 900).commit_first
    assert stage.ask(max_messages=900).commit_first


def test_after_a_seek_the_reserve_is_small_again() -> None:
    stage = new_stage(9_000, max_in_flight=9_999, max_in_flight_per_member=9_999)
    stage.take(max_messages=900)
    stage.commit()
    stage.group.seek((1, 0), 0)
    stage.take("a", 1)
    stage.commit()
    stage.restart()
    assert stage.offsets("b", 1) == [1 + 1024]


def test_a_redelivery_waits_for_a_commit() -> None:
    stage = new_stage(3)
    messages = stage.take(max_messages=1)
    stage.commit()
    assert not stage.ask(max_messages=1).commit_first
    settle(stage, Verb.RELEASE, *messages)
    assert stage.ask(max_messages=1).commit_first


def test_the_first_delivery_of_the_next_active_member_waits_for_a_commit() -> None:
    stage = new_stage(5, mode="single_active")
    settle(stage, Verb.ACK, *stage.take("a", 1))
    stage.commit()
    assert not stage.ask("a", 1).commit_first
    settle(stage, Verb.ACK, *stage.take("a", 1))
    stage.group.leave("a", stage.now)
    reply = stage.ask("b", 1)
    assert [message.redelivered for message in reply.messages] == [True]
    assert stage.ask("b", 1).commit_first
    stage.commit()
    assert not stage.ask("b", 1).commit_first


def test_a_log_that_lost_its_end_voids_settlements_there() -> None:  # I14
    stage = new_stage(30)
    messages = stage.take()
    settle(stage, Verb.ACK, *messages[10:])
    stage.commit()
    stage.restart(end=20)
    stage.commit()
    assert stage.cursor().epoch == 2
    assert settle(stage, Verb.ACK, messages[5]) == [STALE]
    stage.group.note_end(KEY, 30)
    stage.restart()
    stage.later(30_000)
    assert stage.offsets() == [*range(10), *range(20, 30)]


def test_the_floor_follows_the_start_of_the_log() -> None:
    stage = new_stage(30)
    messages = stage.take(max_messages=10)
    settle(stage, Verb.ACK, *messages[2:4])
    settle(stage, Verb.NACK, messages[5], delay_ms=9_000)
    stage.group.note_log_start(KEY, 8, stage.now)
    assert (stage.cursor().floor, stage.cursor().lost_count) == (8, 6)
    assert stage.group.lease_count == 2
    assert stage.group.available() == 20
    stage.later(30_000)
    assert stage.offsets() == list(range(8, 30))


def test_a_seek_makes_every_receipt_stale() -> None:
    stage = new_stage(3_000)
    messages = stage.take(max_messages=900)
    settle(stage, Verb.ACK, *messages[::2])
    stage.commit()
    stage.group.seek(KEY, 5)
    assert settle(stage, Verb.ACK, *messages[1:3]) == [STALE] * 2
    assert stage.group.lease_count == 0
    assert stage.offsets(max_messages=2) == [5, 6]
    stage.commit()
    assert stage.disk.tables["ack"] == {}
    stage.restart()
    stage.later(30_000)
    assert stage.offsets(max_messages=2) == [5, 6]


def test_an_expired_lease_settles_nothing_even_if_others_are_due() -> None:
    stage = new_stage(2 * ENDED_A_TURN, strict_leases=True)
    messages = stage.take(max_messages=2 * ENDED_A_TURN)
    stage.now += 3_600_000
    assert settle(stage, Verb.ACK, *messages[-2:]) == [STALE, STALE]
    assert len(stage.cursor().leases) == ENDED_A_TURN - 2
    assert stage.group.expired_leases == ENDED_A_TURN + 2
    deadline_ms = stage.group.next_deadline()
    assert deadline_ms is not None and deadline_ms <= stage.now
    stage.group.tick(stage.now)
    assert not len(stage.cursor().leases)
