"""Each rule of the group checker must reject its fault, and accept all that a correct broker can
do."""

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tests.support.histories.group_history import (
    NEVER,
    Delivery,
    GroupHistory,
    Seek,
    SettleCall,
    check_group,
    check_letters,
)
from tests.support.histories.history import HistoryViolation, Record

TOPIC = [Record(0, offset, f"k{offset % 2}", b"%d" % offset) for offset in range(4)]


def deliver(offset: int, at: float, *, member: str = "m", lease_s: float = 10.0) -> Delivery:
    """Return a delivery by a call from `at` to `at + 0.5`; its receipt is made of offset and
    time."""
    return Delivery(member, TOPIC[offset], 1, False, f"{offset}@{at}", at, at + 0.5, lease_s)


def call(verb: str, message: Delivery, at: float, status: str = "done") -> SettleCall:
    """Return a settlement, answered at `at + 0.5`. Without a status it was never answered."""
    answered_at = at + 0.5 if status else NEVER
    return SettleCall(verb, message.place, message.receipt, at, answered_at, status)


def check(
    deliveries: Sequence[Delivery],
    calls: Sequence[SettleCall],
    *,
    keyed: bool = False,
    drained: bool = False,
    topic: Sequence[Record] = TOPIC,
    seeks: Sequence[Seek] = (),
) -> None:
    history = GroupHistory(seeks=list(seeks))
    history.record_deliveries(deliveries)
    history.record_settle_calls(calls)
    check_group(history, topic, keyed=keyed, drained=drained)


def refuses(
    rule: str, *events: Sequence[Delivery] | Sequence[SettleCall], keyed: bool = False
) -> None:
    with pytest.raises(HistoryViolation) as caught:
        check(*events, keyed=keyed)  # type: ignore[arg-type]
    assert caught.value.rule == rule


def test_a_group_that_settles_each_message_once_is_right() -> None:
    deliveries = [deliver(offset, offset) for offset in range(4)]
    check(deliveries, [call("ack", each, 5) for each in deliveries], keyed=True, drained=True)


def test_a_message_without_settlement_is_lost() -> None:
    deliveries = [deliver(offset, offset) for offset in range(4)]
    with pytest.raises(HistoryViolation, match="lost"):
        check(deliveries, [call("ack", each, 5) for each in deliveries[1:]], drained=True)
    unanswered = call("ack", deliveries[0], 5, "")
    check(deliveries, [unanswered, *(call("ack", d, 5) for d in deliveries[1:])], drained=True)


def test_a_message_that_is_not_stored_is_unknown() -> None:
    with pytest.raises(HistoryViolation, match="unknown"):
        check([deliver(1, 0)], [], topic=[TOPIC[0], Record(0, 1, "k1", b"other")])


def test_a_redelivery_during_a_lease_is_too_early() -> None:
    first = deliver(0, 0)
    refuses("too-early", [first, deliver(0, 9)], [])
    check([first, deliver(0, 9.6)], [])  # its answer came at 10.1
    check([first, deliver(0, 3)], [call("nack", first, 2)])
    check([first, deliver(0, 3)], [call("leave", first, 2, "")])
    refuses("too-early", [first, deliver(0, 3)], [call("nack", first, 4)])
    refuses("too-early", [first, deliver(0, 3)], [call("release", first, 2, "stale")])
    refuses("too-early", [first, deliver(0, 3)], [call("extend", first, 2)])


def test_two_answers_that_crossed_are_right() -> None:
    # The delivery with the short lease may have been granted first, although its answer came last.
    late = Delivery("n", TOPIC[0], 1, False, "late", 0.0, 9.0, 1.0)
    check([deliver(0, 5), late], [])


def test_a_settled_message_must_not_be_redelivered() -> None:
    first = deliver(0, 0, lease_s=1)
    refuses("risen", [first, deliver(0, 5)], [call("ack", first, 2)])
    refuses("risen", [first, deliver(0, 5)], [call("reject", first, 2)])
    check([first, deliver(0, 2.2)], [call("ack", first, 2)])  # asked for before it was confirmed
    check([first, deliver(0, 5)], [call("ack", first, 2, "stale")])
    check([first, deliver(0, 5)], [call("ack", first, 2, "")])


