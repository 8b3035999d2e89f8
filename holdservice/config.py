"""Settings of the hold service."""

from dataclasses import dataclass

from holdfast.commitlog.setting import setting


@dataclass(frozen=True, slots=True)
class HoldServiceConfig:
    """Section [holdservice] of the configuration."""

    long_polling: bool = setting(
        True,
        "Hold a pull until a message arrives. Off: short polling. A pull is then held for at most "
        "short_polling_ms, and only the periodic scan finds new messages. A receive from a group "
        "is also held for at most short_polling_ms.",
    )
    short_polling_ms: int = setting(
        1000,
        "With long_polling off: the longest time that a pull is held, and the interval of the "
        "scan.",
        minimum=1,
    )
    scan_interval_ms: int = setting(
        5000,
        "How often the broker checks all queues of held pulls for new messages, in case a wake-up "
        "was lost.",
        minimum=10,
    )
    max_held: int = setting(
        100_000, "Pulls that are held at once. A pull above this limit is refused (429).", minimum=1
    )
    max_held_places: int = setting(
        1_000_000,
        "Queues that all held pulls together wait for. A poll of several queues counts once for "
        "each queue. A pull above this limit is refused (429).",
        minimum=1,
        memory_divisor=16,
        bytes_each=256,
    )
    max_held_places_per_client: int = setting(
        500_000,
        "The part of max_held_places that one client address may use. A pull above this limit is "
        "refused (429).",
        minimum=1,
        memory_divisor=32,
        bytes_each=256,
    )
    max_held_per_queue: int = setting(
        20_000,
        "Pulls that are held at once on one queue. A pull above this limit is refused (429).",
        minimum=1,
    )
    max_held_per_client: int = setting(
        20_000,
        "Pulls that are held at once for one client address. A pull above this limit is refused "
        "(429).",
        minimum=1,
    )
