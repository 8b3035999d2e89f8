"""Queues of invented messages for the group core, and the rows of an invented disk."""

from dataclasses import dataclass, field

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.config import GroupConfig
from holdfast.groups.core import settling
from holdfast.groups.core.browsing import BrowseResult, browse
from holdfast.groups.core.group import Group
from holdfast.groups.core.receiving import continue_reply, receive, serve
from holdfast.groups.core.requests import ReceiveRequest, Reply, SelectedMessage
from holdfast.groups.core.settling import Status, Verb
from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.cursor.heads import Head, Heads
from holdfast.groups.cursor.page_records import Progress
from holdfast.groups.cursor.rows import DeleteRange, StoredCursor, Write


@dataclass(frozen=True, slots=True)
class Message:
    """A message that a filter can match: a filter matches if the tag contains it."""

    size_bytes: int = 100
    key: int = 0
    tag: str = ""
    expires_at_ms: int = 0
    cost: int = 0


@dataclass
class Queues:
    """A source of heads. A filter is one letter."""

    messages: dict[QueueKey, list[Message]] = field(default_factory=dict)
    #: The number of offsets that one call examines.
    step: int = 1000
    reads: list[tuple[QueueKey, int, int]] = field(default_factory=list)
    is_cold: bool = False
    #: The first cold offset of each queue; a queue without an entry is not cold.
    cold_from: dict[QueueKey, int] = field(default_factory=dict)

    def read(
        self, queue: QueueKey, start: int, end: int, most: int, filter: object | None
    ) -> Heads | None:
        cold_from = self.cold_from.get(queue, end)
        if self.is_cold or start >= cold_from:
            return None
        stop = min(end, start + self.step, cold_from)
        found: list[Head] = []
        messages = self.messages[queue]
        offset = start
        while offset < stop and len(found) < most:
            message = messages[offset]
            if filter is None or str(filter) in message.tag:
                # By default the costs are as different as the sizes.
                cost = message.cost or 10 * message.size_bytes
                found.append(
                    Head(offset, message.size_bytes, message.key, message.expires_at_ms, cost)
                )
            offset += 1
        self.reads.append((queue, start, offset))
        return Heads(found, offset)

    def matches(self, queue: QueueKey, offset: int, filter: object) -> bool | None:
        return str(filter) in self.messages[queue][offset].tag

    def keys(self, queue: QueueKey, start: int, end: int) -> list[bytes] | None:
        stop = min(end, start + self.step, self.cold_from.get(queue, end))
        if self.is_cold or start >= stop:
            return None
        messages = self.messages[queue][start:stop]
        return [b"%d" % message.key if message.key else b"" for message in messages]

    def wall_ms(self, now_ms: int) -> int:
        return now_ms


class Disk:
    """The committed rows, one dict per table."""

    def __init__(self) -> None:
        self.tables: dict[str, dict[bytes, bytes]] = {each: {} for each in rows.TABLES}

    def write(self, writes: list[Write | DeleteRange]) -> None:
        for each in writes:
            table = self.tables[each.table]
            if isinstance(each, DeleteRange):
                for key in [key for key in table if each.start <= key < each.end]:
                    del table[key]
            elif each.value is None:
                table.pop(each.key, None)
            else:
                table[each.key] = each.value

    def stored(self, prefix: bytes) -> StoredCursor | None:
        value = self.tables[rows.CUR].get(prefix)
        if value is None:
            return None

        def of(table: str) -> dict[int, bytes]:
            found = self.tables[table].items()
            return {rows.key_number(k): value for k, value in found if k.startswith(prefix)}

        return StoredCursor(
            rows.decode_cursor(value),
            {number: rows.decode_chunk(each) for number, each in of(rows.ACK).items()},
            {number: rows.decode_attempts(each) for number, each in of(rows.ATT).items()},
            {
                number: row
                for number, each in of(rows.DEAD).items()
                if (row := rows.decode_settled(each)) is not None
            },
        )

    def active(self, group_id: int) -> str | None:
        """Return the member that has the group to itself."""
        value = self.tables[rows.ACTIVE].get(rows.group_key(group_id))
        return None if value is None else value.decode()


