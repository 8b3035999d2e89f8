"""Each rule of the group checker must reject its fault, and accept all that a correct broker can
do."""

from collections.abc import Sequence

import pytest

from tests.support.group_history import (
    Delivery,
    GroupHistory,
    Seek,
    SettleCall,
    check_group,
    check_letters,
)
from tests.support.history import HistoryViolation, Record

TOPIC = [Record(0, offset, f"k{offset % 2}", b"%d" % offset) for offset in range(4)]


def got(offset: int, at: float, *, member: str = "m", lease_s: float = 10.0) -> Delivery:
    """Return a delivery by a call from `at` to `at + 0.5`; its receipt is made of offset and
    time."""
    return Delivery(member, TOPIC[offset], 1, False, f"{offset}@{at}", at, at + 0.5, lease_s)


def say(
    verb: str,
    delivery: Delivery,
    at: float,
    status: str = "done",
    *,
    answered_at: float | None = None,
) -> SettleCall:
    answered_at = at + 0.5 if answered_at is None else answered_at
    return SettleCall(verb, delivery.place, delivery.receipt, at, answered_at, status)


def judge(
    deliveries: Sequence[Delivery],
    said: Sequence[SettleCall],
    *,
    keyed: bool = False,
    drained: bool = False,
    topic: Sequence[Record] = TOPIC,
    seeks: Sequence[Seek] = (),
) -> None:
    history = GroupHistory(seeks=list(seeks))
    history.record_deliveries(deliveries)
    history.record_settle_calls(said)
    check_group(history, topic, keyed=keyed, drained=drained)


def refused(
    rule: str, *story: Sequence[Delivery] | Sequence[SettleCall], keyed: bool = False
) -> None:
    with pytest.raises(HistoryViolation) as caught:
        judge(*story, keyed=keyed)  # type: ignore[arg-type]
    assert caught.value.rule == rule


def test_a_group_that_settles_each_message_once_is_right() -> None:
    deliveries = [got(offset, offset) for offset in range(4)]
    judge(deliveries, [say("ack", each, 5) for each in deliveries], keyed=True, drained=True)


def test_a_message_without_settlement_is_lost() -> None:
    deliveries = [got(offset, offset) for offset in range(4)]
    with pytest.raises(HistoryViolation, match="lost"):
        judge(deliveries, [say("ack", each, 5) for each in deliveries[1:]], drained=True)
    unanswered = say("ack", deliveries[0], 5, "", answered_at=float("inf"))
    judge(deliveries, [unanswered, *(say("ack", d, 5) for d in deliveries[1:])], drained=True)


def test_a_message_that_is_not_stored_is_unknown() -> None:
    with pytest.raises(HistoryViolation, match="unknown"):
        judge([got(1, 0)], [], topic=[TOPIC[0], Record(0, 1, "k1", b"other")])


def test_a_redelivery_during_a_lease_is_too_early() -> None:
    first = got(0, 0)
    refused("too-early", [first, got(0, 9)], [])
    judge([first, got(0, 9.6)], [])  # its answer came at 10.1
    judge([first, got(0, 3)], [say("nack", first, 2)])
    judge([first, got(0, 3)], [say("leave", first, 2, "", answered_at=float("inf"))])
    refused("too-early", [first, got(0, 3)], [say("nack", first, 4)])
    refused("too-early", [first, got(0, 3)], [say("release", first, 2, "stale")])
    refused("too-early", [first, got(0, 3)], [say("extend", first, 2)])


def test_two_answers_that_crossed_are_right() -> None:
    # The delivery with the short lease may have been granted first, although its answer came last.
    late = Delivery("n", TOPIC[0], 1, False, "late", 0.0, 9.0, 1.0)
    judge([got(0, 5), late], [])


def test_a_settled_message_must_not_be_redelivered() -> None:
    first = got(0, 0, lease_s=1)
    refused("risen", [first, got(0, 5)], [say("ack", first, 2)])
    refused("risen", [first, got(0, 5)], [say("reject", first, 2)])
    judge([first, got(0, 2.2)], [say("ack", first, 2)])  # asked for before it was confirmed
    judge([first, got(0, 5)], [say("ack", first, 2, "stale")])
    judge([first, got(0, 5)], [say("ack", first, 2, "", answered_at=float("inf"))])


def test_a_redelivery_after_settlement_is_reported_before_other_faults() -> None:
    settled, unanswered = got(0, 0), got(1, 0)
    risen = [settled, got(0, 3), got(0, 4)]
    word = [say("ack", settled, 1)]
    refused("risen", risen, word)
    lost = say("ack", unanswered, 1, "", answered_at=float("inf"))
    refused("risen", [unanswered, got(1, 3), *risen], [lost, *word])
    refused("too-early", [unanswered, got(1, 3)], [lost])


