"""The history checker: what clients sent and were told, against what the topic holds afterwards.

Bodies are unique, so a body names its send. The rules, each with its own violation:

    lost            an acknowledged message is not there
    moved           it is there, but not at the queue and offset that the acknowledgement named
    altered         a message is at its offset with other bytes (or another key)
    duplicated      a body is there twice
    invented        a body that nobody sent
    gap             offsets of a queue are not dense
    reordered       two messages of one producer with one key are in the wrong order
    taken-back      a consumer saw a message that is no longer at its offset
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from threading import Lock


class HistoryViolation(AssertionError):
    """A history that no correct broker can have. `rule` is one of the words above."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Send:
    """One message as a producer sent it; `number` counts that producer's sends."""

    producer: str
    number: int
    key: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Found:
    """One message as it was read."""

    queue: int
    offset: int
    key: str | None
    body: bytes


@dataclass(slots=True)
class History:
    """What happened, written down by many threads."""

    sends: list[Send] = field(default_factory=list)
    acks: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    seen: list[Found] = field(default_factory=list)
    _lock: Lock = field(default_factory=Lock)

    def sent(self, send: Send) -> None:
        """A producer is about to send this."""
        with self._lock:
            self.sends.append(send)

    def acknowledged(self, send: Send, queue: int, offset: int) -> None:
        """The broker said that it is stored there."""
        with self._lock:
            self.acks[send.body] = (queue, offset)

    def consumed(self, found: Found) -> None:
        """A consumer was given this."""
        with self._lock:
            self.seen.append(found)


def check_history(
    history: History, final: Iterable[Found], *, allow_duplicates: bool = False
) -> None:
    """Raise HistoryViolation unless `final`, the whole topic read back, agrees with `history`.

    `allow_duplicates`: producers were not idempotent, so a retry may be stored twice.
    """
    by_place: dict[tuple[int, int], Found] = {}
    by_body: dict[bytes, list[Found]] = defaultdict(list)
    for found in final:
        by_place[found.queue, found.offset] = found
        by_body[found.body].append(found)
    sends = {send.body: send for send in history.sends}
    _check_known(sends, by_body, allow_duplicates)
    _check_acks(history, sends, by_place, by_body)
    _check_dense(by_place)
    _check_order(sends, by_body)
    for found in history.seen:
        if by_place.get((found.queue, found.offset)) != found:
            raise HistoryViolation("taken-back", f"{found} was delivered, now it is not there")


def _check_known(
    sends: dict[bytes, Send], by_body: dict[bytes, list[Found]], allow_duplicates: bool
) -> None:
    for body, places in by_body.items():
        send = sends.get(body)
        if send is None:
            raise HistoryViolation("invented", f"{places[0]} was never sent")
        if places[0].key != send.key:
            raise HistoryViolation("altered", f"{places[0]} was sent with key {send.key!r}")
        if len(places) > 1 and not allow_duplicates:
            raise HistoryViolation("duplicated", f"{send} is stored at {places}")


def _check_acks(
    history: History,
    sends: dict[bytes, Send],
    by_place: dict[tuple[int, int], Found],
    by_body: dict[bytes, list[Found]],
) -> None:
    for body, place in history.acks.items():
        at_place = by_place.get(place)
        if at_place is not None and at_place.body == body:
            continue
        if body in by_body:
            raise HistoryViolation("moved", f"{sends[body]} was promised at {place}")
        if at_place is not None:
            raise HistoryViolation("altered", f"{place} holds {at_place}, not {sends[body]}")
        raise HistoryViolation("lost", f"{sends[body]} was acknowledged at {place}")


def _check_dense(by_place: dict[tuple[int, int], Found]) -> None:
    offsets: dict[int, list[int]] = defaultdict(list)
    for queue, offset in by_place:
        offsets[queue].append(offset)
    for queue, found in offsets.items():
        if sorted(found) != list(range(min(found), min(found) + len(found))):
            raise HistoryViolation("gap", f"queue {queue} has holes")


def _check_order(sends: dict[bytes, Send], by_body: dict[bytes, list[Found]]) -> None:
    last: dict[tuple[str, str, int], int] = {}
    ordered = [(sends[body], places[0]) for body, places in by_body.items()]
    ordered.sort(key=lambda pair: (pair[0].producer, pair[0].number))
    for send, found in ordered:
        if send.key is None:
            continue
        track = (send.producer, send.key, found.queue)
        before = last.get(track)
        if before is not None and before > found.offset:
            raise HistoryViolation(
                "reordered", f"{send} is at {found.offset}, an earlier one at {before}"
            )
        last[track] = found.offset
