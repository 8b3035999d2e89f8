"""Begin AMQP over a WebSocket: check the caller, then let AMQP take over the connection."""

import asyncio
from typing import TYPE_CHECKING

from holdfast.commitlog.lazy_import import import_at_first_use, is_imported
from holdfast.http_api.access.authorization import UNKNOWN
from holdfast.http_api.access.grants import Principal
from holdfast.http_api.routing.call import Call, NoParams
from holdfast.http_api.wire.aiohttp_parser import hdrs
from holdfast.http_api.wire.problems import Problem
from holdfast.http_api.wire.reply import Reply

if TYPE_CHECKING:
    from holdfast.http_api.wire import websocket
else:
    import_at_first_use(globals(), websocket="holdfast.http_api.wire.websocket")


async def open_amqp(call: Call[NoParams]) -> Reply:
    """Open a WebSocket for AMQP 1.0. The handshake must offer the sub-protocol `amqp`.

    A token or a client certificate authenticates the caller for SASL EXTERNAL. A caller without
    them authenticates with another mechanism of SASL. A wrong token is refused here.
    """
    make_amqp = call.http.amqp
    if make_amqp is None:
        raise Problem(
            "not-found", "this broker does not serve AMQP over WebSocket; turn on amqp.websocket"
        )
    request = call.request
    if not is_imported(websocket):
        # Reading an attribute imports the module, which takes tens of milliseconds.
        await asyncio.to_thread(getattr, websocket, "accept_handshake")
    protocol, answer = websocket.accept_handshake(request)
    principal = _caller(call)
    call.http.access.check_page(
        request.headers,
        call.http.pages,
        is_by_certificate=principal is not None and hdrs.AUTHORIZATION not in request.headers,
    )

    def take_over(raw: asyncio.Transport | None) -> "websocket.WebSocketConnection":
        amqp = make_amqp(principal, request.peer)
        shared = call.http.connections
        return websocket.WebSocketConnection(protocol, answer, amqp, shared, request.peer, raw)

    reply = Reply(101, "")
    reply.upgrade = take_over
    return reply


def _caller(call: Call[NoParams]) -> Principal | None:
    """Return the authenticated caller, or None. Raises Denied for a wrong token."""
    if call.principal is not UNKNOWN:
        return call.principal
    if hdrs.AUTHORIZATION in call.request.headers:
        _, refusal = call.http.access.identify(call.request)
        if refusal is not None:
            raise refusal
    return None
