"""The history checker: compare the sends and answers of clients with the topic's final content.

Bodies are unique, so a body identifies its send. Each rule has its own violation:

    lost            an acknowledged message is missing
    moved           an acknowledged message is not at the acknowledged queue and offset
    altered         the message at an offset has other bytes or another key
    duplicated      a body is stored twice, or two messages are at one offset
    invented        a body was never sent
    gap             the offsets of a queue are not dense
    reordered       two messages of one producer are in the wrong order in a queue, or a message
                    precedes another one that was acknowledged before the first was sent
    taken-back      a message that a consumer saw is no longer at its offset
    skipped         a read did not return a prefix of the messages from its offset on
    regressed       a number that must only grow (an end or a stored offset) became smaller
    hole            a power loss removed a message, but a later one is still there

Messages below a queue's min offset were trimmed and are not checked. A message that was
acknowledged in written mode may be lost in a power loss: `settle_power_loss` judges that.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock


class HistoryViolation(AssertionError):
    """A history that no correct broker can have. `rule` is one of the rules above."""

    def __init__(self, rule: str, detail: str) -> None:
        super().__init__(f"{rule}: {detail}")
        self.rule = rule


@dataclass(frozen=True, slots=True)
class Send:
    """One message as a producer sent it. `number` counts the sends of that producer."""

    producer: str
    number: int
    key: str | None
    body: bytes


@dataclass(frozen=True, slots=True)
class Record:
    """One message as a client read it."""

    queue: int
    offset: int
    key: str | None
    body: bytes


@dataclass(slots=True)
class History:
    """The events of a run. Many threads record them."""

    sends: list[Send] = field(default_factory=list)
    acks: dict[bytes, tuple[int, int]] = field(default_factory=dict)
    seen: list[Record] = field(default_factory=list)
    seen_written: list[Record] = field(default_factory=list)
    """Messages that consumers of topics in written mode received. A power loss may remove them."""
    marks: dict[str, int] = field(default_factory=dict)
    """The highest reported value of each number that must only grow, by name."""
    written: dict[bytes, int] = field(default_factory=dict)
    """Bodies acknowledged in written mode, with the time of the acknowledgement. A power loss may
    remove them."""
    sent_at: dict[bytes, int] = field(default_factory=dict)
    acked_at: dict[bytes, int] = field(default_factory=dict)
    _clock: int = 0
    _lock: Lock = field(default_factory=Lock)

    def record_send(self, send: Send) -> None:
        """Record a message that a producer is about to send."""
        with self._lock:
            self.sends.append(send)
            self.sent_at[send.body] = self._tick()

    def record_ack(self, send: Send, queue: int, offset: int, *, durable: bool = True) -> None:
        """Record the acknowledgement of a message at this queue and offset."""
        with self._lock:
            self.acks[send.body] = (queue, offset)
            self.acked_at[send.body] = self._tick()
            if not durable:
                self.written[send.body] = self.acked_at[send.body]

    def record_consumed(self, found: Record, *, durable: bool = True) -> None:
        """Record a message that a consumer received. If not `durable`, a power loss may remove
        it."""
        with self._lock:
            (self.seen if durable else self.seen_written).append(found)

    def record_mark(self, mark: str, value: int) -> None:
        """Record that the broker reported this value of a mark."""
        with self._lock:
            self.marks[mark] = max(value, self.marks.get(mark, value))

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


def check_history(
    history: History,
    final: Iterable[Record],
    *,
    allow_duplicates: bool = False,
    min_offsets: Mapping[int, int] | None = None,
) -> None:
    """Raise HistoryViolation unless `final`, the content of the whole topic, agrees with `history`.

    `allow_duplicates`: producers were not idempotent, so a retry may be stored twice.
    `min_offsets` has the first offsets of queues that retention has trimmed.
    """
    kept = min_offsets or {}
    by_place: dict[tuple[int, int], Record] = {}
    by_body: dict[bytes, list[Record]] = defaultdict(list)
    for found in final:
        other = by_place.setdefault((found.queue, found.offset), found)
        if other is not found:
            raise HistoryViolation("duplicated", f"{other} and {found} are at one offset")
        by_body[found.body].append(found)
    sends = {send.body: send for send in history.sends}
    _check_known(history, sends, by_body, allow_duplicates)
    _check_acks(history, sends, by_place, by_body, kept)
    _check_dense(by_place, kept)
    _check_order(sends, by_body)
    _check_real_time(history, by_place)
    for found in (*history.seen, *history.seen_written):
        if found.offset < kept.get(found.queue, 0):
            continue
        if by_place.get((found.queue, found.offset)) != found:
            raise HistoryViolation("taken-back", f"{found} was delivered, now it is not there")


def check_read(queue: int, offset: int, found: Collection[Record], next_offset: int) -> None:
    """Raise HistoryViolation unless a read without a filter returned every offset from `offset` up
    to `next_offset`, in order."""
    offsets = [message.offset for message in found]
    if {message.queue for message in found} - {queue} or offsets != [*range(offset, next_offset)]:
        raise HistoryViolation(
            "skipped", f"from {offset} to {next_offset} of queue {queue}: {offsets}"
        )


def check_marks(history: History, observed: Mapping[str, int]) -> None:
    """Raise HistoryViolation if a mark is now below a value that was reported before."""
    for mark, value in observed.items():
        told = history.marks.get(mark, value)
        if value < told:
            raise HistoryViolation("regressed", f"{mark} was {told}, now it is {value}")


def settle_power_loss(
    history: History,
    final: Collection[Record],
    *,
    min_offsets: Mapping[int, int] | None = None,
) -> int:
    """Judge the loss after a power loss; return the number of acknowledged messages that are lost.

    `final` is the content of the whole topic. Only messages acknowledged in written mode may be
    lost, and only the end of the log: raise HistoryViolation ("hole") if a later message is still
    there. The lost messages are removed from the history, and the remaining ones count as durable
    from now on.
    """
    kept = min_offsets or {}
    there = {found.body for found in final}
    gone = [
        body
        for body in history.written
        if body not in there and history.acks[body][1] >= kept.get(history.acks[body][0], 0)
    ]
    first_ack = min((history.written[body] for body in gone), default=0)
    first_offsets: dict[int, int] = {}
    for body in gone:
        queue, offset = history.acks[body]
        first_offsets[queue] = min(offset, first_offsets.get(queue, offset))
    for found in final if gone else ():
        later = found.body in history.written and found.offset > first_offsets.get(
            found.queue, found.offset
        )
        if later or history.sent_at.get(found.body, 0) > first_ack:
            raise HistoryViolation("hole", f"{found} is there, what came before it is not")
    for body in gone:
        del history.acks[body]
    history.written.clear()
    _settle_seen(history, final, kept)
    return len(gone)


def _settle_seen(history: History, final: Collection[Record], kept: Mapping[int, int]) -> None:
    """Remove messages of written topics that consumers saw and a power loss took. Only the end of a
    queue may be lost."""
    ends: dict[int, int] = defaultdict(int)
    for found in final:
        ends[found.queue] = max(ends[found.queue], found.offset + 1)
    there = set(final)
    for found in history.seen_written:
        is_kept = found.offset >= kept.get(found.queue, 0)
        if is_kept and found not in there and found.offset < ends[found.queue]:
            raise HistoryViolation("hole", f"{found} is not there, what came after it is")
    history.seen += [found for found in history.seen_written if found in there]
    history.seen_written.clear()


def _check_known(
    history: History,
    sends: dict[bytes, Send],
    by_body: dict[bytes, list[Record]],
    allow_duplicates: bool,
) -> None:
    promised = set(history.acks.values())
    for body, places in by_body.items():
        send = sends.get(body)
        if send is None:
            if (places[0].queue, places[0].offset) in promised:
                raise HistoryViolation("altered", f"{places[0]} is not what was acknowledged")
            raise HistoryViolation("invented", f"{places[0]} was never sent")
        if places[0].key != send.key:
            raise HistoryViolation("altered", f"{places[0]} was sent with key {send.key!r}")
        if len(places) > 1 and not allow_duplicates:
            raise HistoryViolation("duplicated", f"{send} is stored at {places}")


def _check_acks(
    history: History,
    sends: dict[bytes, Send],
    by_place: dict[tuple[int, int], Record],
    by_body: dict[bytes, list[Record]],
    kept: Mapping[int, int],
) -> None:
    for body, place in history.acks.items():
        if place[1] < kept.get(place[0], 0):
            continue
        at_place = by_place.get(place)
        if at_place is not None and at_place.body == body:
            continue
        if body in by_body:
            raise HistoryViolation("moved", f"{sends[body]} was promised at {place}")
        if at_place is not None:
            raise HistoryViolation("altered", f"{place} holds {at_place}, not {sends[body]}")
        raise HistoryViolation("lost", f"{sends[body]} was acknowledged at {place}")


def _check_dense(by_place: dict[tuple[int, int], Record], kept: Mapping[int, int]) -> None:
    offsets: dict[int, list[int]] = defaultdict(list)
    for queue, offset in by_place:
        offsets[queue].append(offset)
    for queue, found in offsets.items():
        start = kept.get(queue, 0)
        if sorted(found) != [*range(start, start + len(found))]:
            raise HistoryViolation("gap", f"queue {queue} has holes")


def _check_order(sends: dict[bytes, Send], by_body: dict[bytes, list[Record]]) -> None:
    """Check that each producer's messages are in send order in each queue."""
    last: dict[tuple[str, int], int] = {}
    ordered = [(sends[body], place) for body, places in by_body.items() for place in places[:1]]
    ordered.sort(key=lambda pair: (pair[0].producer, pair[0].number))
    for send, found in ordered:
        track = (send.producer, found.queue)
        before = last.get(track)
        if before is not None and before > found.offset:
            raise HistoryViolation(
                "reordered", f"{send} is at {found.offset}, an earlier one at {before}"
            )
        last[track] = found.offset


def _check_real_time(history: History, by_place: dict[tuple[int, int], Record]) -> None:
    """Check that no message precedes a message that was acknowledged before the first one was
    sent."""
    earliest: dict[int, int] = {}
    for (queue, _), found in sorted(by_place.items(), reverse=True):
        acked_at = earliest.get(queue)
        if acked_at is not None and history.sent_at.get(found.body, 0) > acked_at:
            raise HistoryViolation("reordered", f"{found} was sent after what lies behind it")
        if found.body in history.acks and (acked := history.acked_at.get(found.body)):
            earliest[queue] = min(acked, earliest.get(queue, acked))
