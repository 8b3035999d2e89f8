"""How many messages are leased at once, by a group and by each of its members. Pure."""

from holdfast.groups.config import GroupConfig


class InFlight:
    """The counts of one group, within the limits of its `config`."""

    def __init__(self, config: GroupConfig) -> None:
        self.config = config
        self.total = 0
        self._by_member: dict[str, int] = {}

    def of(self, member: str) -> int:
        """Return how many leases a member has."""
        return self._by_member.get(member, 0)

    def room(self, member: str) -> int:
        """Return how many more a member may have; none or less: it is full."""
        config = self.config
        return min(
            config.max_in_flight - self.total,
            config.max_in_flight_per_member - self.of(member),
        )

    def has_others(self, member: str) -> bool:
        """Say whether somebody but this member has leases."""
        return self.total > self.of(member)

    def add(self, member: str, count: int = 1) -> None:
        """Count leases that begin."""
        self.total += count
        self._by_member[member] = self.of(member) + count

    def remove(self, member: str) -> bool:
        """Count a lease that ends. True: there was no room before for this member, or any."""
        config = self.config
        before = self._by_member[member]
        was_full = self.total >= config.max_in_flight or before >= config.max_in_flight_per_member
        self.total -= 1
        if before > 1:
            self._by_member[member] = before - 1
        else:
            del self._by_member[member]
        return was_full
