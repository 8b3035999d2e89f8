"""Requests that publish messages without a producer."""

from collections.abc import Sequence

import msgspec

from holdfast.client.errors import BadReply
from holdfast.client.produce.identities import IdentityPool, ProducerIdentity
from holdfast.client.produce.publish_queue import PublishOptions
from holdfast.client.read.results import PublishResult
from holdfast.client.transport.requests import MSGPACK, Transport, check_name
from holdfast.client.transport.retry import RetryPolicy

#: The beginning of {"messages": [...]} in msgpack. The length of the array follows, in two bytes.
_BODY_HEAD = b"\x81\xa8messages\xdc"


class _Entry(msgspec.Struct):
    queue: int
    offset: int
    message_id: str


class PublishReply(msgspec.Struct):
    """The reply to a publish: one entry per batch or message."""

    results: list[_Entry]
    durable: bool


class PublishRequest:
    """Up to 65,535 encoded messages to one topic, published without a producer.

    The request has a producer id and a
    sequence number, and every attempt sends the same bytes, so the messages are stored at most
    once. The broker checks all messages before it stores any of them. It stores the messages that
    have no queue and no key in one queue, and uses the next queue for the next request.
    """

    def __init__(self, topic: str, options: PublishOptions, encoded: Sequence[bytes]) -> None:
        self.topic = check_name("topic", topic)
        self._count = len(encoded)
        self._params = options.params
        self._body = b"".join((_BODY_HEAD, self._count.to_bytes(2, "big"), *encoded))

    async def send(
        self, transport: Transport, identity: ProducerIdentity, retry: RetryPolicy | None = None
    ) -> list[PublishResult]:
        """Send the request and return the messages' results, in order.

        Raises the errors of Transport.request. If the broker refused the request, no message is
        stored. After any other error, all, some or none of the messages may be stored.
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


async def publish_single(
    transport: Transport,
    identities: IdentityPool,
    topic: str,
    options: PublishOptions,
    encoded: bytes,
) -> PublishResult:
    """Publish one message in its own request. Raises the errors of PublishRequest.send."""
    request = PublishRequest(topic, options, (encoded,))
    identity = identities.acquire(topic)
    (result,) = await request.send(transport, identity)
    identities.release(topic, identity)
    return result
