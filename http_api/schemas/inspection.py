"""The bodies of replies for operators: names, leases, states of messages, the overview, access."""

from typing import Any, Literal

from msgspec import Struct

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


class TokenReply(Struct):
    """A token without its secret, or the grants of a certificate's name."""

    token_id: str
    name: str
    grants: list[str]
    created_ms: int
    expires_ms: int | None
    expired: bool
    certificate: str | None


class TokensReply(Struct):
    """All tokens that are not revoked, newest first."""

    tokens: list[TokenReply]


class AuditReply(Struct):
    """Events of the audit log, newest first. docs/access.md describes their fields."""

    events: list[dict[str, Any]]


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


class ClientReply(Struct):
    """A client (an address, or an IPv6 network) with its connections, and the memory it uses.

    `http` also counts WebSockets. `unsent_bytes` are replies that the client has not read yet, and
    `arriving_bytes` requests that arrive or are processed.
    """

    client: str
    http: int
    amqp: int
    amqp_sessions: int
    amqp_links: int
    unsent_bytes: int
    arriving_bytes: int


class HeldBackReply(Struct):
    """A client that is above a rate limit: `token ID` or `address ADDRESS`.

    `limit` is `requests` or `publishes`. The client is served again after `wait_seconds`.
    """

    client: str
    limit: Literal["requests", "publishes"]
    wait_seconds: float


class AmqpLinkReply(Struct):
    """A link of AMQP. `role` is the client's: a sender sends messages to the broker.

    `credit` is how many messages the sending end may send now. `available` is how many it has, by
    its last report. `address` has at most 256 characters; null if the link has no address.
    """

    name: str
    address: str | None
    role: Literal["sender", "receiver"]
    attached: bool
    credit: int
    available: int | None
    draining: bool


class AmqpSessionReply(Struct):
    """A session of AMQP with its links. `in` is from the client, `out` is to the client.

    The windows count the frames that may be sent now. `connection` is a number that no other
    connection has until the broker restarts; `channel` is the client's. `link_count` counts all
    links; `links` has at most 1,000 of them.
    """

    connection: int
    client: str
    container_id: str
    channel: int
    window_in: int
    window_out: int
    unsettled_in: int
    unsettled_out: int
    link_count: int
    links: list[AmqpLinkReply]


class AmqpSessionsReply(Struct):
    """A page of the sessions of AMQP, by connection and channel.

    `next` is the `after` of the next page. A page has at most 1,000 links.
    """

    sessions: list[AmqpSessionReply]
    next: str | None


class ConnectionsReply(Struct):
    """A page of the connected clients, by name. `next` is the `after` of the next page.

    `held_back` has at most a hundred of the clients that must wait because of a rate limit.
    """

    clients: list[ClientReply]
    held_back: list[HeldBackReply]
    next: str | None
