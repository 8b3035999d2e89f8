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
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field
from threading import Lock
from typing import TypeVar

T = TypeVar("T")
K = TypeVar("K")


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
    records = list(final)
    for record in records:
        other = by_place.setdefault((record.queue, record.offset), record)
        if other is not record:
            raise HistoryViolation("duplicated", f"{other} and {record} are at one offset")
    sends = {send.body: send for send in history.sends}
    check = _Check(history, sends, by_place, group_by(records, lambda each: each.body), kept)
    check.check_known(allow_duplicates=allow_duplicates)
    check.check_acks()
    check.check_dense()
    check.check_order()
    check.check_real_time()
    for record in (*history.seen, *history.seen_written):
        is_kept = record.offset >= kept.get(record.queue, 0)
        if is_kept and by_place.get((record.queue, record.offset)) != record:
            raise HistoryViolation("taken-back", f"{record} was delivered, and is gone now")


def group_by(items: Iterable[T], key: Callable[[T], K]) -> dict[K, list[T]]:
    """Return the items by their keys; a missing key has no items."""
    groups: dict[K, list[T]] = defaultdict(list)
    for item in items:
        groups[key(item)].append(item)
    return groups


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
        before = history.marks.get(mark, value)
        if value < before:
            raise HistoryViolation("regressed", f"{mark} was {before}, now it is {value}")


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
    stored = {record.body for record in final}
    lost = [
        body
        for body in history.written
        if body not in stored and history.acks[body][1] >= kept.get(history.acks[body][0], 0)
    ]
    first_ack = min((history.written[body] for body in lost), default=0)
    first_offsets: dict[int, int] = {}
    for body in lost:
        queue, offset = history.acks[body]
        first_offsets[queue] = min(offset, first_offsets.get(queue, offset))
    for record in final if lost else ():
        is_later = record.offset > first_offsets.get(record.queue, record.offset)
        is_later = is_later and record.body in history.written
        if is_later or history.sent_at.get(record.body, 0) > first_ack:
            raise HistoryViolation("hole", f"{record} is stored, an earlier message is lost")
    for body in lost:
        del history.acks[body]
    history.written.clear()
    _settle_seen(history, final, kept)
    return len(lost)


def _settle_seen(history: History, final: Collection[Record], kept: Mapping[int, int]) -> None:
    """Remove messages of written topics that consumers saw and a power loss removed. Only the end
    of a queue may be lost."""
    ends: dict[int, int] = defaultdict(int)
    for record in final:
        ends[record.queue] = max(ends[record.queue], record.offset + 1)
    stored = set(final)
    for record in history.seen_written:
        is_kept = record.offset >= kept.get(record.queue, 0)
        if is_kept and record not in stored and record.offset < ends[record.queue]:
            raise HistoryViolation("hole", f"{record} is lost, a later message is stored")
    history.seen += [record for record in history.seen_written if record in stored]
    history.seen_written.clear()


@dataclass(slots=True)
class _Check:
    """The parts of `check_history`. `kept` has the first offset of each queue."""

    history: History
    sends: dict[bytes, Send]
    by_place: dict[tuple[int, int], Record]
    by_body: dict[bytes, list[Record]]
    kept: Mapping[int, int]

    def check_known(self, *, allow_duplicates: bool) -> None:
        acknowledged = set(self.history.acks.values())
        for body, places in self.by_body.items():
            send, first = self.sends.get(body), places[0]
            if send is None:
                if (first.queue, first.offset) in acknowledged:
                    raise HistoryViolation("altered", f"{first} is not what was acknowledged")
                raise HistoryViolation("invented", f"{first} was never sent")
            if first.key != send.key:
                raise HistoryViolation("altered", f"{first} was sent with key {send.key!r}")
            if len(places) > 1 and not allow_duplicates:
                raise HistoryViolation("duplicated", f"{send} is stored at {places}")

    def check_acks(self) -> None:
        for body, place in self.history.acks.items():
            stored, send = self.by_place.get(place), self.sends[body]
            is_trimmed = place[1] < self.kept.get(place[0], 0)
            if is_trimmed or (stored is not None and stored.body == body):
                continue
            if body in self.by_body:
                raise HistoryViolation("moved", f"{send} was acknowledged at {place}")
            if stored is not None:
                raise HistoryViolation("altered", f"{place} has {stored}, not {send}")
            raise HistoryViolation("lost", f"{send} was acknowledged at {place}")

    def check_dense(self) -> None:
        for queue, records in group_by(self.by_place.values(), lambda each: each.queue).items():
            start = self.kept.get(queue, 0)
            offsets = sorted(each.offset for each in records)
            if offsets != [*range(start, start + len(offsets))]:
                raise HistoryViolation("gap", f"queue {queue} has holes")

    def check_order(self) -> None:
        """Check that each producer's messages are in send order in each queue."""
        last: dict[tuple[str, int], int] = {}
        pairs = [(self.sends[body], places[0]) for body, places in self.by_body.items()]
        for send, record in sorted(pairs, key=lambda pair: (pair[0].producer, pair[0].number)):
            before = last.get((send.producer, record.queue), -1)
            if before > record.offset:
                text = f"{send} is at {record.offset}, an earlier message at {before}"
                raise HistoryViolation("reordered", text)
            last[send.producer, record.queue] = record.offset

    def check_real_time(self) -> None:
        """Check that no message precedes a message that was acknowledged before the first one was
        sent."""
        history, earliest = self.history, dict[int, int]()
        for (queue, _), record in sorted(self.by_place.items(), reverse=True):
            acked_at = earliest.get(queue)
            if acked_at is not None and history.sent_at.get(record.body, 0) > acked_at:
                raise HistoryViolation("reordered", f"{record} was sent after a later message")
            if record.body in history.acks and (acked := history.acked_at.get(record.body)):
                earliest[queue] = min(acked, earliest.get(queue, acked))
