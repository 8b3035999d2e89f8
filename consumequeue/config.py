"""Settings of the consume queues, the topics and the durable state."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting


@dataclass(frozen=True, slots=True)
class ConsumeQueueConfig:
    """Section [consumequeue] of the configuration."""

    commit_interval_ms: int = setting(
        100, "How often new index entries are committed to LMDB.", minimum=1
    )
    map_size_bytes: int = setting(
        64 * 1024 * MIB,
        "Address space for the index. It is doubled when it is full. The file grows only as "
        "needed.",
        minimum=MIB,
    )
    state_map_size_bytes: int = setting(
        1024 * MIB,
        "Address space for topics and stored offsets. It is doubled when it is full.",
        minimum=MIB,
    )
    max_uncommitted_entries: int = setting(
        200_000,
        "Index entries that are only in memory, about 600 bytes each. Above this limit, a publish "
        "fails with 503 until the index catches up.",
        minimum=1,
        memory_divisor=16,
        bytes_each=600,
    )
    tail_entries: int = setting(
        2,
        "Newest index entries of a queue that stay in memory after they are committed.",
        minimum=1,
    )
    eager_tail: bool = setting(
        True,
        "Make new messages readable, and wake the requests that wait for them, in the thread that "
        "wrote or synced them. False: the reput thread does it, which may first have to finish a "
        "commit to LMDB.",
    )
    hot_cache_bytes: int = setting(
        32 * MIB,
        "Size of the cache of decoded batches. It contains recently read batches, for later pulls.",
        minimum=0,
        memory_divisor=16,
    )
    max_read_leases: int = setting(
        1000,
        "Read leases that may exist at once. A read lease pins the messages that a reader plans "
        "to read. A new lease above this limit is refused (429).",
        minimum=0,
    )
    max_leased_queues: int = setting(
        100_000,
        "Queues that all read leases together may pin. A queue counts once for each lease that "
        "pins it. A new lease above this limit is refused (429).",
        minimum=0,
    )
    max_read_leases_per_client: int = setting(
        500,
        "Read leases that one client may have. A client is identified by its token, or by its "
        "address if it has no token.",
        minimum=0,
    )
    max_leased_queues_per_client: int = setting(
        50_000, "Queues that the read leases of one client may pin.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """Section [topics] of the configuration: limits, and defaults of topics."""

    auto_create_topics: bool = setting(
        True, "Create an unknown topic when a message is published to it."
    )
    default_queues: int = setting(
        4,
        "Number of queues, for a topic that is created without this setting.",
        minimum=1,
        maximum=10_000,
    )
    default_durability: str = setting(
        "fsync",
        "Durability, for a topic that is created without this setting.",
        choices=("fsync", "written"),
    )
    default_retention_ms: int = setting(
        7 * 86_400_000,
        "Age above which messages may be deleted, for a topic that is created without this "
        "setting. 0: no limit.",
        minimum=0,
    )
    default_retention_bytes: int = setting(
        0,
        "Size above which the oldest messages may be deleted, for a topic that is created without "
        "this setting. 0: no limit.",
        minimum=0,
    )
    default_max_bytes: int = setting(
        0,
        "Size of a topic above which a publish is refused (507), for a topic that is created "
        "without this setting. Unlike retention_bytes, it deletes nothing. 0: no limit.",
        minimum=0,
    )
    default_max_message_bytes: int = setting(
        4 * MIB,
        "Largest body of a message, for a topic that is created without this setting. Key, tag "
        "and properties have their own limits.",
        minimum=1,
        memory_divisor=64,
    )
    max_key_bytes: int = setting(4096, "Longest key, in bytes of UTF-8.", minimum=1)
    max_tag_bytes: int = setting(1024, "Longest tag, in bytes of UTF-8.", minimum=1)
    max_properties_bytes: int = setting(
        32 * 1024,
        "Largest total size of a message's property names and values, in bytes of UTF-8.",
        minimum=0,
    )
    max_topics: int = setting(10_000, "Topics that may exist at once.", minimum=1)
    max_queues_per_topic: int = setting(10_000, "Queues that one topic may have.", minimum=1)
    max_queues: int = setting(100_000, "Queues that all topics may have together.", minimum=1)
    max_groups: int = setting(100_000, "Groups that may have stored offsets.", minimum=1)
