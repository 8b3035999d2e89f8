"""The connected clients, and the clients that are held back."""

import re
from bisect import bisect_right
from dataclasses import dataclass
from time import monotonic
from typing import Literal

from msgspec import convert

from holdfast.consumequeue.slices import in_slices
from holdfast.http_api.endpoints.topics import PageParams
from holdfast.http_api.limits.token_buckets import PublishRate, RateLimit
from holdfast.http_api.routing.call import Call
from holdfast.http_api.routing.params import invalid, text, whole
from holdfast.http_api.schemas.inspection import (
    AmqpSessionReply,
    AmqpSessionsReply,
    ClientReply,
    ConnectionsReply,
    HeldBackReply,
)
from holdfast.http_api.wire.reply import Reply

#: The reply names at most this many clients that are held back.
MOST_HELD_BACK = 100
#: At most this many remembered clients are examined in one event loop iteration, some milliseconds.
CLIENTS_A_TURN = 5000


@dataclass(frozen=True, slots=True)
class SessionsParams:
    """The query of a request for sessions."""

    client: str | None = text("Only sessions of this client.", maximum=64)
    limit: int = whole(
        "Most sessions on the page.", minimum=1, maximum="max_page_size", default="page_size"
    )
    after: str | None = text(
        "Begin after this session: the `next` of the previous page.", maximum=32
    )


async def list_sessions(call: Call[SessionsParams]) -> Reply:
    """List the sessions of AMQP with their links, credit and windows, one page at a time.

    Also lists the sessions of connections over WebSockets.
    """
    params = call.params
    found, has_more = call.http.amqp_sessions(
        params.client, _parse_place(params.after), params.limit
    )
    sessions = [convert(each, AmqpSessionReply, from_attributes=True) for each in found]
    last = sessions[-1] if has_more else None
    after = None if last is None else f"{last.connection}:{last.channel}"
    return call.reply(AmqpSessionsReply(sessions, after))


def _parse_place(after: str | None) -> tuple[int, int]:
    if after is None:
        return 0, -1
    found = re.fullmatch(r"([0-9]{1,18}):([0-9]{1,5})", after, re.ASCII)
    if found is None:
        raise invalid("after", after, "the `next` of a page")
    return int(found[1]), int(found[2])


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
