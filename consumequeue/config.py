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
        "Address space for the index, doubled when it is full; the file grows as needed.",
        minimum=MIB,
    )
    state_map_size_bytes: int = setting(
        1024 * MIB,
        "Address space for topics and stored offsets, doubled when it is full.",
        minimum=MIB,
    )
    max_uncommitted_entries: int = setting(
        200_000,
        "Index entries that may be in memory alone, about 600 bytes each; beyond it publishing "
        "answers 503 until the index catches up.",
        minimum=1,
    )
    tail_entries: int = setting(
        2, "Newest index entries a queue keeps in memory after they are committed.", minimum=1
    )
    hot_cache_bytes: int = setting(
        32 * MIB, "Batches just read that are kept decoded, for pulls that follow.", minimum=0
    )
    max_read_leases: int = setting(
        1000, "Leases that readers may hold on what they plan to read; beyond it 429.", minimum=0
    )
    max_leased_queues: int = setting(
        100_000, "Queues that these leases may pin, in all; beyond it 429.", minimum=0
    )


@dataclass(frozen=True, slots=True)
class TopicsConfig:
    """Section [topics] of the configuration: what a topic gets that does not say."""

    auto_create_topics: bool = setting(True, "Create an unknown topic when it is published to.")
    default_queues: int = setting(
        4, "Queues of a topic that does not say.", minimum=1, maximum=10_000
    )
    default_durability: str = setting(
        "fsync", "Durability of a topic that does not say.", choices=("fsync", "written")
    )
    default_retention_ms: int = setting(
        7 * 86_400_000,
        "Age beyond which messages may go, for a topic that does not say. 0: none.",
        minimum=0,
    )
    default_retention_bytes: int = setting(
        0,
        "Size beyond which the oldest messages may go, for a topic that does not say. 0: none.",
        minimum=0,
    )
    default_max_message_bytes: int = setting(
        4 * MIB, "Largest message of a topic that does not say.", minimum=1
    )
    max_key_bytes: int = setting(4096, "Longest key, in bytes of UTF-8.", minimum=1)
    max_tag_bytes: int = setting(1024, "Longest tag, in bytes of UTF-8.", minimum=1)
    max_properties_bytes: int = setting(
        32 * 1024, "Most bytes of property names and values that a message may have.", minimum=0
    )
    max_topics: int = setting(10_000, "Topics that may exist at once.", minimum=1)
    max_queues_per_topic: int = setting(10_000, "Queues that one topic may have.", minimum=1)
    max_queues: int = setting(100_000, "Queues that all topics may have together.", minimum=1)
    max_groups: int = setting(100_000, "Groups that may have stored offsets.", minimum=1)
