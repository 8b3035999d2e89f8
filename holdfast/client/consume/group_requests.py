"""The requests about groups with leases: settings, receiving, settling, redriving."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from holdfast.client.consume.delivery import DeliveredMessage
from holdfast.client.errors import ApiError, HoldfastError
from holdfast.client.transport.requests import (
    JSON,
    MSGPACK,
    Reply,
    Transport,
    check_name,
    drop_none,
)
from holdfast.client.transport.retry import RetryPolicy
from holdfast.client.values import Status, Topics, Verb

#: How long the broker may take for one redrive, in addition to the normal request timeout.
_REDRIVE_WAIT_S = 20.0
#: One redrive requests at most this many dead letters. The broker's own limit is higher, unless an
#: operator has lowered it.
_REDRIVE_LIMIT = 1_000


@dataclass(eq=False, repr=False)
class NoDeadLetters(HoldfastError):
    """The group has no dead-letter topic, or only stores offsets."""

    group: str

    def __str__(self) -> str:
        return (
            f"{self.group} has no dead-letter topic; give it one with "
            f"`holdfast group create {self.group} --dead-letter-topic NAME`"
        )


class Redriven(NamedTuple):
    """How many dead letters were republished, by topic. `stuck` is the number of dead letters that
    stayed, because they do not record their original topic, or the group does not subscribe to it.
    """

    dead_letter_topic: str
    topics: dict[str, int]
    stuck: int

    @property
    def total(self) -> int:
        return sum(self.topics.values())


class _Result(msgspec.Struct):
    status: Status


class SettleReply(msgspec.Struct):
    """The statuses of receipts, in the order of the request."""

    results: list[_Result]

    @property
    def statuses(self) -> list[Status]:
        return [each.status for each in self.results]


class ReceiveReply(msgspec.Struct):
    """The msgpack reply to a receive request. `outcomes` has one entry for each in `settle`."""

    messages: list[DeliveredMessage]
    available: int = 0
    active: bool = True
    outcomes: list[SettleReply] = []


class SeekReply(msgspec.Struct):
    """The reply to a seek: the new offsets of each topic, by queue."""

    offsets: dict[str, dict[int, int]]


class _RedriveReply(msgspec.Struct):
    dead_letter_topic: str
    topics: dict[str, int]
    stuck: int
    more: bool


class GroupRequests:
    """The requests about one group. `retry` replaces the transport's policy. The constructor raises
    ValueError for an invalid group name."""

    def __init__(self, transport: Transport, group: str, retry: RetryPolicy | None = None) -> None:
        self.path = f"/v1/groups/{check_name('group', group)}"
        self._transport = transport
        self._group = group
        self._retry = retry

    async def post(self, action: str, body: object, wait_s: float = 0.0) -> Reply:
        """POST a request with a JSON body that the broker may execute twice without harm."""
        return await self._send_json("POST", f"{self.path}/{action}", body, wait_s)

    async def put(self, settings: Mapping[str, Any]) -> None:
        """Create or change the group."""
        await self._send_json("PUT", self.path, settings)

    async def _send_json(self, method: str, path: str, body: object, wait_s: float = 0.0) -> Reply:
        headers = {"Content-Type": JSON, "Accept": JSON}
        data = msgspec.json.encode(body)
        return await self._transport.request(
            method, path, headers=headers, body=data, wait_s=wait_s, retry=self._retry
        )

    async def describe(self) -> dict[str, Any]:
        """Return the group's description. Raises UnknownGroup."""
        reply = await self._transport.request("GET", self.path, retry=self._retry)
        return reply.json(dict[str, Any])

    async def receive(self, fields: Mapping[str, Any], wait_ms: int) -> ReceiveReply:
        """Receive once. `fields` holds the JSON fields of the request. With an `attempt_id` the
        request can be retried safely: if a reply was lost, the retry returns the same reply."""
        reply = await self._transport.request(
            "POST",
            f"{self.path}/receive",
            headers={"Content-Type": JSON, "Accept": MSGPACK},
            body=msgspec.json.encode({**fields, "wait_ms": wait_ms}),
            wait_s=wait_ms / 1000,
            safe="attempt_id" in fields or bool(fields.get("browse")),
            retry=self._retry,
        )
        return reply.msgpack(ReceiveReply)

    async def settle(
        self,
        verb: Verb,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        cumulative: bool = False,
        used_ms: float | None = None,
    ) -> list[Status]:
        """Settle or extend several receipts with one verb, durably; return the status of each."""
        body = drop_none(
            receipts=receipts,
            delay_ms=delay_ms,
            lease_ms=lease_ms,
            used_ms=used_ms,
            cumulative=cumulative or None,
        )
        return (await self.post(verb, body)).json(SettleReply).statuses

    async def leave(self, member: str) -> None:
        """Remove a member from the group; its messages are released."""
        await self.post("leave", {"member": member})

    async def redrive(self, most: int | None, *, dry_run: bool = False) -> Redriven:
        """Let the broker republish the group's dead letters, at most `most`, in the order of each
        key. With `dry_run` only count them. If a dead letter cannot be republished, the redrive
        ends and raises the error."""
        check_name("group", redrive_group(self._group))
        if most is not None and most < 1:
            raise ValueError("max_messages is at least 1; leave it out to redrive all dead letters")
        topics: Counter[str] = Counter()
        while True:
            body: dict[str, object] = {"dry_run": dry_run}
            if most is not None:
                body["limit"] = min(most - topics.total(), _REDRIVE_LIMIT)
            try:
                reply = (await self.post("redrive", body, _REDRIVE_WAIT_S)).json(_RedriveReply)
            except ApiError as error:
                if error.type in ("no-dead-letters", "group-without-leases"):
                    raise NoDeadLetters(self._group) from error
                raise
            topics.update(reply.topics)
            # A dry run is only one request: a second request would count the same letters again.
            if dry_run or not reply.more or (most is not None and topics.total() >= most):
                return Redriven(reply.dead_letter_topic, dict(topics), reply.stuck)


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


def redrive_group(group: str) -> str:
    """Return the name of the group that records which letters were republished."""
    return f"{group}.redrive"


def dead_letter_filter(group: str) -> str:
    """Return the filter that selects a group's dead letters."""
    return f"`holdfast-dead-group` = '{group}'"


def dead_letter_topic(group: str, described: Mapping[str, object]) -> str:
    """Return the dead-letter topic from a group's description. Raises NoDeadLetters."""
    config = described.get("config")
    topic = config.get("dead_letter_topic") if isinstance(config, Mapping) else None
    if not isinstance(topic, str):
        raise NoDeadLetters(group)
    return topic
