"""The connected clients, and the clients that are held back."""

from bisect import bisect_right
from time import monotonic
from typing import Literal

from holdfast.consumequeue.slices import in_slices
from holdfast.http_api.endpoints.topics import PageParams
from holdfast.http_api.limits.token_buckets import PublishRate, RateLimit
from holdfast.http_api.routing.call import Call
from holdfast.http_api.schemas.inspection import ClientReply, ConnectionsReply, HeldBackReply
from holdfast.http_api.wire.reply import Reply

#: The reply names at most this many clients that are held back.
MOST_HELD_BACK = 100
#: At most this many remembered clients are examined in one event loop iteration, some milliseconds.
CLIENTS_A_TURN = 5000


async def list_connections(call: Call[PageParams]) -> Reply:
    """List the clients that are connected, with their connections, by name, one page at a time.

    A client is held back while it is above a rate limit.
    """
    http, params = call.http, call.params
    amqp, unsent = http.amqp_use(), http.connections.unsent.bytes_of
    arriving = http.connections.arriving.bytes_of
    by_http = http.connections.limits.by_client
    names = sorted({*by_http, *amqp.connections})
    first = bisect_right(names, params.after or "")
    page = names[first : first + params.limit]
    clients = [
        ClientReply(
            name,
            by_http.get(name, 0),
            amqp.connections.get(name, 0),
            amqp.sessions.get(name, 0),
            amqp.links.get(name, 0),
            unsent.get(name, 0),
            arriving.get(name, 0),
        )
        for name in page
    ]
    held_back: list[HeldBackReply] = []
    if http.rate_limiter is not None:
        await _add_held_back(held_back, "requests", http.rate_limiter.waits)
    await _add_held_back(held_back, "publishes", call.context.publish_limiter.waits)
    is_last = first + len(page) == len(names)
    return call.reply(ConnectionsReply(clients, held_back, None if is_last else page[-1]))


async def _add_held_back(
    held_back: list[HeldBackReply],
    limit: Literal["requests", "publishes"],
    clients: RateLimit | PublishRate,
) -> None:
    now = monotonic()
    async for names in in_slices(clients.names(), CLIENTS_A_TURN):
        for name in names:
            wait_s = clients.wait_s(name, now)
            if wait_s > 0 and len(held_back) < MOST_HELD_BACK:
                held_back.append(HeldBackReply(name, limit, round(wait_s, 3)))
