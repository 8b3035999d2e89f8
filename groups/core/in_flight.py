"""The numbers of leased and of returned messages: of all groups, and of one group. Pure.

A returned message is not settled and has an entry in `Cursor.attempts`: it was delivered before,
and is now delayed, available or leased again. While the number of returned messages has reached
its limit, the group leases only returned messages.
"""

from holdfast.groups.config import GroupConfig
from holdfast.groups.core.limits import UNLIMITED


class AllInFlight:
    """The counts of all groups together, and their limits."""

    def __init__(
        self, most: int, most_returned: int = UNLIMITED, most_returned_per_group: int = UNLIMITED
    ) -> None:
        self.most = most
        self.most_returned = most_returned
        self.most_returned_per_group = most_returned_per_group
        #: The number of leases.
        self.total = 0
        #: The number of returned messages, as defined above.
        self.returned = 0

    @property
    def room(self) -> int:
        """How many more leases are allowed; 0 or less if the limit is reached."""
        return self.most - self.total


class InFlight:
    """The counts of one group, within the limits of its `config` and of `everyone`."""

    def __init__(self, config: GroupConfig, everyone: AllInFlight | None = None) -> None:
        self.config = config
        self.everyone = everyone or AllInFlight(UNLIMITED)
        #: The number of leases.
        self.total = 0
        #: The number of returned messages, as defined above.
        self.returned = 0
        self._by_member: dict[str, int] = {}

    def count_of(self, member: str) -> int:
        """Return how many leases a member has."""
        return self._by_member.get(member, 0)

    def room(self, member: str) -> int:
        """Return how many more leases a member may have; 0 or less if a limit is reached."""
        config = self.config
        return min(
            config.max_in_flight - self.total,
            config.max_in_flight_per_member - self.count_of(member),
            self.everyone.room,
        )

    @property
    def may_deliver_new(self) -> bool:
        """Whether messages that are not returned messages may be leased."""
        everyone = self.everyone
        return (
            self.returned < everyone.most_returned_per_group
            and everyone.returned < everyone.most_returned
        )

    @property
    def limit_of_returned(self) -> tuple[str, int]:
        """The name and value of the limit that is reached. Valid only while `may_deliver_new` is
        false."""
        everyone = self.everyone
        if self.returned >= everyone.most_returned_per_group:
            return "groups.max_returned_per_group", everyone.most_returned_per_group
        return "groups.max_returned", everyone.most_returned

    def count_returned(self, difference: int) -> bool:
        """Add `difference` to the number of returned messages. Return True if `may_deliver_new`
        becomes true by that."""
        could_deliver = self.may_deliver_new
        self.returned += difference
        self.everyone.returned += difference
        return self.may_deliver_new and not could_deliver

    def has_others(self, member: str) -> bool:
        """Return whether any other member has leases."""
        return self.total > self.count_of(member)

    def add(self, member: str, count: int = 1) -> None:
        """Count new leases."""
        self.total += count
        self.everyone.total += count
        self._by_member[member] = self.count_of(member) + count

    def remove(self, member: str) -> bool:
        """Count a lease that ended. Return True if a limit had been reached, so that members may
        get leases now that they could not get before."""
        config = self.config
        before = self._by_member[member]
        was_full = (
            self.total >= config.max_in_flight
            or before >= config.max_in_flight_per_member
            or self.everyone.room <= 0
        )
        self.total -= 1
        self.everyone.total -= 1
        if before > 1:
            self._by_member[member] = before - 1
        else:
            del self._by_member[member]
        return was_full
