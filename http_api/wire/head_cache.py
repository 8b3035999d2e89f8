"""Heads of requests that were answered before, byte for byte, and how to answer them again. Pure.

Clients repeat their heads (request line and headers). A producer sends the same head with each
message of the same size; if it numbers its publishes, the heads differ only in the header
SEQUENCE. The heads of a reader that follows a queue differ only in the parameter `offset` of the
query. Parsing such a head again, and checking all that it says, takes longer than the request
itself. So the application may store a plan for a head. A later request with the same
bytes and the same client is not parsed: it gets the parsed head and the plan.

A plan is only a shortcut. The application checks that the plan still applies, and otherwise
processes the parsed head as if it were new. A head that was not stored is always parsed.
"""

import re
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from holdfast.http_api.wire.aiohttp_parser import RawRequestMessage

#: Longer heads are not stored.
MAX_HEAD_BYTES = 2048
#: At most this many heads are stored in total, and for each client. With the parsed head and the
#: plan, a head uses at most 16 KiB of memory.
MAX_HEADS, MAX_HEADS_PER_CLIENT = 1024, 128
#: A head is stored when it arrives for the second time. At most this many heads that arrived once
#: are remembered, by their hash.
MAX_SEEN = 4096

#: The header whose value may differ between requests with the same stored head.
SEQUENCE = "Holdfast-Producer-Sequence"

_GET, _END = b"GET ", b"\r\n\r\n"
#: The value of the parameter `offset` in a request line. A number of 18 digits is below 2^63.
_OFFSET = re.compile(rb"[?&]offset=(0|[1-9][0-9]{0,17})(?=[& ])")
#: The value of the header SEQUENCE, as the clients of Holdfast write it.
_SEQUENCE = re.compile(rb"\r\n%b: ([0-9]{1,19})(?=\r\n)" % SEQUENCE.encode())
#: The framing of a body that is not simply Content-Length bytes, and what changes the connection.
_NOT_STORED = ("Transfer-Encoding", "Expect", "Upgrade", "Content-Encoding")


class KnownHead:
    """A parsed head, and the plan for requests with this head."""

    __slots__ = ("body_bytes", "client", "key", "message", "plan", "varies")

    def __init__(
        self, client: str, key: bytes, message: "RawRequestMessage", *, varies: bool
    ) -> None:
        self.client = client
        self.key = key
        """The bytes of the head, without the value that may differ."""
        self.message = message
        self.varies = varies
        """Whether one value of the head may differ: the parameter `offset`, or SEQUENCE."""
        self.body_bytes = int(message.headers.get("Content-Length", 0))
        self.plan: Any = None
        """Made by the application for requests with this head; None before it is stored."""


class Match(msgspec.Struct):
    """A stored head that the received bytes begin with."""

    head: KnownHead
    end: int
    """Where the head ends and the body begins. The body ends where the bytes end."""
    offset: int | None
    """The value of the parameter `offset`; None if the query has no such parameter."""
    target: str | None
    """The target of the request, as it was sent; None if it is that of the stored head."""
    sequence: str | None = None
    """The value of the header SEQUENCE; None if the stored head has the headers of the request."""


class HeadCache:
    """The stored heads of all clients. Belongs to the event loop."""

    def __init__(self) -> None:
        self._of: dict[str, dict[bytes, KnownHead]] = {}
        self._count = 0
        self._seen: set[int] = set()

    def __len__(self) -> int:
        return self._count

    def find(self, client: str, data: bytes) -> Match | None:
        """Return the stored head of `client` if `data` is exactly one whole request with it."""
        heads = self._of.get(client)
        if heads is None:
            return None
        end = data.find(_END, 0, MAX_HEAD_BYTES) + len(_END)
        key, place = _split(data, end)
        known = heads.get(key)
        if known is None or len(data) != end + known.body_bytes:
            return None
        if known.varies is not (place is not None):
            return None
        if place is None:
            return Match(known, end, None, None)
        if not data.startswith(_GET):
            return Match(known, end, None, None, data[place].decode("ascii"))
        target = data[len(_GET) : data.find(b" ", place.stop)].decode("ascii")
        return Match(known, end, int(data[place]), target)

    def consider(self, client: str, data: bytes, message: "RawRequestMessage") -> KnownHead | None:
        """Return a head that may be stored with a plan, or None.

        `data` is exactly one whole request, and `message` its parsed head. A head is returned when
        it arrives for the second time.
        """
        end = data.find(_END, 0, MAX_HEAD_BYTES) + len(_END)
        headers = message.headers
        if end < len(_END) or message.should_close or any(name in headers for name in _NOT_STORED):
            return None
        key, place = _split(data, end)
        if not key.isascii() or len(headers.getall(SEQUENCE, ())) > 1:
            return None
        seen = hash((client, key))
        if seen not in self._seen:
            if len(self._seen) >= MAX_SEEN:
                self._seen.clear()
            self._seen.add(seen)
            return None
        return KnownHead(client, key, message, varies=place is not None)

    def store(self, head: KnownHead, plan: object) -> None:
        """Store a head with its plan. If there are too many heads, the oldest one is dropped: of
        the same client if this client has too many, otherwise of the client whose first head is the
        oldest."""
        head.plan = plan
        heads = self._of.setdefault(head.client, {})
        if head.key in heads:
            heads[head.key] = head
            return
        if len(heads) >= MAX_HEADS_PER_CLIENT:
            self._drop_oldest(head.client)
        elif self._count >= MAX_HEADS:
            self._drop_oldest(next(iter(self._of)))
            heads = self._of.setdefault(head.client, {})
        heads[head.key] = head
        self._count += 1

    def _drop_oldest(self, client: str) -> None:
        heads = self._of[client]
        if heads:
            del heads[next(iter(heads))]
            self._count -= 1
        if not heads:
            del self._of[client]


def _split(data: bytes, end: int) -> tuple[bytes, slice | None]:
    """Return the key of the head that ends at `end`, and where it has the value that may differ.
    That is None if it has none."""
    if data.startswith(_GET):
        found = _OFFSET.search(data, 0, data.find(b"\r\n"))
    else:
        found = _SEQUENCE.search(data, 0, end)
    if found is None:
        return data[:end], None
    start, stop = found.span(1)
    return data[:start] + data[stop:end], slice(start, stop)
