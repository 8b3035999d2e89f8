"""The node `/management`: the requests of the HTTP API over AMQP.

    request -> RequestTarget -> the application of the HTTP API -> ReplySource -> reply

A request has the method in `subject`, the path with its query in `to`, and JSON in its body. Its
`reply-to` is `$me` (the receiving link with the name of the request's link), or the target address,
or the name, of a receiving link of the same connection. The reply has the status in `subject`, the
headers in the application-properties, and the request's correlation-id, or else its message-id.
"""

import asyncio
import logging
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from typing import Any, NamedTuple

from holdfast.amqp.conditions_of import amqp_error, publish_outcome
from holdfast.amqp.engine.incoming_link import Delivery, IncomingLink
from holdfast.amqp.engine.outgoing_link import OutgoingLink, Sent
from holdfast.amqp.engine.session import Session
from holdfast.amqp.messages.sections import Kind, Sections
from holdfast.amqp.nodes.node import Answer, Peer, ReplyLink
from holdfast.amqp.wire import performatives
from holdfast.amqp.wire.conditions import (
    INVALID_FIELD,
    NOT_FOUND,
    NOT_IMPLEMENTED,
    RESOURCE_LIMIT_EXCEEDED,
    AmqpError,
    LinkFailed,
)
from holdfast.amqp.wire.performatives import Accepted, Attach, Properties, encode_composite
from holdfast.amqp.wire.types import Described, Symbol, ULong, encode
from holdfast.http_api.wire.reply import Reply
from holdfast.http_api.wire.request import Peer as HttpPeer

_logger = logging.getLogger(__name__)

#: The most requests of one link that are being answered, with those that the client may still send.
MAX_REQUESTS = 16
#: The largest request.
MAX_REQUEST_BYTES = 1024 * 1024
#: The most receiving links of `/management` in one connection. Requests need a receiving link, so
#: the limit applies to sending links too: see `open_requests`.
MAX_REPLY_LINKS = 8
#: A reply that the client does not take within this time is dropped.
REPLY_WAIT_S = 30.0
#: The value of `reply-to` for the receiving link that has the name of the request's link.
_ME = "$me"
#: The property with which a client attaches two links of the same name as a pair.
_PAIRED = Symbol("paired")
_SECOND, _SETTLED = 1, 1


class _Request(NamedTuple):
    method: str
    target: str
    body: bytes
    reply_to: str
    correlation_id: Any


def open_requests(peer: Peer, session: Session, link: IncomingLink) -> "tuple[Any, Attach]":
    """Return the node of a link that sends requests, and the answer to its attach.

    Raises LinkFailed.
    """
    answer = peer.parts.answer
    if answer is None:
        raise LinkFailed(NOT_IMPLEMENTED, "this broker has no HTTP API")
    link.max_message_bytes = MAX_REQUEST_BYTES
    return RequestTarget(peer, session, link, answer), _attach(link)


def open_replies(peer: Peer, link: OutgoingLink) -> "tuple[Any, Attach]":
    """Return the node of a link that receives replies, and the answer to its attach.

    Raises LinkFailed if the connection has too many such links.
    """
    if len(peer.replies) >= MAX_REPLY_LINKS:
        raise LinkFailed(
            RESOURCE_LIMIT_EXCEEDED,
            f"a connection may have at most {MAX_REPLY_LINKS} links that receive replies",
        )
    return ReplySource(peer, link), _attach(link)._replace(snd_settle_mode=_SETTLED)


def _attach(link: IncomingLink | OutgoingLink) -> Attach:
    """Return the answer to the attach of a link of `/management`, with the client's addresses."""
    given = link.remote
    assert given is not None
    source, target = given.source, given.target
    is_paired = bool((given.properties or {}).get(_PAIRED))
    is_incoming = isinstance(link, IncomingLink)
    return Attach(
        link.name,
        link.handle,
        link.role,
        given.snd_settle_mode,
        given.rcv_settle_mode,
        None if source is None else performatives.Source(source.address),
        performatives.Target(target.address) if isinstance(target, performatives.Target) else None,
        initial_delivery_count=None if is_incoming else 0,
        max_message_size=MAX_REQUEST_BYTES if is_incoming else None,
        properties={_PAIRED: True} if is_paired else None,
    )