def test_a_redelivery_after_settlement_is_reported_before_other_faults() -> None:
    settled, unanswered = deliver(0, 0), deliver(1, 0)
    risen = [settled, deliver(0, 3), deliver(0, 4)]
    acked = [call("ack", settled, 1)]
    refuses("risen", risen, acked)
    lost = call("ack", unanswered, 1, "")
    refuses("risen", [unanswered, deliver(1, 3), *risen], [lost, *acked])
    refuses("too-early", [unanswered, deliver(1, 3)], [lost])


def test_a_key_keeps_its_order() -> None:
    refuses("overtaken", [deliver(2, 0), deliver(0, 3)], [], keyed=True)
    refuses("overtaken", [deliver(2, 0)], [], keyed=True)
    check([deliver(1, 0), deliver(0, 3)], [], keyed=True)  # another key
    check([deliver(2, 0), deliver(0, 3)], [])
    first, second = deliver(0, 0), deliver(2, 1)
    refuses(
        "overtaken", [first, second], [call("ack", second, 3), call("ack", first, 5)], keyed=True
    )
    check([first, second], [call("ack", second, 3), call("ack", first, 3.1)], keyed=True)


def test_a_key_has_one_owner() -> None:
    first = deliver(0, 0)
    refuses("divided", [first, deliver(2, 3, member="n")], [], keyed=True)
    check([first, deliver(2, 3)], [], keyed=True)
    check([first, deliver(2, 3, member="n")], [call("ack", first, 2)], keyed=True)
    check([first, deliver(2, 10.2, member="n")], [], keyed=True)


def test_later_messages_of_a_key_return_with_an_earlier_one() -> None:
    first, second = deliver(0, 0), deliver(2, 1)
    again = [deliver(0, 4, member="n"), deliver(2, 5, member="n")]
    check([first, second, *again], [call("nack", first, 3)], keyed=True)
    refuses("too-early", [first, second, *again], [call("nack", first, 3)])
    settled = [call("ack", first, 3)]
    refuses("too-early", [first, second, again[1]], settled, keyed=True)


# -- seeks and dead letters ----------------------------------------------------------------


def test_messages_after_a_seek_may_and_must_be_redelivered() -> None:
    first, again = deliver(0, 0), deliver(0, 4)
    both = [call("ack", first, 1), call("ack", again, 5)]
    back = Seek(0, 0, 3, 3.5)
    check([first, again], both, seeks=[back], drained=True, topic=TOPIC[:1])
    with pytest.raises(HistoryViolation, match="lost"):
        check([first], both[:1], seeks=[back], drained=True, topic=TOPIC[:1])


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
    first, again = deliver(0, 0, lease_s=1), deliver(0, 4)
    with pytest.raises(HistoryViolation, match="risen"):
        check([first, again], [call("ack", first, 1)], seeks=[seek])


def test_a_seek_ends_the_leases_of_its_queue_only() -> None:
    first, again = deliver(1, 0, lease_s=100), deliver(1, 4)
    check([first, again], [], seeks=[Seek(0, 0, 3, 3.5)])
    check([first, again], [], seeks=[Seek(0, 3, 3)])  # the seek got no answer
    with pytest.raises(HistoryViolation, match="too-early"):
        check([first, again], [], seeks=[Seek(1, 0, 3, 3.5)])


def test_a_receive_that_waited_may_be_answered_after_a_seek() -> None:
    first = deliver(0, 1)
    waited = replace(deliver(0, 0.5, member="n"), answered_at=4.0)
    check([first, waited], [], seeks=[Seek(0, 0, 2, 2.5)])
    with pytest.raises(HistoryViolation, match="too-early"):
        check([first, waited], [], seeks=[Seek(0, 0, 4.5, 5)])


def test_a_rejected_message_has_one_dead_letter() -> None:
    history = GroupHistory()
    deliveries = [deliver(offset, 0) for offset in range(3)]
    history.record_settle_calls([call("reject", deliveries[0], 1), call("ack", deliveries[1], 1)])
    history.record_settle_calls([call("reject", deliveries[2], 1, "")])
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
    history.record_settle_calls(
        [call("reject", deliver(0, 0), 1), call("reject", deliver(0, 4), 5)]
    )
    check_letters(history, [(0, 0)])
    if is_explained:
        check_letters(history, [(0, 0), (0, 0)])
    else:
        with pytest.raises(HistoryViolation, match="letters"):
            check_letters(history, [(0, 0), (0, 0)])
    with pytest.raises(HistoryViolation, match="letters"):
        check_letters(history, [(0, 0)] * 3)
