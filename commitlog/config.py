"""Settings of the commit log."""

from dataclasses import dataclass

from holdfast.commitlog.setting import KIB, MIB, setting


@dataclass(frozen=True, slots=True)
class CommitLogConfig:
    """Section [commitlog] of the configuration."""

    segment_bytes: int = setting(
        1024 * MIB,
        "Size of a segment file. The broker creates the next segment in advance, so it always has "
        "at least two.",
        minimum=MIB,
    )
    first_segment_bytes: int = setting(
        8 * MIB,
        "Size of a new log's first segment. Each following segment is twice as large, up to "
        "segment_bytes, so a broker with few messages uses little disk space.",
        minimum=MIB,
    )
    max_open_segments: int = setting(
        256,
        "Sealed segment files that stay open. Other segment files are opened when they are read. "
        "The limit is never more than a quarter of the files that the process may open (ulimit "
        "-n).",
        minimum=1,
    )
    flush_interval_ms: int = setting(
        100, "Longest time until written data is synced if no publish waits for a sync.", minimum=1
    )
    sync_timeout_ms: int = setting(
        5000,
        "If the disk does not confirm a publish within this time, the publish fails with 503 "
        "sync-timeout. It is then unknown whether the messages are stored. A producer may send "
        "the publish again with the same sequence.",
        minimum=1,
    )
    max_waiting_bytes: int = setting(
        64 * MIB,
        "Bytes that may wait for the appender. Above this limit, a publish fails with 503.",
        minimum=MIB,
        memory_divisor=16,
    )
    append_on_loop_bytes: int = setting(
        64 * KIB,
        "The event loop appends at most this many bytes itself, while the appender thread sleeps "
        "and writes are short. That shortens the way of single messages by two thread switches. 0: "
        "the appender thread appends everything.",
        minimum=0,
        maximum=MIB,
    )
    newest_blocks_bytes: int = setting(
        MIB,
        "Memory for copies of the batches that were appended last. Held requests that wait for "
        "new messages are answered from these copies. 0: they read the batches from the log.",
        minimum=0,
        memory_divisor=256,
    )
    max_in_flight_bytes: int = setting(
        128 * MIB,
        "Bytes of publishes that were accepted and are not answered yet, synced or not. Above "
        "this limit, a publish fails with 503.",
        minimum=MIB,
        memory_divisor=8,
    )
    reserve_bytes: int = setting(
        16 * MIB,
        "Size of a reserve file. The broker deletes it when the disk is full, so that stored "
        "offsets and retention still work. 0: no reserve file.",
        minimum=0,
    )
    min_free_bytes: int = setting(
        64 * MIB,
        "A publish is refused (507) while a disk of the broker has less free space than this. A "
        "new segment is not created if it would leave less. The index, stored offsets and logs "
        "need this space. 0: no limit.",
        minimum=0,
    )
    max_total_bytes: int = setting(
        0,
        "Largest size of the whole log. Above it, the oldest segments are deleted, even if a "
        "consumer or a lease still needs them. 0: no limit.",
        minimum=0,
    )
    retention_interval_ms: int = setting(
        30_000, "How often retention looks for messages to delete.", minimum=10
    )
    scrub_bytes_per_s: int = setting(
        0,
        "Rate at which sealed segments are read again, to find damage before a consumer does. 0: "
        "they are not read again.",
        minimum=0,
    )
    producer_expiry_ms: int = setting(
        86_400_000,
        "An idempotent producer that has not published for this long is forgotten.",
        minimum=1000,
    )
    max_producers: int = setting(
        100_000,
        "Idempotent producers that the broker remembers. A producer counts once for each queue "
        "that it publishes to. No producer is forgotten before producer_expiry_ms, so a new "
        "producer above this limit is refused (409).",
        minimum=1,
        memory_divisor=8,
        bytes_each=2048,
    )
    max_producers_per_topic: int = setting(
        50_000,
        "Remembered producers (see max_producers) of one topic. A new producer above this limit "
        "is refused (409).",
        minimum=1,
        memory_divisor=16,
        bytes_each=2048,
    )
    max_producers_per_client: int = setting(
        50_000,
        "Remembered producers (see max_producers) that one client has created since the broker "
        "started. A client is identified by its token, or by its address if it has no token. A "
        "new producer above this limit is refused (409).",
        minimum=1,
        memory_divisor=16,
        bytes_each=2048,
    )
    max_broker_producers: int = setting(
        100_000,
        "Dead letters that the broker remembers, so that it does not append them twice after a "
        "crash. Above this limit, the oldest one is forgotten.",
        minimum=1000,
        memory_divisor=16,
        bytes_each=2048,
    )
