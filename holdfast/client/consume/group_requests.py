"""The requests about groups with leases: settings, receiving, settling."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from holdfast.client.consume.delivery import DeliveredMessage, Status, Verb
from holdfast.client.transport.requests import JSON, MSGPACK, Reply, Transport, check_name
from holdfast.client.transport.retry import RetryPolicy

WeightedTopics = Mapping[str, int | Mapping[str, Any]]
"""Topics of a group, each with its weight or with {"weight": ..., "filter": ...}."""

Topics = str | Sequence[str] | WeightedTopics

T = TypeVar("T")


class ReceiveReply(msgspec.Struct):
    """The msgpack reply to a receive."""

    messages: list[DeliveredMessage]
    available: int = 0
    active: bool = True


class _Result(msgspec.Struct):
    status: Status


class _SettleReply(msgspec.Struct):
    results: list[_Result]


def group_path(group: str) -> str:
    """Return a group's path. Raises ValueError for an invalid name."""
    return f"/v1/groups/{check_name('group', group)}"


def encode_topics(topics: Topics) -> dict[str, Mapping[str, Any]]:
    """Return topics in the form of a PUT request. Raises ValueError for an invalid name."""
    if isinstance(topics, str):
        topics = [topics]
    if not isinstance(topics, Mapping):
        topics = dict.fromkeys(topics, 1)
    return {
        check_name("topic", topic): {"weight": terms} if isinstance(terms, int) else terms
        for topic, terms in topics.items()
    }


def drop_none(**fields: T | None) -> dict[str, T]:
    """Return the fields that are not None."""
    return {name: value for name, value in fields.items() if value is not None}


async def send_json(
    transport: Transport,
    method: str,
    path: str,
    body: object,
    *,
    wait_s: float = 0.0,
    retry: RetryPolicy | None = None,
) -> Reply:
    """Send a request with a JSON body that the broker may execute twice without harm."""
    return await transport.request(
        method,
        path,
        headers={"Content-Type": JSON, "Accept": JSON},
        body=msgspec.json.encode(body),
        wait_s=wait_s,
        retry=retry,
    )


async def put_group(
    transport: Transport, group: str, settings: Mapping[str, Any], retry: RetryPolicy | None = None
) -> dict[str, Any]:
    """Create or change a group; return its description."""
    reply = await send_json(transport, "PUT", group_path(group), settings, retry=retry)
    return reply.json(dict[str, Any])


async def describe_group(
    transport: Transport, group: str, retry: RetryPolicy | None = None
) -> dict[str, Any]:
    """Return a group's description. Raises UnknownGroup."""
    reply = await transport.request("GET", group_path(group), retry=retry)
    return reply.json(dict[str, Any])


async def receive(
    transport: Transport,
    group: str,
    fields: Mapping[str, Any],
    *,
    wait_ms: int,
    retry: RetryPolicy | None = None,
) -> ReceiveReply:
    """Receive once. `fields` holds the JSON fields of the request. A request with an `attempt_id`
    can be retried safely: if its reply was lost, the retry returns that reply."""
    is_repeatable = "attempt_id" in fields or bool(fields.get("browse"))
    reply = await transport.request(
        "POST",
        f"{group_path(group)}/receive",
        headers={"Content-Type": JSON, "Accept": MSGPACK},
        body=msgspec.json.encode({**fields, "wait_ms": wait_ms}),
        wait_s=wait_ms / 1000,
        safe=is_repeatable,
        retry=retry,
    )
    return reply.msgpack(ReceiveReply)


async def settle(
    transport: Transport,
    group: str,
    verb: Verb,
    receipts: Sequence[str],
    *,
    delay_ms: int | None = None,
    lease_ms: int | None = None,
    cumulative: bool = False,
    used_ms: float | None = None,
    retry: RetryPolicy | None = None,
) -> list[Status]:
    """Settle or extend several receipts with one verb, durably; return the status of each."""
    body = drop_none(
        receipts=receipts,
        delay_ms=delay_ms,
        lease_ms=lease_ms,
        used_ms=used_ms,
        cumulative=cumulative or None,
    )
    reply = await send_json(transport, "POST", f"{group_path(group)}/{verb}", body, retry=retry)
    return [each.status for each in reply.json(_SettleReply).results]


async def leave(
    transport: Transport, group: str, member: str, retry: RetryPolicy | None = None
) -> None:
    """Remove a member from a group; its messages are released."""
    await send_json(
        transport, "POST", f"{group_path(group)}/leave", {"member": member}, retry=retry
    )
