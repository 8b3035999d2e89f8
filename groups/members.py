"""Who takes part in a group, and when a silent one has left. Pure: the caller says the time."""

from collections.abc import Iterator
from dataclasses import dataclass, field


@dataclass(slots=True)
class Members:
    """The members in the order in which they came; each is here until its time has run out."""

    ttl_ms: int
    _until: dict[str, int] = field(default_factory=dict)
    #: No member's time runs out before it.
    _earliest: int | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._until))

    def __contains__(self, member: str) -> bool:
        return member in self._until

    def __len__(self) -> int:
        return len(self._until)

    def seen(self, member: str, now_ms: int, busy_until_ms: int = 0) -> bool:
        """Note that a member is here, and waits or holds leases until a time. True: it is new."""
        is_new = member not in self._until
        until = max(now_ms, busy_until_ms) + self.ttl_ms
        self._until[member] = max(self._until.get(member, 0), until)
        if self._earliest is None or until < self._earliest:
            self._earliest = until
        return is_new

    def forget(self, member: str) -> bool:
        """Let a member go. False: it was not here."""
        return self._until.pop(member, None) is not None

    def next_end(self) -> int | None:
        """Return when to look for silent members; None without any. It may be too early."""
        return self._earliest

    def silent(self, now_ms: int) -> list[str]:
        """Return the members whose time has run out."""
        if self._earliest is None or now_ms < self._earliest:
            return []
        self._earliest = min((u for u in self._until.values() if u > now_ms), default=None)
        return [member for member, until in self._until.items() if until <= now_ms]