class RequestTarget:
    """A link on which the client sends requests. Implements Target.

    Its requests end with the link that receives their replies, not with this link.
    """

    def __init__(self, peer: Peer, session: Session, link: IncomingLink, answer: Answer) -> None:
        self._peer, self._session, self._link, self._answer = peer, session, link, answer
        attach = link.remote
        self._settles_second = attach is not None and attach.rcv_settle_mode == _SECOND
        self._running: set[asyncio.Task[None]] = set()
        self._is_stopped = False

    def start(self) -> None:
        """Grant the first credit."""
        self._renew_credit()

    def deliveries_arrived(self, deliveries: Sequence[Delivery]) -> None:
        """Begin to answer requests. Reject what is no request, or has no link for the reply."""
        for each in deliveries:
            if self._is_stopped:
                return
            try:
                request = _read(each)
                replies = _find(self._peer.replies, self._link.name, request.reply_to)
            except AmqpError as error:
                self._reject(each, error)
                continue
            self._settle(each, Accepted())
            task = replies.start(partial(self._serve, request, replies))
            self._running.add(task)
            task.add_done_callback(self._end)
        self._renew_credit()

    def sender_settled(self, deliveries: Sequence[tuple[int, Delivery]], state: Any) -> None:
        """The broker keeps nothing of a request that has its outcome."""

    def stop(self, *, is_closed: bool) -> None:
        """Take no further request. The replies to the others follow."""
        self._is_stopped = True

    async def finish(self) -> None:
        """Return once all requests are answered, or their replies are not wanted any more."""
        while self._running:
            await asyncio.wait(self._running)

    async def _serve(self, request: _Request, replies: ReplyLink) -> None:
        """Answer one request, and send the reply."""
        peer = self._peer
        caller = HttpPeer(peer.client, peer.remote, None, peer.principal)
        async with self._answer(caller, request.method, request.target, request.body) as reply:
            is_sent = False
            try:
                is_sent = await replies.send(_encode(request, reply))
            finally:
                if not is_sent:
                    reply.on_undelivered()

    def _end(self, task: "asyncio.Task[None]") -> None:
        self._running.discard(task)
        self._renew_credit()
        self._peer.flush()

    def _renew_credit(self) -> None:
        link, room = self._link, MAX_REQUESTS - len(self._running)
        if not self._is_stopped and link.is_attached and link.credit < room:
            link.grant(room)

    def _settle(self, delivery: Delivery, outcome: Any) -> None:
        if not delivery.is_settled and self._link.is_attached:
            settled = not self._settles_second
            self._session.dispose(delivery.id, delivery.id, outcome, settled=settled)

    def _reject(self, delivery: Delivery, error: AmqpError) -> None:
        """Reject a request. If its sender wants no outcome, detach the link with the error."""
        self._settle(delivery, publish_outcome(error))
        if delivery.is_settled:
            self._peer.detach(self._link, amqp_error(error, LinkFailed))


