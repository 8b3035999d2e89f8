"""Messages that are published one by one, and the request that takes one or several of them.

A request is msgpack under an identity: sent again it is not stored twice. The broker checks all of
its messages before it stores any, and puts those that name no queue and no key into one queue
together, the next one at each request.
"""

from collections.abc import Sequence

from holdfast.client.errors import BadReply
from holdfast.client.message import PublishResult
from holdfast.client.requests import MSGPACK, Requests, checked_name
from holdfast.client.retry import RetryPolicy
from holdfast.client.sender import IdentityPool, ProducerIdentity, PublishReply

#: {"messages": [...]} up to how many there are, which follows in two bytes.
_BODY_HEAD = b"\x81\xa8messages\xdc"


class PublishRequest:
    """At most 65,535 messages to one topic, as they were encoded. `durability` is the topic's
    own for None. Every try of it is the same request, so it is stored once at most."""

    def __init__(self, topic: str, durability: str | None, encoded: Sequence[bytes]) -> None:
        self.topic = checked_name("topic", topic)
        self._count = len(encoded)
        self._params = None if durability is None else {"durability": durability}
        self._body = b"".join((_BODY_HEAD, self._count.to_bytes(2, "big"), *encoded))

    async def send(
        self, transport: Requests, identity: ProducerIdentity, retry: RetryPolicy | None = None
    ) -> list[PublishResult]:
        """Send it and return the messages' results, in their order.

        Raises as Requests.request does: of a request that was refused nothing is stored, of one
        that failed otherwise all may be, a part, or nothing.
        """
        reply = await transport.request(
            "POST",
            f"/v1/topics/{self.topic}/messages",
            params=self._params,
            headers={
                "Content-Type": MSGPACK,
                "Holdfast-Producer-Id": str(identity.producer_id),
                "Holdfast-Producer-Epoch": "0",
                "Holdfast-Producer-Sequence": str(identity.next_sequence),
            },
            body=self._body,
            retry=retry,
        )
        published = reply.json(PublishReply)
        if len(published.results) != self._count:
            raise BadReply(
                reply.url, f"{len(published.results)} results for {self._count} messages"
            )
        durable = published.durable
        return [
            PublishResult(entry.queue, entry.offset, entry.message_id, durable)
            for entry in published.results
        ]


async def publish_alone(
    transport: Requests,
    identities: IdentityPool,
    topic: str,
    durability: str | None,
    encoded: bytes,
) -> PublishResult:
    """Publish one message in a request of its own. Raises as PublishRequest.send."""
    request = PublishRequest(topic, durability, (encoded,))
    identity = identities.take(topic)
    (result,) = await request.send(transport, identity)
    identities.give_back(topic, identity)
    return result
