"""A small HTTP broker in memory, on its own thread, for tests of readers and of their error
handling.

It implements the read part of the broker's API: describe, splits, offsets by time, stored offsets,
pulls as blocks or msgpack, and held polls. It stores real blocks. A test can make it return errors,
close connections, trim queues or damage bytes.
"""

import json
import re
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from urllib.parse import parse_qs, urlsplit

import msgpack

from holdfast.client.read.message import LoneMessage, Message, MessageBatch
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from tests.support.servers.plain_server import PlainHandler, served
from tests.support.storage.batches import stamped

BATCH_TYPE = "application/vnd.holdfast.batch"
MAX_MESSAGES = 10_000


@dataclass
class FakeQueue:
    """The blocks of a queue in order. A test raises `min_offset` to trim the queue."""

    blocks: list[Batch] = field(default_factory=list)
    min_offset: int = 0

    @property
    def max_offset(self) -> int:
        return self.blocks[-1].header.end_offset if self.blocks else 0


@dataclass
class FakeTopic:
    name: str
    topic_id: int
    queues: list[FakeQueue]
    arrived: threading.Condition = field(default_factory=threading.Condition)

    def publish(
        self,
        queue: int,
        bodies: Sequence[bytes],
        *,
        store_timestamp_us: int = 1_700_000_000_000_000,
        **columns: object,
    ) -> None:
        """Store one block."""
        held = self.queues[queue]
        batch = stamped(
            encode_batch(bodies, **columns),  # type: ignore[arg-type]
            physical_offset=0,
            base_offset=held.max_offset,
            topic_id=self.topic_id,
            queue_id=queue,
            store_timestamp_us=store_timestamp_us,
        )
        with self.arrived:
            held.blocks.append(batch)
            self.arrived.notify_all()


@dataclass(frozen=True)
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes


Fault = Callable[[str], Answer | None]  # takes the request's target; None: answer as usual


