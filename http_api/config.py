"""Settings of the HTTP face."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Section [http_api] of the configuration."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8711, "Port to listen on; 0 picks a free one.", minimum=0, maximum=65_535)
    tls_certificate: str = setting(
        "", "File of the certificate to serve TLS with, and of those that signed it (PEM)."
    )
    tls_key: str = setting(
        "", "File of the certificate's key (PEM); without it the certificate's file holds it."
    )
    tls_client_ca: str = setting(
        "", "File of the authorities whose client certificates are taken (PEM): mutual TLS."
    )
    tls_client_certificates: str = setting(
        "required",
        "Whether a client must show a certificate, or may, where tls_client_ca is given.",
        choices=("required", "optional"),
    )
    tls_reload_interval_ms: int = setting(
        10_000,
        "How often the TLS files are looked at; new ones are used from the next connection on.",
        minimum=1,
    )
    max_request_bytes: int = setting(
        16 * MIB, "Largest request body, also after decompression.", minimum=1024
    )
    max_messages_per_request: int = setting(
        100_000, "Messages that one publish may carry.", minimum=1
    )
    header_timeout_ms: int = setting(
        10_000, "A connection that has not sent a whole request head by then is closed.", minimum=1
    )
    body_timeout_ms: int = setting(
        30_000, "A request whose body is not complete by then is refused.", minimum=1
    )
    write_timeout_ms: int = setting(
        60_000, "A client that does not take a whole reply by then is cut off.", minimum=1
    )
    min_transfer_bytes_per_s: int = setting(
        1024,
        "Least rate of a body that comes, and of a reply that is not taken at once; "
        "0 asks for none.",
        minimum=0,
    )
    transfer_grace_ms: int = setting(
        10_000, "Over how long that rate is measured, and so the first time it counts.", minimum=1
    )
    max_arriving_bytes: int = setting(
        256 * MIB,
        "Bodies that may be arriving or at work at once, in all; beyond it 503.",
        minimum=1,
    )
    max_unsent_bytes: int = setting(
        256 * MIB,
        "Replies that may wait in memory for their clients, in all; beyond it the client that "
        "holds the most is cut off.",
        minimum=1,
    )
    send_buffer_bytes: int = setting(
        0,
        "What the system may hold of one connection's replies (SO_SNDBUF); 0 leaves it to the "
        "system, which goes up to net.ipv4.tcp_wmem.",
        minimum=0,
        maximum=2**30,
    )
    keepalive_timeout_ms: int = setting(
        75_000, "An idle connection is closed after this.", minimum=1
    )
    max_connections: int = setting(
        120_000,
        "Connections in all, or fewer if the process may not open so many files; beyond it 503.",
        minimum=1,
    )
    max_connections_per_client: int = setting(
        30_000, "Connections of one client address (of one /64 network in IPv6).", minimum=1
    )
    max_requests_per_s_per_client: int = setting(
        0,
        "Requests a second of one client, known by its token or else by its address; beyond it "
        "429. 0: as many as it likes.",
        minimum=0,
    )
    max_bytes_per_s_per_client: int = setting(
        0,
        "Bytes a second of one client's bodies and replies; beyond it 429 until it is back "
        "within. 0: as many as it likes.",
        minimum=0,
    )
    default_pull_messages: int = setting(
        32, "max_messages of a pull or a receive that does not say.", minimum=1
    )
    max_pull_messages: int = setting(10_000, "Largest max_messages of a pull.", minimum=1)
    default_pull_bytes: int = setting(
        MIB, "max_bytes of a pull or a receive that does not say.", minimum=1
    )
    max_pull_bytes: int = setting(16 * MIB, "Largest max_bytes of a pull or a receive.", minimum=1)
    max_wait_ms: int = setting(60_000, "Largest wait_ms of a pull or a receive.", minimum=0)
    max_queues_per_poll: int = setting(
        1024, "Queues that one multi-queue poll may name.", minimum=1
    )
    max_read_lease_ms: int = setting(
        3_600_000, "Longest lease_ms of a lease on what is to be read.", minimum=1
    )
    page_size: int = setting(100, "Items of a listing that does not say.", minimum=1)
    max_page_size: int = setting(1000, "Largest limit of a listing.", minimum=1)
    shutdown_timeout_ms: int = setting(
        4000, "How long a stop waits for requests under way.", minimum=0
    )
