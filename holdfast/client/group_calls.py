"""The requests about groups by name, as AsyncClient has them."""

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from holdfast.client import group_requests
from holdfast.client.delivery import ReceivedMessage, ReceiveResult, Status
from holdfast.client.group_offsets import read_offsets, write_offsets
from holdfast.client.group_requests import Topics, group_path, topic_terms
from holdfast.client.message import StoredOffsets
from holdfast.client.requests import JSON, Requests, checked_name

ResetTo = Literal["earliest", "latest"] | int
SeekTo = ResetTo | Mapping[str, Mapping[int, int]]


class GroupCalls:
    """What a client can ask about groups: those with leases, and those that store offsets."""

    _transport: Requests

    # -- groups with leases ------------------------------------------------------------------

    async def create_group(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        mode: str | None = None,
        engine: str | None = None,
        cost: str | None = None,
        start: str | None = None,
        lease_ms: int | None = None,
        max_in_flight: int | None = None,
        max_in_flight_per_member: int | None = None,
        max_in_flight_per_key: int | None = None,
        max_attempts: int | None = None,
        backoff_ms: Sequence[int] | None = None,
        dead_letter_topic: str | None = None,
        strict_leases: bool | None = None,
        member_ttl_ms: int | None = None,
    ) -> dict[str, Any]:
        """Create a group with leases, or change it; return it as it is in force.

        `topics`: a name, several, or each with its weight (`{"orders": 3}`) or with weight and
        filter (`{"orders": {"weight": 3, "filter": "paid,served"}}`). `mode` is "competing",
        "keyed", "single_active" or "exclusive"; `engine` "sfq" or "dwrr"; `cost` "count", "bytes"
        or "time"; `start` "earliest" or "latest", for queues of which no offset is stored. What
        is not given is the broker's default for a new group, and stays as it is in one that
        exists; topics that are given are all that it has then, and an empty `dead_letter_topic`
        means none. docs/groups.md says what each setting does. Raises GroupBusy when the mode is
        to change while messages are leased.
        """
        given = {
            "mode": mode,
            "start": start,
            "lease_ms": lease_ms,
            "max_in_flight": max_in_flight,
            "max_in_flight_per_member": max_in_flight_per_member,
            "max_in_flight_per_key": max_in_flight_per_key,
            "max_attempts": max_attempts,
            "backoff_ms": None if backoff_ms is None else list(backoff_ms),
            "strict_leases": strict_leases,
            "member_ttl_ms": member_ttl_ms,
        }
        fields: dict[str, Any] = {name: at for name, at in given.items() if at is not None}
        if dead_letter_topic is not None:
            fields["dead_letter_topic"] = dead_letter_topic or None
        fairness = {
            name: value for name, value in (("engine", engine), ("cost", cost)) if value is not None
        }
        if fairness:
            fields["fairness"] = fairness
        if topics is not None:
            fields["topics"] = topic_terms(topics)
        return await group_requests.put_group(self._transport, group, fields)

    async def delete_group(self, group: str) -> None:
        """Delete a group with all that is known of it. Its messages stay in their topics."""
        await self._transport.request(
            "DELETE", group_path(group), params={"confirm": group}, safe=False
        )

    async def seek_group(self, group: str, to: SeekTo) -> dict[str, dict[int, int]]:
        """Start again at an end of the queues, at a time in milliseconds, or at offsets by topic
        and queue; receipts of before are stale. Returns where each queue starts, by topic."""
        target: Any = to
        if isinstance(to, Mapping):
            target = {
                topic: {str(q): at for q, at in queues.items()} for topic, queues in to.items()
            }
        reply = await self._transport.request(
            "POST",
            f"{group_path(group)}/seek",
            headers={"Content-Type": JSON},
            body=msgspec.json.encode({"to": target}),
        )
        return reply.json(_SeekReply).offsets

    async def receive(
        self,
        group: str,
        member: str,
        max_messages: int = 32,
        wait_ms: int = 0,
        *,
        max_bytes: int | None = None,
        lease_ms: int | None = None,
        topics: Sequence[str] | None = None,
        filter: str | None = None,
        settled: bool = False,
        browse: bool = False,
        attempt_id: str | None = None,
    ) -> ReceiveResult:
        """Receive once: what there is for this member, or what comes within `wait_ms`.

        Each message is leased for `lease_ms`: settle its receipt by then, or extend it. With
        `settled` they are settled as they are sent; with `browse` they are only shown. A request
        that is tried again with the same `attempt_id` gets the answer that was lost. `consume`
        does all of this by itself.
        """
        given = {
            "member": member,
            "max_messages": max_messages,
            "max_bytes": max_bytes,
            "lease_ms": lease_ms,
            "topics": None if topics is None else list(topics),
            "filter": filter,
            "settled": settled or None,
            "browse": browse or None,
            "attempt_id": attempt_id,
        }
        ask = {name: value for name, value in given.items() if value is not None}
        reply = await group_requests.receive(self._transport, group, ask, wait_ms=wait_ms)
        messages: list[ReceivedMessage] = [each.as_received() for each in reply.messages]
        return ReceiveResult(messages, reply.available, reply.active)

    async def ack(
        self,
        group: str,
        receipts: Sequence[str],
        *,
        cumulative: bool = False,
        used_ms: float | None = None,
    ) -> list[Status]:
        """Say that messages are done with, durably. With `cumulative`, also all before them that
        the member has of the same queue. `used_ms`: how long each was worked on."""
        return await group_requests.settle(
            self._transport, group, "ack", receipts, cumulative=cumulative, used_ms=used_ms
        )

    async def nack(
        self, group: str, receipts: Sequence[str], delay_ms: int | None = None
    ) -> list[Status]:
        """Say that messages failed: they come again after `delay_ms`, or the group's back-off."""
        return await group_requests.settle(
            self._transport, group, "nack", receipts, delay_ms=delay_ms
        )

    async def release(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Give messages back untouched; that is no failure."""
        return await group_requests.settle(self._transport, group, "release", receipts)

    async def extend(
        self, group: str, receipts: Sequence[str], lease_ms: int | None = None
    ) -> list[Status]:
        """Ask for so much time from now on."""
        return await group_requests.settle(
            self._transport, group, "extend", receipts, lease_ms=lease_ms
        )

    async def reject(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Make dead letters of messages."""
        return await group_requests.settle(self._transport, group, "reject", receipts)

    async def leave_group(self, group: str, member: str) -> None:
        """Say that a member has gone: what it holds is given back at once."""
        await group_requests.leave(self._transport, group, member)

    # -- every group -------------------------------------------------------------------------

    async def describe_group(self, group: str) -> dict[str, Any]:
        """Return how far a group has come in each topic: its lag in messages, bytes, seconds.

        Of a group with leases also its settings and members, and of each queue what is
        available, in flight, delayed and dead, and how much was served.
        """
        return await group_requests.describe_group(self._transport, group)

    async def stored_offsets(self, group: str, topic: str) -> StoredOffsets:
        """Return a group's stored offsets on a topic. Raises UnknownGroup.

        Of a group with leases they are those below which everything is settled.
        """
        return await read_offsets(
            self._transport, checked_name("group", group), checked_name("topic", topic)
        )

    async def store_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        if_match: str | None = None,
    ) -> StoredOffsets:
        """Store offsets, durably, and return all that are stored then.

        Queues that are not named keep theirs; the group is made if there is none. With
        `if_match`, an etag of before, only if nothing changed since: else OffsetsChanged. A group
        with leases starts again there.
        """
        return await write_offsets(
            self._transport,
            checked_name("group", group),
            checked_name("topic", topic),
            offsets,
            if_match=if_match,
        )

    async def reset_offsets(
        self,
        group: str,
        topic: str,
        to: ResetTo = "earliest",
        dry_run: bool = False,
        *,
        queues: list[int] | None = None,
    ) -> dict[str, Any]:
        """Set a group's offsets to an end of the queues, or to a time in milliseconds.

        Returns the offsets `before` and `after`; with `dry_run` nothing is changed.
        """
        body: dict[str, Any] = {
            "to": {"timestamp_ms": to} if isinstance(to, int) else to,
            "dry_run": dry_run,
        }
        if queues is not None:
            body["queues"] = queues
        reply = await self._transport.request(
            "POST",
            f"{group_path(group)}/topics/{checked_name('topic', topic)}/offsets/reset",
            headers={"Content-Type": JSON},
            body=msgspec.json.encode(body),
        )
        return reply.json(dict[str, Any])


class _SeekReply(msgspec.Struct):
    offsets: dict[str, dict[int, int]]
