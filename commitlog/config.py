"""Settings of the commit log."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting


@dataclass(frozen=True, slots=True)
class CommitLogConfig:
    """Section [commitlog] of the configuration."""

    segment_bytes: int = setting(
        1024 * MIB,
        "Size of a segment file. The next one is prepared ahead, so a broker holds at least two.",
        minimum=MIB,
    )
    flush_interval_ms: int = setting(
        100, "What was written with nobody waiting for a sync is synced within this.", minimum=1
    )
    max_waiting_bytes: int = setting(
        64 * MIB,
        "Bytes that may wait for the appender; beyond it publishing answers 503.",
        minimum=MIB,
    )
    max_in_flight_bytes: int = setting(
        128 * MIB,
        "Bytes of publishes that may be accepted and not answered yet, synced or not; beyond it "
        "publishing answers 503.",
        minimum=MIB,
    )
    reserve_bytes: int = setting(
        16 * MIB,
        "Size of the file that is given up when the disk is full, so that stored offsets and "
        "retention still work then. 0 keeps none.",
        minimum=0,
    )
    min_free_bytes: int = setting(
        64 * MIB,
        "Publishing is refused (507) while a disk of the broker has less room than this, and no "
        "segment is made that would leave less: index, stored offsets and logs need it. 0: none.",
        minimum=0,
    )
    max_total_bytes: int = setting(
        0,
        "Size of the whole log beyond which its oldest segments go, whoever needs them. "
        "0: no such limit.",
        minimum=0,
    )
    retention_interval_ms: int = setting(
        30_000, "How often retention looks for what may go.", minimum=10
    )
    scrub_bytes_per_s: int = setting(
        0,
        "How fast sealed segments are read again to find rot before a reader does. 0: not at all.",
        minimum=0,
    )
    producer_expiry_ms: int = setting(
        86_400_000, "An idempotent producer unheard of for this long is forgotten.", minimum=1000
    )
    max_producers: int = setting(
        100_000,
        "Idempotent producers (per queue) remembered; beyond it the one idle longest is forgotten.",
        minimum=1,
    )