class ReplySource:
    """A link on which the client receives replies. Implements Source and ReplyLink."""

    def __init__(self, peer: Peer, link: OutgoingLink) -> None:
        target = None if link.remote is None else link.remote.target
        address = target.address if isinstance(target, performatives.Target) else None
        self.name = link.name
        self.address = address if isinstance(address, str) else None
        self._peer, self._link = peer, link
        self._running: set[asyncio.Task[None]] = set()
        self._waiting = 0
        """How many replies wait for credit, for the window, or for the socket."""
        self._changed = asyncio.Event()
        peer.replies.append(self)

    def start(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> "asyncio.Task[None]":
        """Run `serve`, which answers a request. It is cancelled when the link ends."""
        task = asyncio.create_task(self._run(serve), name="amqp-request")
        self._running.add(task)
        task.add_done_callback(self._running.discard)
        return task

    async def _run(self, serve: Callable[[], Coroutine[Any, Any, None]]) -> None:
        try:
            await serve()
        except Exception as error:
            self._peer.detach(self._link, amqp_error(error, LinkFailed))
            self._peer.flush()

    async def send(self, message: bytes) -> bool:
        """Send a reply as soon as the client takes it. Return False if the client did not take it
        within REPLY_WAIT_S. Raises LinkFailed if it is larger than the client accepts."""
        self._waiting += 1
        try:
            async with asyncio.timeout(REPLY_WAIT_S):
                while not (self._link.sendable and self._peer.has_room):
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            _logger.warning("dropped a reply to %s, which gave no credit", self._peer.client)
            return False
        finally:
            self._waiting -= 1
        self._link.send(message, settled=True)
        self._finish_drain()
        self._peer.flush()
        return True

    def credit_changed(self) -> None:
        """The client changed the credit of the link, or asks for a drain."""
        self._changed.set()
        self._finish_drain()

    def room_changed(self) -> None:
        """The window of the session or the socket has room again."""
        self._changed.set()
        self._finish_drain()

    def disposed(
        self, deliveries: Sequence[tuple[int, Sent]], state: Any, *, is_settled: bool
    ) -> None:
        """Replies are settled when they are sent."""

    def stop(self, *, is_closed: bool) -> None:
        """Cancel the requests whose replies this link would receive."""
        if self in self._peer.replies:
            self._peer.replies.remove(self)
        for each in self._running:
            each.cancel()

    async def finish(self) -> None:
        """Return once the cancelled requests have ended."""
        if self._running:
            await asyncio.wait(self._running)

    def _finish_drain(self) -> None:
        """Give the unused credit back, if the client asks for that and no reply waits."""
        link = self._link
        is_busy = link.is_partly_sent or (self._waiting and link.credit)
        if link.is_draining and not is_busy:
            link.drained()
            self._peer.flush()


def _find(links: Sequence[ReplyLink], name: str, reply_to: str) -> ReplyLink:
    """Return the link that receives the reply to a request of the link `name`.

    Raises AmqpError (amqp:not-found). Replies do not go to temporary nodes.
    """
    if reply_to == _ME:
        found = [each for each in links if each.name == name]
    else:
        found = [each for each in links if reply_to in (each.address, each.name)]
    if not found:
        raise AmqpError(
            NOT_FOUND,
            f"no link from /management receives replies for {reply_to[:200]!r}: attach one with "
            "this address as its target, or with the name of the sending link and reply-to $me",
        )
    return found[-1]


def _read(delivery: Delivery) -> _Request:
    """Return the request in a delivery. Raises AmqpError if it is not one."""
    if delivery.format or delivery.state is not None:
        raise AmqpError(NOT_IMPLEMENTED, "a request is a plain message, without a transaction")
    sections = Sections(delivery.message)
    delivery.message = b""
    properties = sections.properties()
    if not isinstance(properties.reply_to, str):
        raise AmqpError(INVALID_FIELD, "a request needs `reply-to`, the address for its reply")
    body = sections.only_text()
    if body is None and (sections.body[0][0] is not Kind.AMQP_VALUE or sections.body_value()):
        raise AmqpError(INVALID_FIELD, "the body of a request is one binary value, or a string")
    own, message_id = properties.correlation_id, properties.message_id
    return _Request(
        properties.subject or "",
        properties.to if isinstance(properties.to, str) else "",
        body or b"",
        properties.reply_to,
        message_id if own is None else own,
    )


def _encode(request: _Request, reply: Reply) -> bytes:
    """Return a reply as a message."""
    body = b"" if request.method == "HEAD" else b"".join(reply.parts)
    properties = Properties(
        to=request.reply_to,
        subject=str(reply.status),
        correlation_id=request.correlation_id,
        content_type=Symbol(reply.media_type) if reply.media_type else None,
    )
    headers = {str(name): str(value) for name, value in reply.headers}
    parts = [encode_composite(properties)]
    if headers:
        parts.append(encode(Described(ULong(Kind.APPLICATION_PROPERTIES), headers)))
    return b"".join((*parts, encode(Described(ULong(Kind.DATA), body))))
