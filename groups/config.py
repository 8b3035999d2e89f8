"""The settings of a group with their defaults, and section [groups] of the configuration. Pure."""

from dataclasses import dataclass
from typing import Literal, get_args

from holdfast.commitlog.setting import KIB, MIB, setting

Mode = Literal["competing", "keyed", "single_active", "exclusive"]
Engine = Literal["sfq", "dwrr"]
Cost = Literal["count", "bytes", "time", "given"]
MODES: tuple[Mode, ...] = get_args(Mode)
FAIR_ENGINES: tuple[Engine, ...] = get_args(Engine)
COSTS: tuple[Cost, ...] = get_args(Cost)

#: The delays of ten retries, growing from one second to ten minutes.
BACKOFF_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 600_000)
SHORTEST_LEASE_MS = 1_000
LONGEST_LEASE_MS = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """The settings of one group that its core uses, with their defaults."""

    mode: Mode = "competing"
    engine: Engine = "sfq"
    cost: Cost = "count"
    lease_ms: int = 30_000
    #: A lease of the group may last at most this long. After a power loss the broker waits for this
    #: time, so that all leases from before the power loss have expired.
    longest_lease_ms: int = LONGEST_LEASE_MS
    #: The group may have at most this many leases at once.
    max_in_flight: int = 1_000
    #: One member may have at most this many leases at once.
    max_in_flight_per_member: int = 1_000
    #: In keyed mode one key may have at most this many leases at once, all of one member.
    max_in_flight_per_key: int = 32
    #: After this many failures a message becomes a dead letter. If it is 0, there is no limit.
    max_attempts: int = 16
    #: Entry n is the delay after failure n. The last entry also holds for all later failures.
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    #: If False, messages that are rejected or fail too often are dropped.
    has_dead_letters: bool = False
    #: If True, a receipt whose lease has ended cannot settle its message.
    strict_leases: bool = False
    #: A member that has no waiting request and no lease, and sends no request, is removed after
    #: this time.
    member_ttl_ms: int = 30_000
    #: If the group has no member for this time, it is deleted. If it is 0, it is never deleted.
    auto_delete_after_ms: int = 0
    #: If True, a message is delivered only while it is the newest message of its key in its queue.
    last_value: bool = False
    #: For this time, a repeated request gets the same answer again.
    repeat_ms: int = 300_000

    def backoff(self, failures: int) -> int:
        """Return the delay of a message after this many failures; `failures` is at least 1."""
        if not self.backoff_ms:
            return 0
        return self.backoff_ms[min(failures, len(self.backoff_ms)) - 1]


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    """Section [groups] of the configuration."""

    map_size_bytes: int = setting(
        4096 * MIB,
        "Address space for the cursors of groups with leases. It is doubled when it is full.",
        minimum=MIB,
    )
    mirror_interval_ms: int = setting(
        5_000,
        "How often a group's floors are also stored as its offsets. All messages below a floor "
        "are settled. If a group's cursors are lost, the group continues from these offsets.",
        minimum=100,
    )
    max_groups: int = setting(
        10_000,
        "Groups with leases that may exist. Each needs about 16 KiB, and its queues need more.",
        minimum=1,
        memory_divisor=8,
        bytes_each=16 * KIB,
    )
    max_topics: int = setting(
        1_000,
        "Topics that one group with leases may have, listed by name or matched by a pattern.",
        minimum=1,
    )
    max_filter_characters_per_group: int = setting(
        64 * KIB,
        "Total characters in the filters of one group with leases. Equal filters count once.",
        minimum=1,
    )
    max_filter_characters: int = setting(
        4096 * KIB,
        "Total characters in the filters of all groups with leases. Equal filters count once in "
        "each group. A parsed filter needs about 128 bytes for each character.",
        minimum=1,
        memory_divisor=16,
        bytes_each=128,
    )
    max_cursors: int = setting(
        1_000_000,
        "Queues of all groups with leases together, about 6 KiB each. A queue counts once in each "
        "group.",
        minimum=1,
        memory_divisor=4,
        bytes_each=6 * KIB,
    )
    max_members: int = setting(
        100_000,
        "Members that one group with leases may have at once, about 512 bytes each.",
        minimum=1,
        memory_divisor=16,
        bytes_each=512,
    )
    max_lease_ms: int = setting(
        LONGEST_LEASE_MS, "Longest lease that a client may request.", minimum=SHORTEST_LEASE_MS
    )
    max_mandatory_match_ms: int = setting(
        1_000,
        "Estimated time for comparing the messages of one publish with `mandatory` with the "
        "filters of groups. A publish that would need more time is refused.",
        minimum=1,
    )
    max_in_flight: int = setting(
        100_000,
        "Highest number of leases at once that the settings of a group may allow.",
        minimum=1,
    )
    max_leases: int = setting(
        1_000_000,
        "Leases of all groups together, about 512 bytes each. At this limit, no message is "
        "delivered under a lease until other leases end.",
        minimum=1,
        memory_divisor=8,
        bytes_each=512,
    )
    max_returned: int = setting(
        1_000_000,
        "Messages of all groups together that were delivered before and are not settled, about "
        "512 bytes each: they are delayed, available again or leased again. At this limit, only "
        "such messages are delivered under a lease.",
        minimum=1,
        memory_divisor=8,
        bytes_each=512,
    )
    max_returned_per_group: int = setting(
        100_000,
        "The part of max_returned that one group may use.",
        minimum=1,
        memory_divisor=32,
        bytes_each=512,
    )
    max_last_value_keys: int = setting(
        1_000_000,
        "Keys that all groups with `last_value` together keep in memory, about 300 bytes each. At "
        "this limit such a group still delivers only the newest message of each key, but it reads "
        "its queues several times.",
        minimum=1,
        memory_divisor=8,
        bytes_each=300,
    )
    max_receive_messages: int = setting(
        10_000, "Most messages that one receive may request.", minimum=1
    )
    max_receive_limits: int = setting(
        1_000, "Most queues and keys that one receive may set limits for.", minimum=256
    )
    max_settle_receipts: int = setting(
        10_000, "Most receipts that one request may settle.", minimum=1
    )
    max_redrive_letters: int = setting(
        10_000, "Most dead letters that one redrive request may publish again.", minimum=1
    )
