"""A request as an endpoint gets it: its parameters, its body, and what is needed to reply."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

import msgspec
from multidict import MultiMapping

from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.routing.codecs import check_count, decode, encode
from holdfast.http_api.routing.context import ApiContext, HttpContext
from holdfast.http_api.routing.params import invalid, whole_number
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.body_reader import BodyLimit, overloaded
from holdfast.http_api.wire.reply import Headers, Reply
from holdfast.http_api.wire.request import Request

P = TypeVar("P")
T = TypeVar("T")


#: A larger body is not small for `has_small_body`. A smaller one is decoded in a fraction of a
#: millisecond, also if it is binary batches: then it has fewer than OFFLOAD_BATCHES batches.
SMALL_BODY_BYTES = 8 * 1024


@dataclass(frozen=True, slots=True)
class NoParams:
    """The query of an endpoint that has no query parameters."""


class OpenCall(msgspec.Struct, Generic[P]):
    """A request with its parsed query and the chosen media type of its reply. It can be answered
    without the storage.

    Treat as immutable. It is not `frozen=True`, because that makes construction five times slower.
    """

    http: HttpContext
    request: Request
    path: Mapping[str, str]
    """The parameters in the path, percent-decoded but not validated."""
    params: P
    media: str
    principal: Principal
    """The caller.

    The caller's permission to use this endpoint was checked before. The endpoint may check further
    permissions.
    """
    client_name: str
    """The client's token id, or its address if it has no token, for limits per client."""

    @property
    def headers(self) -> MultiMapping[str]:
        return self.request.headers

    @property
    def received_at(self) -> float:
        """When the request arrived, in seconds on the event loop's clock."""
        return self.request.source.received_at

    @property
    def client(self) -> str:
        """The client's address or IPv6 network, for limits that are counted per address."""
        return self.request.peer.client

    def count_memory(self, size: int) -> None:
        """Count `size` more bytes of memory for this request until it is answered.

        Raises Problem (overloaded) if a limit refuses them.
        """
        refused = self.request.source.count_more(size)
        if refused is not None:
            raise overloaded(refused, self.http.config)

    @property
    def has_small_body(self) -> bool:
        """Whether the body has arrived completely, is small, and is not compressed."""
        content = self.request.content
        return (
            content.is_eof()
            and content.total_bytes <= SMALL_BODY_BYTES
            and hdrs.CONTENT_ENCODING not in self.request.headers
        )

    async def body(self, type_: type[T]) -> T:
        """Read and decode the body (JSON or msgpack), and return it as `type_`. Raises Problem."""
        return self._decode(await self.http.bodies.read(self.request, self._limit), type_)

    def small_body(self, type_: type[T]) -> T:
        """Return the body as `body` does, if `has_small_body` is true."""
        return self._decode(self.http.bodies.read_arrived(self.request, self._limit), type_)

    @property
    def _limit(self) -> BodyLimit:
        size = self.http.config.max_control_request_bytes
        return BodyLimit("max_control_request_bytes", size)

    def _decode(self, received: bytes | memoryview, type_: type[T]) -> T:
        body, content_type = bytes(received), self.headers.get(hdrs.CONTENT_TYPE, "")
        check_count(content_type, body, self.http.config.max_values_per_request)
        return decode(content_type, body, type_)

    def reply(self, value: object, *, status: int = 200, headers: Headers = ()) -> Reply:
        """Return a reply with `value` in the media type that was chosen for the reply."""
        return Reply(status, self.media, (encode(self.media, value),), headers)


class Call(OpenCall[P]):
    """A request that the whole broker answers. Treat as immutable."""

    context: ApiContext

    # The names in the path are checked before any look-up. They are percent-decoded, so they may
    # contain slashes.

    def name_of_topic(self) -> str:
        """Return the topic name in the path. Raises InvalidName. The topic may be unknown."""
        return check_name("topic", self.path["topic"])

    def topic(self) -> Topic:
        """Return the topic whose name is in the path. Raises InvalidName, UnknownTopic."""
        return self.context.store.table.get(self.name_of_topic())

    def queue(self, topic: Topic) -> int:
        """Return the queue number in the path. Raises Problem, UnknownQueue."""
        given = self.path["queue"]
        queue = whole_number(given)
        if queue is None:
            raise invalid("queue", given, f"a whole number from 0 to {topic.queue_count - 1}")
        if queue >= topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        return queue

    def group(self) -> str:
        """Return the group name in the path. Raises InvalidName. The group may be unknown."""
        return check_name("group", self.path["group"])