class FakeBroker:
    """The state of the broker. Handlers read it without a lock; tests change it between
    requests."""

    def __init__(self) -> None:
        self.url = ""
        self.topics: dict[str, FakeTopic] = {}
        self.groups: dict[str, dict[str, tuple[dict[int, int], int]]] = {}
        self.leased_groups: set[str] = set()
        self.requests: list[str] = []
        self.faults: list[Fault] = []
        self.leases_given = 0
        #: Leases by id, each with the duration that was requested last.
        self.leases: dict[str, int] = {}

    def topic(self, name: str, queues: int = 1, bodies: Sequence[bytes] = ()) -> FakeTopic:
        """Create a topic, or replace an existing one. Each queue has one block of the bodies."""
        topic_id = 1 + max((topic.topic_id for topic in self.topics.values()), default=0)
        self.topics[name] = FakeTopic(name, topic_id, [FakeQueue() for _ in range(queues)])
        for queue in range(queues if bodies else 0):
            self.topics[name].publish(queue, bodies)
        return self.topics[name]

    def fail_once(self, status: int, *, match: str = "", headers: Mapping[str, str] = {}) -> None:
        """Answer the next request whose target contains `match` with an error."""
        self.answer_once(lambda _: _problem(status, "test-fault", headers=headers), match=match)

    def answer_once(self, fault: Fault, *, match: str = "") -> None:
        """Let `fault` answer the next request whose target contains `match`."""

        def once(target: str) -> Answer | None:
            if match not in target:
                return None
            self.faults.remove(once)
            return fault(target)

        self.faults.append(once)

    def answer(self, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
        """Return the answer to one request."""
        self.requests.append(f"{method} {target}")
        for fault in list(self.faults):
            if (answer := fault(target)) is not None:
                return answer
        parts = urlsplit(target)
        query = {name: values[0] for name, values in parse_qs(parts.query).items()}
        for (verb, pattern), handler in _ROUTES.items():
            if verb == method and (match := re.fullmatch(pattern, parts.path)):
                return handler(self, query, headers, body, **match.groupdict())
        return _problem(404, "not-found")

    # -- handlers ----------------------------------------------------------------------------

    def list_topics(self, query: dict[str, str], *_: object) -> Answer:
        names = sorted(name for name in self.topics if name > query.get("after", ""))
        page = names[: int(query.get("limit", "100"))]
        following = page[-1] if len(page) < len(names) else None
        return _json({"topics": [{"topic": name} for name in page], "next": following})

    def describe(self, *_: object, topic: str) -> Answer:
        if (found := self.topics.get(topic)) is None:
            return _problem(404, "unknown-topic", detail=f"there is no topic {topic!r}")
        queues = [
            {
                "queue": number,
                "min_offset": queue.min_offset,
                "max_offset": queue.max_offset,
                "bytes": sum(block.header.total_size for block in queue.blocks),
            }
            for number, queue in enumerate(found.queues)
        ]
        return _json(
            {
                "topic": topic,
                "topic_id": found.topic_id,
                "queue_count": len(queues),
                "queues": queues,
                "config": {},
            }
        )

    def splits(self, query: dict[str, str], *_: object, topic: str) -> Answer:
        found = self.topics[topic]
        lease: dict[str, object] = {}
        if "lease_ms" in query:
            lease_id = f"lease-{self.leases_given}"
            self.leases_given += 1
            self.leases[lease_id] = int(query["lease_ms"])
            lease = {"lease": {"id": lease_id, "until_ms": 0}}
        starts, ends = _pairs(query.get("start", "")), _pairs(query.get("end", ""))
        parts = []
        for number, queue in enumerate(found.queues):
            if "only_named" in query and number not in starts:
                continue
            start = starts.get(number, queue.min_offset)
            end = ends.get(number, queue.max_offset)
            if start < queue.min_offset:
                return _problem(410, "offset-trimmed", min_offset=queue.min_offset)
            if end > queue.max_offset:
                return _problem(416, "offset-beyond-end", max_offset=queue.max_offset)
            for block in queue.blocks:
                first = max(start, block.header.base_offset)
                last = min(end, block.header.end_offset)
                if first < last:
                    parts.append(
                        {
                            "queue": number,
                            "start_offset": first,
                            "end_offset": last,
                            "bytes": block.header.total_size,
                        }
                    )
        return _json({"topic": topic, "topic_id": found.topic_id, "splits": parts, **lease})

    def release_lease(self, *_: object, topic: str, lease: str) -> Answer:
        if self.leases.pop(lease, None) is None:
            return _problem(404, "unknown-read-lease")
        return Answer(200, {}, b"")

    def extend_lease(
        self, _: dict[str, str], headers: Mapping[str, str], body: bytes, topic: str, lease: str
    ) -> Answer:
        if lease not in self.leases:
            return _problem(404, "unknown-read-lease")
        self.leases[lease] = json.loads(body)["lease_ms"]
        return _json({"id": lease, "until_ms": 0})

    def offset_at(self, query: dict[str, str], *_: object, topic: str, queue: str) -> Answer:
        held = self.topics[topic].queues[int(queue)]
        for block in held.blocks:
            stamp = block.header.store_timestamp_us // 1000
            if stamp >= int(query["timestamp_ms"]):
                return _json({"offset": block.header.base_offset, "store_timestamp_ms": stamp})
        return _json({"offset": held.max_offset, "store_timestamp_ms": None})

    def pull(
        self, query: dict[str, str], headers: Mapping[str, str], _: bytes, topic: str, queue: str
    ) -> Answer:
        found = self.topics[topic]
        held = found.queues[int(queue)]
        offset, count = int(query["offset"]), int(query["max_messages"])
        size = int(query["max_bytes"])
        if offset < held.min_offset:
            return _problem(410, "offset-trimmed", min_offset=held.min_offset)
        if offset > held.max_offset:
            return _problem(416, "offset-beyond-end", max_offset=held.max_offset)
        if count > MAX_MESSAGES or size > 16 * 1024 * 1024:
            return _problem(400, "limit-exceeded")
        wanted = set(query["tag"].split(",")) if "tag" in query else None
        chosen: list[Batch] = []
        messages: list[Message] = []
        following = offset
        for block in held.blocks:
            base = block.header.base_offset
            if block.header.end_offset <= offset:
                continue
            if len(messages) >= count or (chosen and size <= 0):
                break
            matching = [
                row
                for row in range(max(0, offset - base), len(block))
                if wanted is None or block.tag(row) in wanted
            ][: count - len(messages)]
            following = block.header.end_offset
            if matching:
                following = base + matching[-1] + 1
                chosen.append(block)
                all_messages = list(MessageBatch(topic, block, 0, len(block)))
                messages += [all_messages[row] for row in matching]
                size -= block.header.body_bytes
        fields = {
            "Holdfast-Next-Offset": str(following),
            "Holdfast-Min-Offset": str(held.min_offset),
            "Holdfast-Max-Offset": str(held.max_offset),
            "Holdfast-Topic-Id": str(found.topic_id),
        }
        if headers.get("Accept", "").partition(";")[0] == BATCH_TYPE:
            body = b"".join(block.block for block in chosen)
            return Answer(200, fields | {"Content-Type": BATCH_TYPE}, body)
        names = LoneMessage.__struct_fields__
        rows = [{name: getattr(each, name) for name in names} for each in messages]
        fields["Content-Type"] = "application/msgpack"
        return Answer(200, fields, msgpack.packb({"messages": rows, "next_offset": following}))

    def poll(self, query: dict[str, str], *_: object, topic: str) -> Answer:
        """Hold the request until messages arrive or the wait ends. The reader ignores the reply's
        content."""
        found, offsets = self.topics[topic], _pairs(query["offsets"])
        with found.arrived:
            found.arrived.wait_for(
                lambda: any(found.queues[q].max_offset > offset for q, offset in offsets.items()),
                int(query["wait_ms"]) / 1000,
            )
        return Answer(200, {"Content-Type": "application/msgpack"}, msgpack.packb({}))

    def describe_group(self, *_: object, group: str) -> Answer:
        if group not in self.groups and group not in self.leased_groups:
            return _problem(404, "unknown-group", detail=f"there is no group {group!r}")
        return _json({"group": group} | ({"config": {}} if group in self.leased_groups else {}))

    def read_offsets(self, *_: object, group: str, topic: str) -> Answer:
        if group not in self.groups:
            return _problem(404, "unknown-group", detail=f"there is no group {group!r}")
        offsets, version = self.groups[group].get(topic, ({}, 0))
        content = {"offsets": {str(queue): offset for queue, offset in offsets.items()}}
        return _json(content, {"ETag": f'"{version}"'})

    def store_offsets(
        self, _: dict[str, str], headers: Mapping[str, str], body: bytes, group: str, topic: str
    ) -> Answer:
        offsets, version = self.groups.get(group, {}).get(topic, ({}, 0))
        if headers.get("If-Match", f'"{version}"') != f'"{version}"':
            return _problem(412, "offsets-changed")
        given = json.loads(body)["offsets"]
        merged = offsets | {int(queue): offset for queue, offset in given.items()}
        self.groups.setdefault(group, {})[topic] = (merged, version + 1)
        return self.read_offsets(group=group, topic=topic)


_TOPIC = r"/v1/topics/(?P<topic>[^/]+)"
_OFFSETS = r"/v1/groups/(?P<group>[^/]+)/topics/(?P<topic>[^/]+)/offsets"
_ROUTES: dict[tuple[str, str], Callable[..., Answer]] = {
    ("GET", "/v1/topics"): FakeBroker.list_topics,
    ("GET", _TOPIC): FakeBroker.describe,
    ("GET", f"{_TOPIC}/splits"): FakeBroker.splits,
    ("PUT", f"{_TOPIC}/read-leases/(?P<lease>[^/]+)"): FakeBroker.extend_lease,
    ("DELETE", f"{_TOPIC}/read-leases/(?P<lease>[^/]+)"): FakeBroker.release_lease,
    ("GET", rf"{_TOPIC}/queues/(?P<queue>\d+)/offset"): FakeBroker.offset_at,
    ("GET", rf"{_TOPIC}/queues/(?P<queue>\d+)/messages"): FakeBroker.pull,
    ("GET", f"{_TOPIC}/messages"): FakeBroker.poll,
    ("GET", r"/v1/groups/(?P<group>[^/]+)"): FakeBroker.describe_group,
    ("GET", _OFFSETS): FakeBroker.read_offsets,
    ("PUT", _OFFSETS): FakeBroker.store_offsets,
}


def _pairs(text: str) -> dict[int, int]:
    return {
        int(queue): int(offset)
        for queue, offset in (pair.split(":") for pair in text.split(",") if pair)
    }


def _json(content: object, headers: Mapping[str, str] = {}) -> Answer:
    body = json.dumps(content).encode()
    return Answer(200, {"Content-Type": "application/json", **headers}, body)


def _problem(status: int, slug: str, headers: Mapping[str, str] = {}, **members: object) -> Answer:
    problem = {"type": f"/problems/{slug}", "status": status, "title": slug, **members}
    fields = {"Content-Type": "application/problem+json", **headers}
    return Answer(status, fields, json.dumps(problem).encode())


#: An Answer that closes the connection without a response.
HANG_UP = Answer(0, {}, b"")


@contextmanager
def running_fake_broker() -> Iterator[FakeBroker]:
    """Serve a FakeBroker on a free port until the block ends."""
    broker = FakeBroker()

    class Handler(PlainHandler):
        def respond(self) -> None:
            headers = dict(self.headers.items())
            answer = broker.answer(self.command, self.path, headers, self.body())
            if answer is HANG_UP:
                self.close_connection = True
                return
            self.send_response(answer.status)
            for name, value in answer.headers.items():
                self.send_header(name, value)
            if "Content-Length" in answer.headers:  # a wrong length: no more bytes follow
                self.close_connection = True
            else:
                self.send_header("Content-Length", str(len(answer.body)))
            self.end_headers()
            self.wfile.write(answer.body)

    with served(Handler) as url:
        broker.url = url
        yield broker