class Stage:
    """A group over queues that are empty at first, for tests with several steps."""

    def __init__(
        self,
        topics: dict[int, int] | None = None,
        *,
        queues: int = 1,
        levels: int = 1,
        filter: str | None = None,
        make_group: type[Group] = Group,
        **config: object,
    ) -> None:
        """`topics` are weights by topic id; all topics have the same number of queues, levels, and
        the same filter."""
        self.queues = Queues()
        self.group = make_group(1, GroupConfig(**config), self.queues)  # type: ignore[arg-type]
        self.now = 1_000_000
        self.disk = Disk()
        for topic_id, weight in ({1: 1} if topics is None else topics).items():
            self.group.add_topic(topic_id, weight=weight, levels=levels, filter=filter)
            for queue in range(queues):
                self.add_queue((topic_id, queue))

    def add_queue(self, key: QueueKey) -> None:
        self.queues.messages.setdefault(key, [])
        self.group.add_queue(key, Cursor(boot=1))

    def publish(self, count: int = 1, queue: QueueKey = (1, 0), **fields: object) -> None:
        for _ in range(count):
            self.queues.messages[queue].append(Message(**fields))  # type: ignore[arg-type]
        self.group.note_end(queue, len(self.queues.messages[queue]))

    def ask(self, member: str = "a", max_messages: int = 100, **fields: object) -> Reply:
        request = ReceiveRequest(member, max_messages, **fields)  # type: ignore[arg-type]
        reply = receive(self.group, request, self.now)
        while reply.is_cut:
            continue_reply(self.group, reply, request, self.now)
        return reply

    def take(
        self, member: str = "a", max_messages: int = 100, **fields: object
    ) -> list[SelectedMessage]:
        return self.ask(member, max_messages, **fields).messages

    def offsets(self, member: str = "a", max_messages: int = 100, **fields: object) -> list[int]:
        return [message.offset for message in self.take(member, max_messages, **fields)]

    def cursor(self, key: QueueKey = (1, 0)) -> Cursor:
        return self.group.topics[key[0]].lanes[key[1]].cursor

    def set_filter(self, filter: str | None) -> None:
        self.group.topics[1].filter = filter
        for lane in self.group.topics[1].lanes.values():
            self.group.set_filter(lane, filter)

    def configure(self, config: GroupConfig) -> None:
        self.group.configure_group(config)
        for topic in self.group.topics.values():
            for lane in topic.lanes.values():
                self.group.configure_lane(lane)
        self.group.mark_all_dirty()

    def commit(self) -> None:
        batch = self.group.outbox.take_writes()
        self.disk.write(batch.writes)
        self.group.outbox.mark_committed(batch)

    def later(self, ms: int) -> None:
        self.now += ms
        self.group.tick(self.now)

    def restart(
        self, *, page: Progress | None = None, end: int | None = None, is_log_cut: bool = False
    ) -> None:
        """Restart the broker of a group with one queue, with the committed rows."""
        stored = self.disk.stored(rows.key_prefix(1, 1, 0))
        assert stored is not None
        cursor = rows.restore(
            stored,
            boot=self.cursor().boot + 1,
            end=self.cursor().end if end is None else end,
            log_start=0,
            now_ms=self.now,
            longest_lease_ms=30_000,
            most_failures=self.group.config.max_attempts,
            page=page,
            is_log_cut=is_log_cut,
        )
        self.group = Group(1, self.group.config, self.queues)
        self.group.add_topic(1)
        self.group.add_queue((1, 0), cursor)


def settle(
    stage: Stage, verb: Verb, messages: list[SelectedMessage], **terms: int | float | bool
) -> list[Status]:
    """Settle received messages."""
    receipts = [message.receipt for message in messages]
    return settling.settle(stage.group, verb, receipts, stage.now, **terms)  # type: ignore[arg-type]


def park(
    stage: Stage, member: str, max_messages: int = 100, wait_ms: int = 5_000, **fields: object
) -> None:
    """Let a member wait. Its ticket is its name."""
    request = ReceiveRequest(member, max_messages, **fields)  # type: ignore[arg-type]
    stage.group.park(request, member, stage.now, stage.now + wait_ms)


def browse_stage(
    stage: Stage,
    place: dict[QueueKey, int],
    max_messages: int = 100,
    *,
    include_leased: bool = False,
) -> BrowseResult:
    topics, now_ms, most = stage.group.topics.values(), stage.now, max_messages
    return browse(
        topics,
        stage.queues,
        place,
        max_messages=most,
        include_leased=include_leased,
        now_ms=now_ms,
    )


def served(stage: Stage) -> list[tuple[object, list[int]]]:
    """Serve the waiting requests; return the answered members and the offsets of their messages."""
    found = []
    for waiter, reply in serve(stage.group, stage.now):
        assert isinstance(reply, Reply)
        found.append((waiter.ticket, [message.offset for message in reply.messages]))
    return found