def test_a_key_keeps_its_order() -> None:
    refused("overtaken", [got(2, 0), got(0, 3)], [], keyed=True)
    refused("overtaken", [got(2, 0)], [], keyed=True)
    judge([got(1, 0), got(0, 3)], [], keyed=True)  # another key
    judge([got(2, 0), got(0, 3)], [])
    first, second = got(0, 0), got(2, 1)
    refused("overtaken", [first, second], [say("ack", second, 3), say("ack", first, 5)], keyed=True)
    judge([first, second], [say("ack", second, 3), say("ack", first, 3.1)], keyed=True)


def test_a_key_has_one_owner() -> None:
    first = got(0, 0)
    refused("divided", [first, got(2, 3, member="n")], [], keyed=True)
    judge([first, got(2, 3)], [], keyed=True)
    judge([first, got(2, 3, member="n")], [say("ack", first, 2)], keyed=True)
    judge([first, got(2, 10.2, member="n")], [], keyed=True)


def test_later_messages_of_a_key_return_with_an_earlier_one() -> None:
    first, second = got(0, 0), got(2, 1)
    again = [got(0, 4, member="n"), got(2, 5, member="n")]
    judge([first, second, *again], [say("nack", first, 3)], keyed=True)
    refused("too-early", [first, second, *again], [say("nack", first, 3)])
    settled = [say("ack", first, 3)]
    refused("too-early", [first, second, again[1]], settled, keyed=True)


# -- seeks and dead letters ----------------------------------------------------------------


def test_messages_after_a_seek_may_and_must_be_redelivered() -> None:
    first, again = got(0, 0), got(0, 4)
    both = [say("ack", first, 1), say("ack", again, 5)]
    back = Seek(0, 0, 3, 3.5)
    judge([first, again], both, seeks=[back], drained=True, topic=TOPIC[:1])
    with pytest.raises(HistoryViolation, match="lost"):
        judge([first], both[:1], seeks=[back], drained=True, topic=TOPIC[:1])


@pytest.mark.parametrize(
    "seek",
    [
        Seek(0, 0, 6, 6.5),  # later
        Seek(0, 0, 0.2, 0.4),  # earlier
        Seek(0, 1, 3, 3.5),  # not so far back
        Seek(1, 0, 3, 3.5),  # elsewhere
    ],
)
def test_another_seek_permits_no_redelivery(seek: Seek) -> None:
    first, again = got(0, 0, lease_s=1), got(0, 4)
    with pytest.raises(HistoryViolation, match="risen"):
        judge([first, again], [say("ack", first, 1)], seeks=[seek])


def test_a_seek_ends_the_leases_of_its_queue_only() -> None:
    first, again = got(1, 0, lease_s=100), got(1, 4)
    judge([first, again], [], seeks=[Seek(0, 0, 3, 3.5)])
    judge([first, again], [], seeks=[Seek(0, 3, 3)])  # the seek got no answer
    with pytest.raises(HistoryViolation, match="too-early"):
        judge([first, again], [], seeks=[Seek(1, 0, 3, 3.5)])


def test_a_rejected_message_has_one_dead_letter() -> None:
    history = GroupHistory()
    deliveries = [got(offset, 0) for offset in range(3)]
    history.record_settle_calls([say("reject", deliveries[0], 1), say("ack", deliveries[1], 1)])
    history.record_settle_calls([say("reject", deliveries[2], 1, "", answered_at=float("inf"))])
    check_letters(history, [(0, 0)])
    check_letters(history, [(0, 0), (0, 2)])
    for letters in ([], [(0, 0), (0, 0)], [(0, 0), (0, 1)]):
        with pytest.raises(HistoryViolation, match="letters"):
            check_letters(history, letters)


@pytest.mark.parametrize(
    ("seeks", "is_explained"),
    [
        ([], False),
        ([Seek(0, 0, 2, 3)], True),
        ([Seek(0, 0, 2)], True),  # the answer was lost
        ([Seek(0, 1, 2, 3)], False),  # not so far back
        ([Seek(1, 0, 2, 3)], False),  # elsewhere
    ],
)
def test_a_message_rejected_again_after_a_seek_has_two_dead_letters(
    seeks: list[Seek], is_explained: bool
) -> None:
    history = GroupHistory(seeks=seeks)
    history.record_settle_calls([say("reject", got(0, 0), 1), say("reject", got(0, 4), 5)])
    check_letters(history, [(0, 0)])
    if is_explained:
        check_letters(history, [(0, 0), (0, 0)])
    else:
        with pytest.raises(HistoryViolation, match="letters"):
            check_letters(history, [(0, 0), (0, 0)])
    with pytest.raises(HistoryViolation, match="letters"):
        check_letters(history, [(0, 0)] * 3)
