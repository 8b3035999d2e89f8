"""The requests about groups, as methods of AsyncClient."""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from holdfast.client.consume import group_requests
from holdfast.client.consume.delivery import ReceivedMessage, ReceiveResult, Status
from holdfast.client.consume.group_requests import (
    Topics,
    drop_none,
    encode_topics,
    group_path,
    send_json,
)
from holdfast.client.descriptions import (
    Cost,
    End,
    Engine,
    GroupDescription,
    Mode,
    OffsetsReset,
    parse_description,
)
from holdfast.client.read.group_offsets import read_offsets, write_offsets
from holdfast.client.read.message import StoredOffsets
from holdfast.client.timestamps import Time, as_timestamp_ms
from holdfast.client.transport.requests import Transport, check_name

ResetTo = End | Time
SeekTo = ResetTo | Mapping[str, Mapping[int, int]]


class GroupRequests:
    """Requests about groups: groups with leases, and groups that only store offsets."""

    _transport: Transport

    # -- groups with leases ------------------------------------------------------------------

    async def create_group(
        self,
        group: str,
        topics: Topics | None = None,
        *,
        mode: Mode | None = None,
        engine: Engine | None = None,
        cost: Cost | None = None,
        start: End | None = None,
        lease_ms: int | None = None,
        max_in_flight: int | None = None,
        max_in_flight_per_member: int | None = None,
        max_in_flight_per_key: int | None = None,
        max_attempts: int | None = None,
        backoff_ms: Sequence[int] | None = None,
        dead_letter_topic: str | None = None,
        strict_leases: bool | None = None,
        member_ttl_ms: int | None = None,
    ) -> GroupDescription:
        """Create a group with leases, or change it; return its description.

        `topics` is one name, several names, or names with weights (`{"orders": 3}`) or with
        weight and filter (`{"orders": {"weight": 3, "filter": "paid,served"}}`). `mode` is
        "competing", "keyed", "single_active" or "exclusive"; `engine` is "sfq" or "dwrr"; `cost`
        is "count", "bytes" or "time"; `start` is "earliest" or "latest", for queues without a
        stored offset. A setting that is not given gets the broker's default in a new group, and
        does not change in an existing group. If `topics` is given, it replaces all topics of the
        group. If `dead_letter_topic` is empty, the group has no dead-letter topic any more.
        docs/groups.md describes each setting. Raises GroupBusy when `mode` would change while
        messages are leased.
        """
        fields: dict[str, Any] = drop_none(
            mode=mode,
            start=start,
            lease_ms=lease_ms,
            max_in_flight=max_in_flight,
            max_in_flight_per_member=max_in_flight_per_member,
            max_in_flight_per_key=max_in_flight_per_key,
            max_attempts=max_attempts,
            backoff_ms=None if backoff_ms is None else list(backoff_ms),
            strict_leases=strict_leases,
            member_ttl_ms=member_ttl_ms,
            fairness=drop_none(engine=engine, cost=cost) or None,
        )
        if dead_letter_topic is not None:
            fields["dead_letter_topic"] = dead_letter_topic or None
        if topics is not None:
            fields["topics"] = encode_topics(topics)
        reply = await group_requests.put_group(self._transport, group, fields)
        return parse_description(GroupDescription, reply, self._transport.url)

    async def delete_group(self, group: str) -> None:
        """Delete a group and its state. Its messages stay in their topics."""
        await self._transport.request(
            "DELETE", group_path(group), params={"confirm": group}, safe=False
        )

    async def seek_group(self, group: str, to: SeekTo) -> dict[str, dict[int, int]]:
        """Let a group continue at "earliest" or "latest", at a time (milliseconds since 1970, or a
        datetime with a time zone), or at given offsets (by topic and queue).

        Earlier receipts become stale. Return the new offsets of each topic, by queue.
        """
        target: Any
        if isinstance(to, Mapping):
            target = {
                topic: {str(q): at for q, at in queues.items()} for topic, queues in to.items()
            }
        else:
            target = to if isinstance(to, str) else as_timestamp_ms(to)
        reply = await send_json(
            self._transport, "POST", f"{group_path(group)}/seek", {"to": target}
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
        """Receive messages for this member once; wait up to `wait_ms` for the first message.

        Each message is leased for `lease_ms`. Within that time, settle its receipt, or extend the
        lease. With `settled` the broker acknowledges messages as it sends them; with `browse` it
        only shows them, without a lease. If the reply to a request was lost, a request with the
        same `attempt_id` returns that reply again. `consume` does all of this automatically.
        """
        fields = drop_none(
            member=member,
            max_messages=max_messages,
            max_bytes=max_bytes,
            lease_ms=lease_ms,
            topics=None if topics is None else list(topics),
            filter=filter,
            settled=settled or None,
            browse=browse or None,
            attempt_id=attempt_id,
        )
        reply = await group_requests.receive(self._transport, group, fields, wait_ms=wait_ms)
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
        """Acknowledge messages durably, and return the status of each receipt.

        The status is "done" if the message is acknowledged, "stale" if it was delivered again
        meanwhile or settled differently, and "invalid" if the text is not a receipt of this group.
        With `cumulative`, also acknowledge all earlier messages of the same queue that the member
        holds. `used_ms` is the processing time of each message.
        """
        return await group_requests.settle(
            self._transport, group, "ack", receipts, cumulative=cumulative, used_ms=used_ms
        )

    async def nack(
        self, group: str, receipts: Sequence[str], delay_ms: int | None = None
    ) -> list[Status]:
        """Report that processing messages has failed; return the status of each receipt as `ack`
        does. The messages are delivered again after `delay_ms`, or after the group's back-off."""
        return await group_requests.settle(
            self._transport, group, "nack", receipts, delay_ms=delay_ms
        )

    async def release(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Make messages available again at once, without counting a failure. Return the status of
        each receipt as `ack` does."""
        return await group_requests.settle(self._transport, group, "release", receipts)

    async def extend(
        self, group: str, receipts: Sequence[str], lease_ms: int | None = None
    ) -> list[Status]:
        """Extend leases: they end `lease_ms` from now (default: the group's setting). Return the
        status of each receipt as `ack` does."""
        return await group_requests.settle(
            self._transport, group, "extend", receipts, lease_ms=lease_ms
        )

    async def reject(self, group: str, receipts: Sequence[str]) -> list[Status]:
        """Turn messages into dead letters at once. Return the status of each receipt as `ack`
        does."""
        return await group_requests.settle(self._transport, group, "reject", receipts)

    async def leave_group(self, group: str, member: str) -> None:
        """Remove a member from a group; its messages are released at once."""
        await group_requests.leave(self._transport, group, member)

    # -- every group -------------------------------------------------------------------------

    async def describe_group(self, group: str) -> GroupDescription:
        """Return a group's progress in each topic: its lag in messages, bytes and seconds.

        For a group with leases, the description also has the settings, the members, and for each
        queue the numbers of available, in-flight, delayed, dead and delivered messages.
        """
        reply = await group_requests.describe_group(self._transport, group)
        return parse_description(GroupDescription, reply, self._transport.url)

    async def stored_offsets(self, group: str, topic: str) -> StoredOffsets:
        """Return a group's stored offsets on a topic. Raises UnknownGroup.

        In a group with leases, all messages below these offsets are settled.
        """
        return await read_offsets(
            self._transport, check_name("group", group), check_name("topic", topic)
        )

    async def store_offsets(
        self,
        group: str,
        topic: str,
        offsets: Mapping[int, int],
        if_match: str | None = None,
    ) -> StoredOffsets:
        """Store offsets durably and return all offsets that are then stored.

        Queues that are not given keep their offsets. A missing group is created. If `if_match` is
        the etag of an earlier result, and the offsets have changed since then, OffsetsChanged is
        raised. A group with leases restarts at the new offsets.
        """
        return await write_offsets(
            self._transport,
            check_name("group", group),
            check_name("topic", topic),
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
    ) -> OffsetsReset:
        """Set a group's offsets to "earliest" or "latest", or to a time (milliseconds since 1970,
        or a datetime with a time zone).

        Return the offsets `before` and `after`. With `dry_run`, change nothing.
        """
        body = drop_none(
            to=to if isinstance(to, str) else {"timestamp_ms": as_timestamp_ms(to)},
            dry_run=dry_run,
            queues=queues,
        )
        path = f"{group_path(group)}/topics/{check_name('topic', topic)}/offsets/reset"
        reply = await send_json(self._transport, "POST", path, body)
        return parse_description(OffsetsReset, reply.json(dict[str, Any]), self._transport.url)


class _SeekReply(msgspec.Struct):
    offsets: dict[str, dict[int, int]]
