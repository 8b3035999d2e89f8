"""Settings of the hold service."""

from dataclasses import dataclass

from holdfast.commitlog.setting import setting


@dataclass(frozen=True, slots=True)
class HoldServiceConfig:
    """Section [holdservice] of the configuration."""

    long_polling: bool = setting(
        True,
        "Hold a pull until a message arrives. Off: short polling; a pull is held for at most "
        "short_polling_ms and messages are found by the scan alone. A receive from a group is held "
        "no longer either.",
    )
    short_polling_ms: int = setting(
        1000, "With long_polling off: how long a pull is held, and how often is scanned.", minimum=1
    )
    scan_interval_ms: int = setting(
        5000, "How often the safety net compares every held queue with its offset.", minimum=10
    )
    max_held: int = setting(100_000, "Pulls held in all; beyond it 429.", minimum=1)
    max_held_places: int = setting(
        1_000_000,
        "Queues waited on by all held pulls together (a poll over many queues takes a place in "
        "each); beyond it 429.",
        minimum=1,
    )
    max_held_per_queue: int = setting(20_000, "Pulls held on one queue; beyond it 429.", minimum=1)
    max_held_per_client: int = setting(
        20_000, "Pulls held for one client address; beyond it 429.", minimum=1
    )
