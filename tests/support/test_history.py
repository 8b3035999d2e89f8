"""The checker must refuse every wrong history, or no fault test means anything."""

from collections.abc import Callable

import pytest

from tests.support.history import Found, History, HistoryViolation, Send, check_history


def _history() -> tuple[History, list[Found]]:
    """Two producers, two queues, ten acknowledged messages and one that was in doubt."""
    history = History()
    final = []
    for number in range(10):
        send = Send(f"p{number % 2}", number, f"k{number % 2}", b"body %d" % number)
        found = Found(number % 2, number // 2, send.key, send.body)
        history.sent(send)
        history.acknowledged(send, found.queue, found.offset)
        final.append(found)
    history.sent(Send("p0", 10, "k0", b"in doubt"))
    history.consumed(final[3])
    return history, final


def test_a_right_history_passes() -> None:
    history, final = _history()
    check_history(history, final)
    check_history(history, [*final, Found(0, 5, "k0", b"in doubt")])


Doctor = Callable[[History, list[Found]], object]

DOCTORED: dict[str, Doctor] = {
    "lost": lambda history, final: final.pop(),
    "moved": lambda history, final: final.append(_at(final.pop(), offset=5)),
    "altered": lambda history, final: (
        history.sent(Send("p0", 11, "k1", b"other")),
        final.append(Found(1, 4, "k1", b"other")),
        final.remove(Found(1, 4, "k1", b"body 9")),
    ),
    "duplicated": lambda history, final: final.append(Found(1, 5, "k1", b"body 9")),
    "invented": lambda history, final: final.append(Found(1, 5, "k1", b"nobody sent this")),
    "gap": lambda history, final: (
        history.sent(Send("p1", 12, "k1", b"late")),
        final.append(Found(1, 7, "k1", b"late")),
    ),
    "reordered": lambda history, final: (
        history.sent(Send("p1", -1, "k1", b"sent first")),
        final.append(Found(1, 5, "k1", b"sent first")),
    ),
    "taken-back": lambda history, final: history.consumed(Found(0, 5, "k0", b"in doubt")),
}


def _at(found: Found, *, offset: int) -> Found:
    return Found(found.queue, offset, found.key, found.body)


@pytest.mark.parametrize("rule", DOCTORED)
def test_a_doctored_history_is_refused(rule: str) -> None:
    history, final = _history()
    DOCTORED[rule](history, final)
    with pytest.raises(HistoryViolation) as caught:
        check_history(history, final)
    assert caught.value.rule == rule


def test_a_changed_key_is_refused() -> None:
    history, final = _history()
    final[0] = Found(0, 0, "another", final[0].body)
    with pytest.raises(HistoryViolation, match="altered"):
        check_history(history, final)


def test_duplicates_pass_only_where_producers_are_not_idempotent() -> None:
    history, final = _history()
    final.append(Found(1, 5, "k1", b"body 9"))
    check_history(history, final, allow_duplicates=True)
