"""Settings of the HTTP API."""

from dataclasses import dataclass

from holdfast.commitlog.setting import KIB, MIB, setting


@dataclass(frozen=True, slots=True)
class HttpConfig:
    """Section [http_api] of the configuration."""

    host: str = setting("127.0.0.1", "Address to listen on.")
    port: int = setting(8711, "Port to listen on. 0: any free port.", minimum=0, maximum=65_535)
    cors_origins: str = setting(
        "",
        "Origins whose web pages may use the broker from a browser, separated by commas, for "
        "example https://console.example. * allows every origin, but its pages then need a token. "
        "None: only pages of this machine may use the broker, and replies have no CORS headers.",
        form=(
            r"(\*|https?://[^\s/?#,@]+)?(\s*,\s*(\*|https?://[^\s/?#,@]+))*",
            "origins like https://console.example (no path), or *, separated by commas",
        ),
    )
    tls_certificate: str = setting(
        "",
        "PEM file with the broker's TLS certificate, followed by the certificates that signed it.",
    )
    tls_key: str = setting(
        "", "PEM file with the certificate's key. None: the key is in the certificate's file."
    )
    tls_client_ca: str = setting(
        "", "PEM file with the authorities whose client certificates are accepted (mutual TLS)."
    )
    tls_client_certificates: str = setting(
        "required",
        "Whether a client must show a certificate or may connect without one. Applies if "
        "tls_client_ca is set.",
        choices=("required", "optional"),
    )
    tls_reload_interval_ms: int = setting(
        10_000,
        "How often the broker checks the TLS files for changes. New connections use the new files.",
        minimum=1,
    )
    access_log: str = setting(
        "off",
        "Whether to log a line for each request, in the common log format or as a JSON object. "
        "The lines contain no queries and no tokens.",
        choices=("off", "common", "json"),
    )
    max_request_bytes: int = setting(
        16 * MIB,
        "Largest request body. The limit also applies after decompression.",
        minimum=1024,
        memory_divisor=32,
    )
    max_control_request_bytes: int = setting(
        3 * MIB,
        "Largest body of a request that does not publish, for example one that settles messages. "
        "The limit max_request_bytes applies too.",
        minimum=1024,
    )
    max_values_per_request: int = setting(
        50_000,
        "Values, such as receipts or offsets, in the body of a request that does not publish. A "
        "body with more values is refused before it is decoded, because decoding it would delay "
        "other requests.",
        minimum=1024,
    )
    max_text_request_bytes: int = setting(
        16 * MIB,
        "Largest publish in JSON, NDJSON or msgpack. Decoding it takes up to 18 times as much "
        "memory.",
        minimum=1024,
        memory_divisor=64,
    )
    max_texts_at_work: int = setting(
        2,
        "Publishes with more than 128 KiB of text that are decoded at once. Others wait.",
        minimum=1,
        memory_divisor=1,
        bytes_each=512 * MIB,
    )
    max_replies_at_work: int = setting(
        4,
        "Large text replies that are encoded at once. Others wait.",
        minimum=1,
        memory_divisor=1,
        bytes_each=512 * MIB,
    )
    max_messages_per_request: int = setting(
        100_000, "Messages that one publish may contain.", minimum=1
    )
    max_batches_per_request: int = setting(
        2_000,
        "Batches that one publish may contain, or queues that its messages may go to. While the "
        "log appends the batches of one publish, other publishes wait.",
        minimum=1,
    )
    header_timeout_ms: int = setting(
        10_000,
        "A connection that does not send a complete request head within this time is closed.",
        minimum=1,
    )
    body_timeout_ms: int = setting(
        30_000, "A request whose body is not complete within this time is refused.", minimum=1
    )
    write_timeout_ms: int = setting(
        60_000,
        "A client that does not accept a complete reply within this time is disconnected.",
        minimum=1,
    )
    min_transfer_bytes_per_s: int = setting(
        1024,
        "Lowest rate at which a request body must arrive, and at which a client must accept a "
        "reply that cannot be sent at once. 0: no minimum.",
        minimum=0,
    )
    transfer_grace_ms: int = setting(
        10_000,
        "Interval over which the rate for min_transfer_bytes_per_s is measured. The first check "
        "is after one interval.",
        minimum=1,
    )
    max_head_bytes: int = setting(
        128 * KIB,
        "Largest head of a request: the request line and all headers. A larger head is refused "
        "(431).",
        minimum=1024,
    )
    max_waiting_head_bytes: int = setting(
        256 * KIB,
        "Memory for requests of one connection that wait for an earlier request of the "
        "connection. Above this limit, the broker stops reading from the connection. One request "
        "may always wait.",
        minimum=1,
    )
    max_arriving_bytes: int = setting(
        256 * MIB,
        "Total memory of requests (heads and bodies) that are arriving, waiting or being "
        "processed. Above this limit, the client with the most arriving bytes loses its oldest "
        "arriving request, or the newest request is refused (503).",
        minimum=1,
        memory_divisor=8,
    )
    max_client_arriving_bytes: int = setting(
        128 * MIB,
        "The part of max_arriving_bytes that one client address may use (one /64 network in "
        "IPv6). A request above this limit is refused (503).",
        minimum=1,
        memory_divisor=16,
    )
    max_unsent_bytes: int = setting(
        256 * MIB,
        "Total memory of replies that wait to be sent. Above this limit, the client with the most "
        "waiting bytes is disconnected.",
        minimum=1,
        memory_divisor=8,
    )
    send_buffer_bytes: int = setting(
        0,
        "Size of the system's send buffer for one connection (SO_SNDBUF). 0: the system chooses "
        "it, up to net.ipv4.tcp_wmem.",
        minimum=0,
        maximum=2**30,
    )
    keepalive_timeout_ms: int = setting(
        75_000, "An idle connection is closed after this time.", minimum=1
    )
    max_connections: int = setting(
        120_000,
        "Connections in total, or fewer if the process may not open as many files. A connection "
        "above this limit gets 503.",
        minimum=1,
        memory_divisor=4,
        bytes_each=16 * KIB,
    )
    max_connections_per_client: int = setting(
        30_000,
        "Connections of one client address (one /64 network in IPv6).",
        minimum=1,
        memory_divisor=8,
        bytes_each=16 * KIB,
    )
    max_requests_per_s_per_client: int = setting(
        0,
        "Requests per second of one client. A client is identified by its token, or by its "
        "address if it has no token. Above this limit, requests get 429. 0: no limit.",
        minimum=0,
    )
    max_bytes_per_s_per_client: int = setting(
        0,
        "Bytes per second in the request and reply bodies of one client. Above this limit, "
        "requests get 429 until the client is within the limit again. 0: no limit.",
        minimum=0,
    )
    max_publish_messages_per_s_per_client: int = setting(
        0,
        "Messages per second that one client may publish, unless its token has its own limit. A "
        "client is identified by its token, or by its address if it has no token. Above this "
        "limit, requests get 429. 0: no limit.",
        minimum=0,
    )
    max_publish_bytes_per_s_per_client: int = setting(
        0,
        "Bytes per second that one client may publish, counted as stored, unless its token has "
        "its own limit. Above this limit, requests get 429. 0: no limit.",
        minimum=0,
    )
    default_pull_messages: int = setting(
        32, "max_messages of a pull or a receive that does not set it.", minimum=1
    )
    max_pull_messages: int = setting(10_000, "Largest max_messages of a pull.", minimum=1)
    default_pull_bytes: int = setting(
        MIB, "max_bytes of a pull or a receive that does not set it.", minimum=1, memory_divisor=64
    )
    max_pull_bytes: int = setting(16 * MIB, "Largest max_bytes of a pull or a receive.", minimum=1)
    max_wait_ms: int = setting(
        60_000,
        "Largest wait_ms of a pull or a receive. 0: no request is held, even if it sets wait_ms.",
        minimum=0,
        memory_divisor=32,
    )
    max_event_streams: int = setting(
        10_000,
        "Pulls and polls that stream events (text/event-stream) at once. A stream above this "
        "limit is refused (429).",
        minimum=0,
    )
    event_heartbeat_ms: int = setting(
        15_000, "How often a heartbeat is sent on an event stream without new events.", minimum=1
    )
    max_queues_per_poll: int = setting(1024, "Queues that one poll may list.", minimum=1)
    max_splits: int = setting(
        10_000,
        "Largest min_splits of a plan for parallel readers. If max_bytes would give more pieces, "
        "the pieces are made larger. Each queue has at least one piece.",
        minimum=1,
    )
    max_read_lease_ms: int = setting(3_600_000, "Longest lease_ms of a read lease.", minimum=1)
    page_size: int = setting(
        100, "Items on a page of a listing, if the request does not set limit.", minimum=1
    )
    max_page_size: int = setting(1000, "Largest limit of a listing.", minimum=1)
    shutdown_timeout_ms: int = setting(
        4000, "How long a stop waits for requests that are being processed.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class ConsoleConfig:
    """Section [console] of the configuration."""

    enabled: bool = setting(
        True,
        "Whether the broker serves the console, a page for browsers, at /console/. The page uses "
        "only the HTTP API.",
    )
    writable: bool = setting(
        False,
        "Whether the console offers to change something although the broker does not authenticate "
        "its clients. This guards against slips and is no protection: the API accepts the "
        "requests anyway. With authentication, the grants of the user's token decide.",
    )
