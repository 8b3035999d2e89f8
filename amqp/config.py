"""Settings of AMQP."""

from dataclasses import dataclass

from holdfast.commitlog.setting import KIB, MIB, setting


@dataclass(frozen=True, slots=True)
class AmqpConfig:
    """Section [amqp] of the configuration."""

    host: str = setting("127.0.0.1", "Address to listen on for AMQP.")
    port: int = setting(
        0,
        "Port to listen on for AMQP 1.0 over TCP; the standard port is 5672. 0: do not listen.",
        minimum=0,
        maximum=65_535,
    )
    tls_port: int = setting(
        0,
        "Port to listen on for AMQP 1.0 over TLS; the standard port is 5671. The certificate is "
        "http_api.tls_certificate. 0: do not listen.",
        minimum=0,
        maximum=65_535,
    )
    websocket: bool = setting(
        True, "Whether the HTTP port accepts AMQP over WebSocket, at the path /amqp."
    )
    max_connections: int = setting(
        10_000,
        "AMQP connections in total. A connection above this limit is closed.",
        minimum=1,
        memory_divisor=8,
        bytes_each=32 * KIB,
    )
    max_connections_per_client: int = setting(
        5_000,
        "AMQP connections of one client address (one /64 network in IPv6).",
        minimum=1,
        memory_divisor=16,
        bytes_each=32 * KIB,
    )
    max_sessions: int = setting(65_535, "Sessions of one connection.", minimum=1, maximum=65_535)
    max_links: int = setting(1_000, "Links of one session.", minimum=1)
    max_total_sessions: int = setting(
        200_000,
        "Sessions of all AMQP connections together. A session above this limit is ended.",
        minimum=1,
        memory_divisor=16,
        bytes_each=4 * KIB,
    )
    max_client_sessions: int = setting(
        100_000,
        "Sessions of one client address (one /64 network in IPv6).",
        minimum=1,
        memory_divisor=32,
        bytes_each=4 * KIB,
    )
    max_total_links: int = setting(
        200_000,
        "Links of all AMQP connections together. A link above this limit is detached.",
        minimum=1,
        memory_divisor=8,
        bytes_each=8 * KIB,
    )
    max_client_links: int = setting(
        100_000,
        "Links of one client address (one /64 network in IPv6).",
        minimum=1,
        memory_divisor=16,
        bytes_each=8 * KIB,
    )
    max_frame_bytes: int = setting(
        64 * KIB, "Largest frame that the broker accepts.", minimum=512, maximum=16 * MIB
    )
    max_incoming_bytes: int = setting(
        16 * MIB,
        "Memory of one connection for messages that have not arrived completely. A connection "
        "above this limit is closed.",
        minimum=64 * KIB,
    )
    handshake_timeout_ms: int = setting(
        5_000,
        "A connection that has not authenticated and opened within this time is closed.",
        minimum=1,
    )
    idle_timeout_ms: int = setting(
        60_000,
        "A connection on which nothing arrives for this time is closed. The broker announces half "
        "of this time to clients. 0: no limit.",
        minimum=0,
    )
    publish_credit: int = setting(
        170, "Messages that a client may send on one link ahead of the broker.", minimum=1
    )
    incoming_window: int = setting(
        400, "Frames that a client may send in one session ahead of the broker.", minimum=1
    )
    queue_credit: int = setting(
        256, "Messages that the broker leases for one link at a time.", minimum=1, maximum=2_000
    )
    max_unsettled: int = setting(
        2_000,
        "Messages of a topic that the client of one link may have without settling them. Messages "
        "of groups are limited by max_in_flight_per_member of the group.",
        minimum=1,
    )
    max_session_unsettled: int = setting(
        10_000,
        "Messages that the client of one session may have without settling them, on all links of "
        "the session together.",
        minimum=1,
    )
    max_connection_unsettled: int = setting(
        50_000,
        "Messages that the client of one connection may have without settling them, on all links "
        "of all sessions together.",
        minimum=1,
    )
    max_copied_queues: int = setting(
        1_000, "Queues of a topic that one link may read together.", minimum=1
    )
    max_filter_characters: int = setting(
        1024 * KIB,
        "Total characters in the filters of all links. A parsed filter needs about 128 bytes for "
        "each character.",
        minimum=1,
        memory_divisor=32,
        bytes_each=128,
    )
    max_client_filter_characters: int = setting(
        256 * KIB,
        "The part of max_filter_characters that one client address may use.",
        minimum=1,
        memory_divisor=64,
        bytes_each=128,
    )
    max_modified_bytes: int = setting(
        8 * MIB,
        "Memory for the message-annotations that clients gave with the outcome modified: 640 bytes "
        "and the encoded annotations for each message. Above this limit the oldest are dropped. 0: "
        "none are kept.",
        minimum=0,
        memory_divisor=64,
    )
    max_client_modified_bytes: int = setting(
        2 * MIB,
        "The part of max_modified_bytes that the outcomes of one client address may use.",
        minimum=0,
        memory_divisor=256,
    )
    resume_timeout_ms: int = setting(
        60_000,
        "How long the broker keeps the states of the messages that a client has sent on a link and "
        "not settled, if the link is lost. In this time the client can resume the link. 0: the "
        "broker keeps none.",
        minimum=0,
    )
    max_suspended_deliveries: int = setting(
        100_000,
        "Messages whose states the broker keeps for the clients of lost links, until the clients "
        "resume them. Above this limit, those of the link that was lost first are forgotten.",
        minimum=1,
        memory_divisor=64,
        bytes_each=3 * KIB,
    )
    max_client_suspended: int = setting(
        10_000,
        "The part of max_suspended_deliveries that the lost links of one client address may use.",
        minimum=1,
        memory_divisor=256,
        bytes_each=3 * KIB,
    )
    delivery_timeout_ms: int = setting(
        1_800_000,
        "A link whose oldest unsettled message is older than this is detached, and its messages "
        "return to the group.",
        minimum=1_000,
    )
    non_durable: str = setting(
        "topic",
        "Durability of messages that do not ask to be durable: the topic's durability, or written.",
        choices=("topic", "written"),
    )
    modified_backoff: str = setting(
        "none",
        "When a message that a client gave back as failed is delivered again: immediately, or "
        "after the delays of its group.",
        choices=("none", "group"),
    )
    auto_queues: int = setting(
        1,
        "Queues of a topic that is made because an AMQP client named it. With 1, the topic keeps "
        "one order.",
        minimum=1,
    )
    temporary_retention_ms: int = setting(
        3_600_000,
        "How long messages of temporary nodes (/temp/ID) are kept, if their connection stays open.",
        minimum=1_000,
    )
    max_temporary_nodes: int = setting(
        2_000,
        "Temporary nodes of all connections together. Each has a topic, and a queue has a group.",
        minimum=1,
        memory_divisor=64,
        bytes_each=16 * KIB,
    )
    max_client_temporary_nodes: int = setting(
        500,
        "Temporary nodes of one client address (one /64 network in IPv6).",
        minimum=1,
        memory_divisor=128,
        bytes_each=16 * KIB,
    )
    sasl_required: bool = setting(
        False,
        "Whether clients must begin with SASL although authentication is off. With authentication, "
        "they always must.",
    )
    announce_product: str = setting(
        "Holdfast",
        "The product that the broker announces. Another product does not help the AMQP 1.0 clients "
        "of RabbitMQ: they also compare the version, and declare their queues in RabbitMQ's way.",
    )
