"""How a group is to behave: what its creator may say, and what holds when it does not. Pure."""

from dataclasses import dataclass

from holdfast.commitlog.setting import MIB, setting

MODES = ("competing", "keyed", "single_active", "exclusive")
FAIR_ENGINES = ("sfq", "dwrr")
COSTS = ("count", "bytes", "time")

#: Ten tries again, each later than the one before: from a second to ten minutes.
BACKOFF_MS = (1_000, 5_000, 10_000, 30_000, 60_000, 120_000, 180_000, 240_000, 300_000, 600_000)
SHORTEST_LEASE_MS = 1_000
LONGEST_LEASE_MS = 12 * 3_600_000


@dataclass(frozen=True, slots=True)
class GroupConfig:
    """One group's settings, checked by whoever took them in."""

    mode: str = "competing"
    engine: str = "sfq"
    cost: str = "count"
    lease_ms: int = 30_000
    #: No lease of the group is longer: after a power loss this long is waited for old ones.
    longest_lease_ms: int = LONGEST_LEASE_MS
    #: Leases at once, of the group and of one member.
    max_in_flight: int = 1_000
    max_in_flight_per_member: int = 1_000
    #: In keyed mode: leases at once of one key, all its owner's.
    max_in_flight_per_key: int = 32
    #: The failure that makes a message a dead letter; 0: none does.
    max_attempts: int = 16
    #: How long the n-th failure keeps a message back; the last entry for all after it.
    backoff_ms: tuple[int, ...] = BACKOFF_MS
    #: Off: what is rejected or has failed too often is dropped.
    has_dead_letters: bool = False
    #: Refuse every settling that comes after its lease's end.
    strict_leases: bool = False
    #: A member that neither asks, waits nor holds a lease for so long has left.
    member_ttl_ms: int = 30_000
    #: How long a repeated request is answered as the first time.
    repeat_ms: int = 300_000

    def backoff(self, failures: int) -> int:
        """Return how long a message waits after its n-th failure, from 1 on."""
        if not self.backoff_ms:
            return 0
        return self.backoff_ms[min(failures, len(self.backoff_ms)) - 1]


@dataclass(frozen=True, slots=True)
class GroupsConfig:
    """Section [groups] of the configuration."""

    map_size_bytes: int = setting(
        4096 * MIB,
        "Address space for the cursors of groups with leases, doubled when it is full.",
        minimum=MIB,
    )
    mirror_interval_ms: int = setting(
        5_000,
        "How often a group's floors are stored as its offsets too, where it begins again if its "
        "cursors are lost.",
        minimum=100,
    )
    max_groups: int = setting(10_000, "Groups with leases that may exist.", minimum=1)
    max_topics: int = setting(1_000, "Topics that one group with leases may have.", minimum=1)
    max_cursors: int = setting(
        1_000_000, "Queues that all groups with leases may have together.", minimum=1
    )
    max_members: int = setting(
        100_000, "Members that one group with leases may have at once.", minimum=1
    )
    max_lease_ms: int = setting(
        LONGEST_LEASE_MS, "Longest lease that may be asked for.", minimum=SHORTEST_LEASE_MS
    )
    max_in_flight: int = setting(
        100_000, "Most leases at once that a group may be allowed.", minimum=1
    )
    max_receive_messages: int = setting(
        10_000, "Most messages that one receive may ask for.", minimum=1
    )
    max_settle_receipts: int = setting(
        10_000, "Most receipts that one request may settle.", minimum=1
    )
