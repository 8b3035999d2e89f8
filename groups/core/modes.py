"""Which members of a group may be served, by the group's mode. Pure.

Competing and keyed groups serve every member. Single active and exclusive groups serve one member
at a time, the active member. The next member becomes active only when no other member has a lease:
the previous member has settled all its messages, or it was fenced, which returns its messages and
makes its receipts stale. After a restart the stored name of the active member is restored
(`resume`). If no name is stored, a member can use a receipt from before the restart to prove that
it was active (`claim`). Otherwise the group waits until the old leases have ended.
"""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.groups.errors import ExclusiveHeld

MayBecomeActive = Callable[[str], bool]
"""A function that returns whether a member may become active: True if no other member has a lease
and no message is in grace."""


@dataclass(frozen=True, slots=True)
class AdmitResult:
    """Whether a member is served. If `is_notice` is true, the member has just become active, and
    the reply contains only this notice; its next request gets messages."""

    is_active: bool
    is_notice: bool = False


class MemberRule(Protocol):
    """The rule that decides which members are served."""

    def admit(self, member: str, may_become_active: MayBecomeActive) -> AdmitResult:
        """Return whether a member that requests messages is served. Raises ExclusiveHeld."""

    def is_active(self, member: str) -> bool:
        """Return whether a member is served now."""

    def may_settle(self, member: str) -> bool:
        """Return whether a member's receipts may still be used after their leases have ended."""

    def leave(self, member: str) -> bool:
        """Remove a member that left or was fenced. Return True if another member may become active
        now."""

    def claim(self, member: str) -> None:
        """Make a member active that has used a receipt from before a restart. This proves that it
        was active then."""

    def resume(self, member: str) -> None:
        """Make a member active again that was active before a restart."""

    @property
    def active(self) -> str | None:
        """The active member, in modes that serve one member at a time; otherwise None."""

    @property
    def fencing_epoch(self) -> int:
        """How often the active member has changed."""


class AllMembers:
    """The rule of competing and keyed groups: every member is served."""

    active: str | None = None
    fencing_epoch = 0

    def admit(self, member: str, may_become_active: MayBecomeActive) -> AdmitResult:
        """Admit every member."""
        return AdmitResult(True)

    def is_active(self, member: str) -> bool:
        """Return True: every member is served."""
        return True

    def may_settle(self, member: str) -> bool:
        """Return True: every member may settle."""
        return True

    def leave(self, member: str) -> bool:
        """Return False: no member waits until another member leaves."""
        return False

    def claim(self, member: str) -> None:
        """Do nothing: every member is served anyway."""

    def resume(self, member: str) -> None:
        """Do nothing: every member is served anyway."""


@dataclass(slots=True)
class SingleActive:
    """One member at a time, in the order in which they joined; the others wait."""

    active: str | None = None
    fencing_epoch: int = 0
    _waiting: dict[str, None] = field(default_factory=dict)

    def admit(self, member: str, may_become_active: MayBecomeActive) -> AdmitResult:
        """Admit the active member. If there is none, the next member becomes active and is
        admitted; if it had to wait, it gets a notice. All other members must wait."""
        if member == self.active:
            return AdmitResult(True)
        first = next(iter(self._waiting), member)
        if self.active is None and member == first and may_become_active(member):
            was_waiting = member in self._waiting
            self._begin(member)
            return AdmitResult(True, is_notice=was_waiting)
        self._waiting[member] = None
        return AdmitResult(False)

    def is_active(self, member: str) -> bool:
        """Return whether the member is the active one."""
        return member == self.active

    def may_settle(self, member: str) -> bool:
        """Return True for the active member; for every member while none is active."""
        return self.active is None or member == self.active

    def leave(self, member: str) -> bool:
        """Remove a member. If it was active, the member that has waited longest is next."""
        self._waiting.pop(member, None)
        if member != self.active:
            return self.active is None
        self.active = None
        return True

    def retire(self, member: str) -> bool:
        """Make the member inactive. It may still settle its leases; the next member becomes active
        when these have ended. Return False if the member is not active."""
        if member != self.active:
            return False
        self.active = None
        return True

    def claim(self, member: str) -> None:
        """Make the member active, unless any member has been active since the broker's start."""
        if self.active is None and not self.fencing_epoch:
            self._begin(member)

    def resume(self, member: str) -> None:
        """Make the member active without a new fencing epoch."""
        self.active = member

    def next_member(self) -> str | None:
        """Return the member that becomes active next. Return None if a member is active or no
        member waits."""
        return next(iter(self._waiting), None) if self.active is None else None

    def _begin(self, member: str) -> None:
        self._waiting.pop(member, None)
        self.active = member
        self.fencing_epoch += 1


@dataclass(slots=True)
class Exclusive:
    """One member. No other member is admitted until this member leaves."""

    active: str | None = None
    fencing_epoch: int = 0

    def admit(self, member: str, may_become_active: MayBecomeActive) -> AdmitResult:
        """Admit the first member. Raises ExclusiveHeld for any other."""
        if member != self.active:
            if self.active is not None or not may_become_active(member):
                raise ExclusiveHeld(member, self.active)
            self.claim(member)
        return AdmitResult(True)

    def is_active(self, member: str) -> bool:
        """Return whether the member is the active one."""
        return member == self.active

    def may_settle(self, member: str) -> bool:
        """Return True for the active member; for every member while none is active."""
        return self.active is None or member == self.active

    def leave(self, member: str) -> bool:
        """Remove the active member; the next member that requests messages becomes active."""
        if member != self.active:
            return False
        self.active = None
        return True

    def claim(self, member: str) -> None:
        """Make the member active if none is."""
        if self.active is None:
            self.active = member
            self.fencing_epoch += 1

    def resume(self, member: str) -> None:
        """Make the member active without a new fencing epoch."""
        self.active = member


def member_rule(mode: str) -> MemberRule:
    """Return the rule of a mode."""
    if mode == "single_active":
        return SingleActive()
    return Exclusive() if mode == "exclusive" else AllMembers()
