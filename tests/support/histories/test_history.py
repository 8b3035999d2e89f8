"""The checker must reject every wrong history. Otherwise no fault test is meaningful."""

from collections.abc import Callable

import pytest

from tests.support.histories.history import (
    History,
    HistoryViolation,
    Record,
    Send,
    check_history,
    check_marks,
    check_read,
    settle_power_loss,
)


def _history() -> tuple[History, list[Record]]:
    """Return a history of two producers, two queues, ten acknowledged sends and one unanswered
    send."""
    history, final = History(), list[Record]()
    _publish(history, final, producers=2, durable=True)
    history.record_send(Send("p0", 10, "k0", b"in doubt"))
    history.record_consumed(final[3])
    return history, final


def _publish(history: History, final: list[Record], *, producers: int, durable: bool) -> None:
    for number in range(10):
        producer, queue = number % producers, number % 2
        send = Send(f"p{producer}", number, f"k{producer}", b"body %d" % number)
        history.record_send(send)
        history.record_ack(send, queue, number // 2, durable=durable)
        final.append(Record(queue, number // 2, send.key, send.body))


def test_a_right_history_is_accepted() -> None:
    history, final = _history()
    check_history(history, final)
    check_history(history, [*final, Record(0, 5, "k0", b"in doubt")])


def _at(found: Record, *, offset: int) -> Record:
    return Record(found.queue, offset, found.key, found.body)


def _add(history: History, final: list[Record], send: Send, offset: int) -> None:
    history.record_send(send)
    final.append(Record(1, offset, send.key, send.body))


def _replace_the_last(history: History, final: list[Record]) -> None:
    final.pop()
    _add(history, final, Send("p0", 11, "k1", b"other"), 4)


def _replace(final: list[Record], index: int, body: bytes) -> None:
    found = final[index]
    final[index] = Record(found.queue, found.offset, found.key, body)


def _flip(final: list[Record], index: int) -> None:
    body = bytearray(final[index].body)
    body[0] ^= 1
    _replace(final, index, bytes(body))


def _swap(final: list[Record], one: int, other: int) -> None:
    bodies = final[one].body, final[other].body
    _replace(final, one, bodies[1])
    _replace(final, other, bodies[0])


def _forget(history: History, final: list[Record], index: int) -> None:
    """Remove a message of queue 0 and its acknowledgement; add the unanswered send at the end."""
    found = final.pop(index)
    del history.acks[found.body]
    final.append(Record(0, 5, "k0", b"in doubt"))


def _send_late(history: History, final: list[Record]) -> None:
    """Put the last send, by a third producer, before messages that were acknowledged earlier."""
    for index, found in enumerate(final):
        if found.queue == 1:
            final[index] = _at(found, offset=found.offset + 1)
            history.acks[found.body] = 1, found.offset + 1
    history.seen.clear()
    _add(history, final, Send("p2", 0, "k1", b"late"), 0)


Doctor = Callable[[History, list[Record]], object]

DOCTORED: dict[str, Doctor] = {
    "lost": lambda history, final: final.pop(),
    "moved": lambda history, final: final.append(_at(final.pop(), offset=5)),
    "altered": _replace_the_last,
    "duplicated": lambda history, final: final.append(Record(1, 5, "k1", b"body 9")),
    "invented": lambda history, final: final.append(Record(1, 5, "k1", b"never sent")),
    "gap": lambda history, final: _add(history, final, Send("p1", 12, "k1", b"late"), 7),
    "reordered": lambda history, final: _add(history, final, Send("p1", -1, "k1", b"first"), 5),
    "taken-back": lambda history, final: history.record_consumed(Record(0, 5, "k0", b"in doubt")),
    "taken-back from a written topic": lambda history, final: history.record_consumed(
        Record(0, 5, "k0", b"in doubt"), durable=False
    ),
    "altered in one bit": lambda history, final: _flip(final, 4),
    "altered at the end": lambda history, final: _flip(final, -1),
    "altered in its key": lambda history, final: final.__setitem__(
        0, Record(0, 0, "another", final[0].body)
    ),
    "altered by a cut": lambda history, final: _replace(final, 4, final[4].body[:-1]),
    "duplicated at one offset": lambda history, final: final.append(
        Record(1, 4, "k1", b"in doubt")
    ),
    "lost and all of its queue": lambda history, final: final.__delitem__(slice(1, None, 2)),
    "gap at the beginning": lambda history, final: _forget(history, final, 0),
    "gap in unacknowledged messages": lambda history, final: _forget(history, final, 4),
    "reordered with other keys": lambda history, final: _add(
        history, final, Send("p1", -1, "another", b"first"), 5
    ),
    "reordered without keys": lambda history, final: _add(
        history, final, Send("p1", -1, None, b"first"), 5
    ),
    "reordered between producers": lambda history, final: _send_late(history, final),
    "moved to another queue": lambda history, final: final.append(
        Record(1, 5, "k0", final.pop(8).body)
    ),
    "moved, two in each other's place": lambda history, final: _swap(final, 4, 6),
}


@pytest.mark.parametrize("rule", DOCTORED)
def test_a_wrong_history_is_refused(rule: str) -> None:
    history, final = _history()
    DOCTORED[rule](history, final)
    with pytest.raises(HistoryViolation) as caught:
        check_history(history, final)
    assert caught.value.rule == rule.split(" ")[0].rstrip(",")


def test_duplicates_are_accepted_only_from_producers_without_idempotence() -> None:
    history, final = _history()
    final.append(Record(1, 5, "k1", b"body 9"))
    check_history(history, final, allow_duplicates=True)


def test_trimmed_messages_may_be_missing() -> None:
    history, final = _history()
    kept = [found for found in final if found.offset >= 3]
    history.record_consumed(final[0])
    check_history(history, kept, min_offsets={0: 3, 1: 3})
    with pytest.raises(HistoryViolation, match="lost"):
        check_history(history, kept, min_offsets={0: 3, 1: 2})


def test_a_queue_that_begins_after_its_min_offset_has_a_gap() -> None:
    history, final = _history()
    history.acks.clear()
    history.seen.clear()
    with pytest.raises(HistoryViolation, match="gap"):
        check_history(history, [found for found in final if found.offset], min_offsets={0: 0})


def _reads(*offsets: int) -> list[Record]:
    return [Record(0, offset, None, b"") for offset in offsets]


def test_a_read_may_end_anywhere() -> None:
    check_read(0, 3, _reads(3, 4, 5), 6)
    check_read(0, 3, [], 3)


@pytest.mark.parametrize(
    ("found", "next_offset"),
    [
        (_reads(4, 5), 6),
        (_reads(3, 5), 6),
        (_reads(3, 4), 6),
        (_reads(3, 4, 5), 5),
        (_reads(4, 3), 5),
        (_reads(3, 3), 4),
        (_reads(2, 3), 4),
        ([], 4),
        ([Record(1, 3, None, b"")], 4),
    ],
)
def test_a_read_that_is_no_prefix_is_refused(found: list[Record], next_offset: int) -> None:
    with pytest.raises(HistoryViolation, match="skipped"):
        check_read(0, 3, found, next_offset)


def test_a_mark_must_not_decrease() -> None:
    history = History()
    history.record_mark("end of queue 0", 7)
    history.record_mark("end of queue 0", 5)  # a late report
    check_marks(history, {"end of queue 0": 7, "end of queue 1": 0})
    with pytest.raises(HistoryViolation, match="regressed"):
        check_marks(history, {"end of queue 0": 6})


def _written_history() -> tuple[History, list[Record]]:
    """Return a history of one producer in written mode; each send follows the previous ack."""
    history, final = History(), list[Record]()
    _publish(history, final, producers=1, durable=False)
    return history, final


def test_a_power_loss_may_remove_the_end_of_a_written_topic() -> None:
    history, final = _written_history()
    with pytest.raises(HistoryViolation, match="lost"):
        check_history(history, final[:6])
    assert settle_power_loss(history, final[:6]) == 4
    check_history(history, final[:6])
    assert settle_power_loss(history, final[:6]) == 0


def test_a_second_power_loss_may_not_remove_what_the_first_one_left() -> None:
    history, final = _written_history()
    settle_power_loss(history, final[:6])
    settle_power_loss(history, final[:5])
    with pytest.raises(HistoryViolation, match="lost"):
        check_history(history, final[:5])


@pytest.mark.parametrize("gone", [0, 7, 8])
def test_a_power_loss_may_not_remove_from_the_middle(gone: int) -> None:
    history, final = _written_history()
    del final[gone]
    with pytest.raises(HistoryViolation, match="hole"):
        settle_power_loss(history, final)


def test_consumed_messages_of_a_written_topic_may_be_lost_from_the_end() -> None:
    history, final = _written_history()
    for found in final:
        history.record_consumed(found, durable=False)
    settle_power_loss(history, final[:6])
    check_history(history, final[:6])
    with pytest.raises(HistoryViolation, match="taken-back"):
        check_history(History(history.sends, seen=history.seen), final[:5])


def test_consumed_messages_may_not_be_lost_from_the_middle() -> None:
    history, final = _written_history()
    history.written.clear()
    for found in final:
        history.record_consumed(found, durable=False)
    with pytest.raises(HistoryViolation, match="hole"):
        settle_power_loss(history, [*final[:4], *final[6:]])


def test_durable_messages_may_never_be_lost() -> None:
    history, final = _history()
    settle_power_loss(history, final[:-1])
    with pytest.raises(HistoryViolation, match="lost"):
        check_history(history, final[:-1])


def test_messages_sent_together_may_be_lost_in_part() -> None:
    """Two publishes in flight together have no order between queues until one is answered."""
    history = History()
    sends = [Send("p", number, "k", b"body %d" % number) for number in range(2)]
    for send in sends:
        history.record_send(send)
    for queue, send in enumerate(sends):
        history.record_ack(send, queue, 0, durable=False)
    assert settle_power_loss(history, [Record(1, 0, "k", sends[1].body)]) == 1
