"""The members of a group, and which were silent for too long. Pure: the caller passes the time."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Members:
    """The members, in the order in which they joined. A member is silent, and must be removed, if
    it has shown no activity for `ttl_ms`."""

    ttl_ms: int
    _until: dict[str, int] = field(default_factory=dict)
    #: No member is silent before this time.
    _earliest: int | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._until))

    def __contains__(self, member: str) -> bool:
        return member in self._until

    def __len__(self) -> int:
        return len(self._until)

    def mark_seen(self, member: str, now_ms: int, busy_until_ms: int = 0) -> bool:
        """Record activity of a member. If the member waits or has leases, `busy_until_ms` is when
        that ends; the time to live begins then. Return True if the member is new."""
        is_new = member not in self._until
        until = max(now_ms, busy_until_ms) + self.ttl_ms
        self._until[member] = max(self._until.get(member, 0), until)
        if self._earliest is None or until < self._earliest:
            self._earliest = until
        return is_new

    def forget(self, member: str) -> bool:
        """Remove a member. Return False if it was not a member."""
        return self._until.pop(member, None) is not None

    def next_end(self) -> int | None:
        """Return when to call `find_silent`; None if there are no members. The time may be earlier
        than necessary."""
        return self._earliest

    def find_silent(self, now_ms: int) -> list[str]:
        """Return the silent members. The caller must remove them."""
        if self._earliest is None or now_ms < self._earliest:
            return []
        self._earliest = min((u for u in self._until.values() if u > now_ms), default=None)
        return [member for member, until in self._until.items() if until <= now_ms]
