"""One request on its way through its endpoint: what was asked, and how to answer it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from aiohttp import hdrs
from multidict import MultiMapping

from holdfast.consumequeue.errors import UnknownQueue
from holdfast.consumequeue.topics import Topic, check_name
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.codecs import decode, encode
from holdfast.http_api.context import ApiContext
from holdfast.http_api.params import invalid, whole_number
from holdfast.http_api.reply import Headers, Reply
from holdfast.http_api.request import Request

P = TypeVar("P")
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class NoParams:
    """Query of an endpoint that takes none."""


@dataclass(slots=True)
class Call(Generic[P]):
    """A request whose query is read and whose reply's media type is settled.

    Nobody changes it. (Frozen, it would take five times as long to make.)
    """

    context: ApiContext
    request: Request
    path: Mapping[str, str]
    """The path's parameters, decoded, and not to be trusted."""
    params: P
    media: str
    principal: Principal
    """Who asks; what else they may do. That they may call this endpoint has been seen to."""

    @property
    def headers(self) -> MultiMapping[str]:
        """The request's headers; names in any case."""
        return self.request.headers

    @property
    def received_at(self) -> float:
        """When the request came, by the event loop's clock."""
        return self.request.connection.received_at

    @property
    def client(self) -> str:
        """Whose request it is, for limits that are counted per client address."""
        return self.request.connection.client

    # The path's names are checked before anything is looked up: they arrive percent-decoded,
    # slashes and all.

    def name_of_topic(self) -> str:
        """Return the path's topic name, whether or not there is one. Raises InvalidName."""
        return check_name("topic", self.path["topic"])

    def topic(self) -> Topic:
        """Return the topic that the path names. Raises InvalidName, UnknownTopic."""
        return self.context.store.topic(self.name_of_topic())

    def queue(self, topic: Topic) -> int:
        """Return the queue that the path names. Raises Problem, UnknownQueue."""
        given = self.path["queue"]
        queue = whole_number(given)
        if queue is None:
            raise invalid("queue", given, f"a whole number from 0 to {topic.queue_count - 1}")
        if queue >= topic.queue_count:
            raise UnknownQueue(topic.name, queue, topic.queue_count)
        return queue

    def group(self) -> str:
        """Return the group that the path names. Raises InvalidName."""
        return check_name("group", self.path["group"])

    async def body(self, type_: type[T]) -> T:
        """Return the body, JSON or msgpack, as `type_`. Raises Problem."""
        body = bytes(await self.context.bodies.read(self.request))
        return decode(self.headers.get(hdrs.CONTENT_TYPE, ""), body, type_)

    def reply(self, value: object, *, status: int = 200, headers: Headers = ()) -> Reply:
        """Return a reply in the media type that was asked for."""
        return Reply(status, self.media, (encode(self.media, value),), headers)
