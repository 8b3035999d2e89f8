"""Send prepared batches many times over one plain connection.

This costs the sender very little processor time, so the figures are those of the broker.
"""

import http.client
import json
import struct
from collections.abc import Iterator, Mapping
from dataclasses import replace
from urllib.parse import urlsplit

from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader

BATCH_TYPE = "application/vnd.holdfast.batch"
#: The bytes of one publish request. A producer with several queues sends requests of this size.
REQUEST_BYTES = 8 * 1024 * 1024
READ_BYTES = 16 * 1024 * 1024
#: The broker's limits: batches per publish, messages per answer, and queues per poll request.
BATCHES_PER_REQUEST = 2_000
MESSAGES_PER_POLL = 10_000
QUEUES_PER_POLL = 100

#: Fields of a block's header, as in FORMAT.md: size, messages, base offset and queue.
_HEADER = struct.Struct("<8xI8xI16xq4xI")


class BulkConnection:
    """One keep-alive connection to a broker."""

    def __init__(self, url: str) -> None:
        where = urlsplit(url)
        self._connection = http.client.HTTPConnection(where.hostname or "", where.port)

    def ask(self, method: str, path: str, body: bytes = b"", content_type: str = "") -> bytes:
        """Send a request and return the body of its reply. Raise RuntimeError unless it
        succeeds."""
        headers = {"Content-Type": content_type} if content_type else {}
        self._connection.request(method, path, body, headers)
        reply = self._connection.getresponse()
        told = reply.read()
        if reply.status >= 300:
            raise RuntimeError(f"{method} {path}: {reply.status} {told[:300]!r}")
        return told

    def create(self, topic: str, *, queues: int = 1, durability: str = "written") -> None:
        """Create a topic."""
        settings = {"queues": queues, "durability": durability}
        self.ask("PUT", f"/v1/topics/{topic}", json.dumps(settings).encode(), "application/json")

    def publish(
        self,
        topic: str,
        *,
        messages: int,
        body_bytes: int,
        batch: int = 1000,
        queues: int = 1,
        request_bytes: int = REQUEST_BYTES,
    ) -> None:
        """Publish `messages` messages, in batches that go to the queues in turn."""
        path = f"/v1/topics/{topic}/messages"
        for body in _requests(messages, body_bytes, batch, queues, request_bytes):
            self.ask("POST", path, body, BATCH_TYPE)

    def read_all(self, topic: str) -> int:
        """Read a whole topic as stored blocks; return the number of its messages.

        Each poll names just enough queues to fill one answer.
        """
        described = json.loads(self.ask("GET", f"/v1/topics/{topic}"))
        ends = {each["queue"]: each["max_offset"] for each in described["queues"]}
        left = {queue: 0 for queue, end in ends.items() if end}
        while left:
            some = _enough(left, ends)
            offsets = ",".join(f"{queue}:{offset}" for queue, offset in some.items())
            self._connection.request(
                "GET",
                f"/v1/topics/{topic}/messages?offsets={offsets}&max_messages={MESSAGES_PER_POLL}"
                f"&max_bytes={READ_BYTES}",
                headers={"Accept": BATCH_TYPE},
            )
            reply = self._connection.getresponse()
            if reply.status != 200:
                raise RuntimeError(f"polling {topic}: {reply.status} {reply.read()[:300]!r}")
            body = reply.read()
            for pair in reply.headers["Holdfast-Next-Offset"].split(","):
                queue, _, offset = pair.partition(":")
                left[int(queue)] = int(offset)
            # The broker returns whole batches, even if a queue's share ends inside one. Continue
            # after the batch, like the clients, so that it is not requested again.
            for number, end in _batch_ends(body):
                left[number] = max(left[number], end)
            for number in some:
                if left[number] >= ends[number]:
                    del left[number]
        return sum(ends.values())

    def close(self) -> None:
        """Close the connection."""
        self._connection.close()


def _enough(left: Mapping[int, int], ends: Mapping[int, int]) -> dict[int, int]:
    """Return the first queues of `left`, with their offsets: just as many queues as have enough
    messages for one answer."""
    some: dict[int, int] = {}
    messages = 0
    for queue, offset in left.items():
        if messages >= MESSAGES_PER_POLL or len(some) == QUEUES_PER_POLL:
            break
        some[queue] = offset
        messages += ends[queue] - offset
    return some


def _batch_ends(blocks: bytes) -> Iterator[tuple[int, int]]:
    """Yield the queue of each block, and the offset after its last message."""
    position = 0
    while position < len(blocks):
        size, count, base_offset, queue = _HEADER.unpack_from(blocks, position)
        yield queue, base_offset + count
        position += size


def _requests(
    messages: int, body_bytes: int, batch: int, queues: int, request_bytes: int
) -> Iterator[bytes]:
    block = encode_batch([b"x" * body_bytes] * batch, born_timestamp_us=1)
    # Blocks of different queues differ only in their headers. Creating and keeping one block per
    # queue would take longer than sending them.
    header, rest = BatchHeader.decode(block), block[HEADER_SIZE:]
    heads = [bytes(replace(header, queue_id=queue).encode()) for queue in range(queues)]
    each = min(max(1, request_bytes // len(block)), BATCHES_PER_REQUEST)
    count = messages // batch
    for first in range(0, count, each):
        numbers = range(first, min(first + each, count))
        yield b"".join(part for number in numbers for part in (heads[number % queues], rest))
