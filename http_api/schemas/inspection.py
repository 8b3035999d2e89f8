"""The bodies of replies for operators: names, leases, states of messages, the overview, access."""

from typing import Literal

from msgspec import UNSET, Struct, UnsetType

from holdfast.groups.descriptions import LeaseReply, MessageStateReply
from holdfast.http_api.schemas.groups import GroupSummary


class NamesReply(Struct):
    """A page of names, sorted. `next` is the `after` of the next page; null on the last page."""

    names: list[str]
    next: str | None


class ReadersReply(Struct):
    """A page of the groups that read a topic, by name. `lag_messages` is the lag on this topic."""

    groups: list[GroupSummary]
    next: str | None


class LeasesReply(Struct):
    """A page of a group's leases, by topic id, queue and offset.

    `next` is the `after` of the next page; null on the last page.
    """

    leases: list[LeaseReply]
    next: str | None


class MessageStatesReply(Struct):
    """A page of the groups that read a message's topic, with the state of the message in each."""

    groups: list[MessageStateReply]
    next: str | None


class AccessReply(Struct):
    """The caller of the request, and what it may do.

    `authentication` is false if the broker does not authenticate its clients: then every caller may
    do everything. `expires_ms` is when the token expires; null if it does not expire.
    """

    principal: str
    authentication: bool
    grants: list[str]
    expires_ms: int | None


class DiskReply(Struct):
    """The disk of the log. The `disk` alarm is raised below `min_free_bytes`.

    `bytes_per_day` is how much was written to the log per day lately: since the oldest segment that
    was created in the last day, or since the last segment was created if that is longer ago.
    """

    free_bytes: int
    total_bytes: int
    min_free_bytes: int
    log_bytes: int
    bytes_per_day: int


class GroupFiguresReply(Struct):
    """Figures of all groups with leases. The counts are those since the broker started.

    `at_limit` names at most ten of the groups that deliver no new message because of a limit.
    """

    count: int
    in_flight: int
    waiting: int
    dead_letters: int
    letters_not_kept: int
    expired_leases: int
    at_limit: list[str]
    at_limit_count: int


class OverviewReply(Struct):
    """The state of the whole broker at one moment. Totals are counted since the broker started.

    `sync_p99_seconds` is a time that 99 % of the syncs since the start did not exceed; null if
    there was none, or if more than 1 % took longer than 5 s. `/readyz` has alarms and faults.
    """

    version: str
    phase: Literal["ready"]
    uptime_seconds: float
    disk: DiskReply
    topics: int
    groups: GroupFiguresReply
    messages_in_total: int
    bytes_in_total: int
    messages_out_total: int
    bytes_out_total: int
    held_pulls: int
    connections: int
    amqp_connections: int
    event_loop_lag_seconds: float
    sync_p99_seconds: float | None


class ConnectionReply(Struct):
    """An open connection. `principal` is null until the caller is known.

    `throttled` is true while the client is above a rate limit, or does not read its replies.
    `sessions` and `links` are those of AMQP.
    """

    id: int
    client: str
    protocol: Literal["http", "amqp"]
    principal: str | None
    open_seconds: float
    state: str
    unsent_bytes: int
    throttled: bool
    sessions: int | UnsetType = UNSET
    links: int | UnsetType = UNSET


class ConnectionsReply(Struct):
    """A page of the open connections, oldest first. `next` is the `after` of the next page.

    `count` is the number of all connections, and `throttled` that of clients that are held back.
    """

    connections: list[ConnectionReply]
    count: int
    throttled: int
    next: str | None
