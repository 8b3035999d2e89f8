"""Which members of a group may be served at all, by its mode. Pure.

Competing and keyed groups serve every member. In single active and exclusive groups one member
has the group to itself, and the next begins only when nothing is leased to another: the one
before has settled everything, or was fenced, which returns its messages and makes its receipts
worthless. After a restart nothing is known of the member that was active; it proves itself by
an old receipt, and without such a one the group waits until old leases have ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.groups.errors import ExclusiveHeld

MayBegin = Callable[[str], bool]
"""Whether nothing is leased, or may be leased since before a restart, to another member."""


@dataclass(frozen=True, slots=True)
class Admission:
    """Whether a member is served. `is_notice`: it just became active, is told so, and gets its
    first messages when it asks again."""

    is_active: bool
    is_notice: bool = False


class Activity(Protocol):
    """Who is served."""

    def admit(self, member: str, may_begin: MayBegin) -> Admission:
        """Answer a member that asks for messages. Raises ExclusiveHeld."""

    def may_settle(self, member: str) -> bool:
        """Say whether a receipt of this member whose lease has ended may still count."""

    def leave(self, member: str) -> bool:
        """A member leaves or is fenced. True: another may begin."""

    def claim(self, member: str) -> None:
        """A member has proven by an old receipt that it was served before a restart."""

    @property
    def active(self) -> str | None:
        """The one member that is served, where only one is."""

    @property
    def fencing_epoch(self) -> int:
        """How often the active member changed."""


class Everyone:
    """Competing and keyed groups."""

    active: str | None = None
    fencing_epoch = 0

    def admit(self, member: str, may_begin: MayBegin) -> Admission:
        """Every member is served."""
        return Admission(True)

    def may_settle(self, member: str) -> bool:
        """Every member may."""
        return True

    def leave(self, member: str) -> bool:
        """Nobody waits for another."""
        return False

    def claim(self, member: str) -> None:
        """Nothing to prove."""


@dataclass(slots=True)
class SingleActive:
    """One member at a time, in the order in which they came; the others wait."""

    active: str | None = None
    fencing_epoch: int = 0
    _waiting: dict[str, None] = field(default_factory=dict)

    def admit(self, member: str, may_begin: MayBegin) -> Admission:
        """The active member is served. One that was told to wait gets a notice first."""
        if member == self.active:
            return Admission(True)
        first = next(iter(self._waiting), member)
        if self.active is None and member == first and may_begin(member):
            was_waiting = member in self._waiting
            self._begin(member)
            return Admission(True, is_notice=was_waiting)
        self._waiting[member] = None
        return Admission(False)

    def may_settle(self, member: str) -> bool:
        """Only the active member, or anyone as long as none is active."""
        return self.active is None or member == self.active

    def leave(self, member: str) -> bool:
        """The longest waiting member is next."""
        self._waiting.pop(member, None)
        if member != self.active:
            return self.active is None
        self.active = None
        return True

    def retire(self, member: str) -> bool:
        """The active member wants no more, but settles what it has; the next waits for that."""
        if member != self.active:
            return False
        self.active = None
        return True

    def claim(self, member: str) -> None:
        """It goes on where it was."""
        if self.active is None and not self.fencing_epoch:
            self._begin(member)

    def next_member(self) -> str | None:
        """Return who is next while none is active."""
        return next(iter(self._waiting), None) if self.active is None else None

    def _begin(self, member: str) -> None:
        self._waiting.pop(member, None)
        self.active = member
        self.fencing_epoch += 1


@dataclass(slots=True)
class Exclusive:
    """One member, which keeps all others out until it leaves."""

    active: str | None = None
    fencing_epoch: int = 0

    def admit(self, member: str, may_begin: MayBegin) -> Admission:
        """The first member gets the group. Raises ExclusiveHeld for any other."""
        if member != self.active:
            if self.active is not None or not may_begin(member):
                raise ExclusiveHeld(member, self.active)
            self.claim(member)
        return Admission(True)

    def may_settle(self, member: str) -> bool:
        """Only the holder, or anyone as long as there is none."""
        return self.active is None or member == self.active

    def leave(self, member: str) -> bool:
        """The next who asks gets the group."""
        if member != self.active:
            return False
        self.active = None
        return True

    def claim(self, member: str) -> None:
        """It goes on where it was."""
        if self.active is None:
            self.active = member
            self.fencing_epoch += 1


def activity_for(mode: str) -> Activity:
    """Return who is served in a mode."""
    if mode == "single_active":
        return SingleActive()
    return Exclusive() if mode == "exclusive" else Everyone()
