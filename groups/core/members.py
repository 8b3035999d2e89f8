"""The members of a group: which are served, how many leases they have, which are silent. Pure.

Competing and keyed groups serve every member. Single active and exclusive groups serve one member
at a time, the active member. The next member becomes active only when no other member has a lease:
the previous member has settled all its messages, or it was fenced, which returns its messages and
makes its receipts stale. After a restart the stored name of the active member is restored
(`resume`). If no name is stored, a member can use a receipt from before the restart to prove that
it was active (`claim`). Otherwise the group waits until the old leases have ended.

A returned message is not settled and has an entry in `Cursor.attempts`: it was delivered before,
and is now delayed, available or leased again. While the number of returned messages has reached
its limit, the group leases only returned messages.
"""

from collections.abc import Callable, Iterable, Iterator
from enum import Enum, auto
from typing import ClassVar, Protocol

import msgspec

from holdfast.groups.config import GroupConfig
from holdfast.groups.core.requests import UNLIMITED
from holdfast.groups.cursor.leases import NO_DEADLINE
from holdfast.groups.errors import ExclusiveHeld

OnActive = Callable[[bool], None]
"""A function that is called with whether the group serves a member now."""
MayBecomeActive = Callable[[str], bool]
"""Returns True if no other member has a lease and no message is in grace."""


class Members(msgspec.Struct):
    """The members, in the order in which they joined. A member is silent, and must be removed, if
    it has shown no activity for `ttl_ms`. A bound member is never silent: it stays until it leaves.
    """

    ttl_ms: int
    _until: dict[str, int] = msgspec.field(default_factory=dict)
    #: No member is silent before this time.
    _earliest: int | None = None

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._until))

    def __contains__(self, member: str) -> bool:
        return member in self._until

    def __len__(self) -> int:
        return len(self._until)

    def mark_seen(self, member: str, now_ms: int, busy_until_ms: int = 0) -> None:
        """Record activity of a member. If the member waits or has leases, `busy_until_ms` is when
        that ends; the time to live begins then."""
        until = max(now_ms, busy_until_ms) + self.ttl_ms
        self._until[member] = max(self._until.get(member, 0), until)
        if self._earliest is None or until < self._earliest:
            self._earliest = until

    def bind(self, member: str) -> None:
        """Make a member bound; add it if it is new."""
        self._until[member] = NO_DEADLINE

    def is_bound(self, member: str) -> bool:
        """Return whether a member is bound."""
        return self._until.get(member) == NO_DEADLINE

    def forget(self, member: str) -> None:
        self._until.pop(member, None)

    def next_deadline(self) -> int | None:
        """Return when to call `find_silent`; None if no member can become silent. The time may be
        earlier than necessary."""
        return self._earliest

    def find_silent(self, now_ms: int) -> list[str]:
        """Return the silent members. The caller must remove them."""
        if self._earliest is None or now_ms < self._earliest:
            return []
        later = (until for until in self._until.values() if now_ms < until < NO_DEADLINE)
        self._earliest = min(later, default=None)
        return [member for member, until in self._until.items() if until <= now_ms]


class AllInFlight(msgspec.Struct):
    """The numbers of leases (`total`) and of returned messages of all groups together, and their
    limits."""

    most: int
    most_returned: int = UNLIMITED
    most_returned_per_group: int = UNLIMITED
    total: int = 0
    returned: int = 0


class InFlight:
    """The numbers of leases (`total`) and of returned messages of one group, within the limits of
    its `config` and of `everyone`."""

    def __init__(self, config: GroupConfig, everyone: AllInFlight | None = None) -> None:
        self.config = config
        self.everyone = everyone or AllInFlight(UNLIMITED)
        self.total = 0
        self.returned = 0
        self._by_member: dict[str, int] = {}

    def count_of(self, member: str) -> int:
        """Return how many leases a member has."""
        return self._by_member.get(member, 0)

    def room(self, member: str) -> int:
        """Return how many more leases a member may have; 0 or less if a limit is reached."""
        config, everyone = self.config, self.everyone
        return min(
            config.max_in_flight - self.total,
            config.max_in_flight_per_member - self._by_member.get(member, 0),
            everyone.most - everyone.total,
        )

    @property
    def may_deliver_new(self) -> bool:
        """Whether messages that are not returned messages may be leased."""
        everyone = self.everyone
        may_group_deliver = self.returned < everyone.most_returned_per_group
        return may_group_deliver and everyone.returned < everyone.most_returned

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
        becomes true because of this."""
        could_deliver = self.may_deliver_new
        self.returned += difference
        self.everyone.returned += difference
        return self.may_deliver_new and not could_deliver

    def add(self, member: str, count: int = 1) -> None:
        """Count new leases."""
        self.total += count
        self.everyone.total += count
        self._by_member[member] = self._by_member.get(member, 0) + count

    def remove(self, member: str, count: int = 1) -> bool:
        """Count leases that ended. Return True if a limit was reached before this: members that
        could get no lease may get one now."""
        config, everyone = self.config, self.everyone
        before = self._by_member[member]
        was_full = (
            self.total >= config.max_in_flight
            or before >= config.max_in_flight_per_member
            or everyone.total >= everyone.most
        )
        self.total -= count
        everyone.total -= count
        if before > count:
            self._by_member[member] = before - count
        else:
            del self._by_member[member]
        return was_full


class Admission(Enum):
    """Whether a member that requests messages is served."""

    SERVED = auto()
    #: The member has just become active, and the reply contains only this notice. The next request
    #: of the member gets messages.
    NOTICE = auto()
    #: The member must wait until it becomes active.
    WAITS = auto()


class MemberRule(Protocol):
    """The rule that decides which members are served."""

    @property
    def serves_all(self) -> bool:
        """Whether every member is served, always."""

    def admit(self, member: str, may_become_active: MayBecomeActive) -> Admission:
        """Return whether a member that requests messages is served. Raises ExclusiveHeld."""

    def is_active(self, member: str) -> bool:
        """Return whether a member is served now."""

    def leave(self, member: str) -> bool:
        """Remove a member that left or was fenced. Return True if another member may become active
        now."""

    def next_member(self) -> str | None:
        """Return the member that becomes active next. Return None if a member is active or no
        member waits."""

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

    serves_all = True
    active: str | None = None
    fencing_epoch = 0

    def admit(self, member: str, may_become_active: MayBecomeActive) -> Admission:
        return Admission.SERVED

    def is_active(self, member: str) -> bool:
        return True

    def next_member(self) -> str | None:
        return None

    def leave(self, member: str) -> bool:
        return False

    def claim(self, member: str) -> None: ...

    def resume(self, member: str) -> None: ...


class OneActive(msgspec.Struct):
    """The rule of single active and exclusive groups: one member is served at a time. In a single
    active group the others wait, in the order in which they joined. In an exclusive group the
    others are refused until the active member leaves."""

    serves_all: ClassVar[bool] = False

    is_exclusive: bool
    active: str | None = None
    fencing_epoch: int = 0
    _waiting: dict[str, None] = msgspec.field(default_factory=dict)

    def admit(self, member: str, may_become_active: MayBecomeActive) -> Admission:
        """Serve the active member. If there is none, the next member becomes active; if that member
        had to wait, it gets a notice."""
        if member == self.active:
            return Admission.SERVED
        first = next(iter(self._waiting), member)
        if self.active is None and member == first and may_become_active(member):
            was_waiting = member in self._waiting
            self._activate(member)
            return Admission.NOTICE if was_waiting else Admission.SERVED
        if self.is_exclusive:
            raise ExclusiveHeld(member, self.active)
        self._waiting[member] = None
        return Admission.WAITS

    def is_active(self, member: str) -> bool:
        return member == self.active

    def leave(self, member: str) -> bool:
        """Remove a member. If it was active, the member that has waited longest is next."""
        self._waiting.pop(member, None)
        if member == self.active:
            self.active = None
        return self.active is None

    def claim(self, member: str) -> None:
        """Make the member active if no member is active. In a single active group do this only if
        no member has been active since the broker's start."""
        if self.active is None and (self.is_exclusive or not self.fencing_epoch):
            self._activate(member)

    def resume(self, member: str) -> None:
        """Make the member active without a new fencing epoch."""
        self.active = member

    def next_member(self) -> str | None:
        return next(iter(self._waiting), None) if self.active is None else None

    def _activate(self, member: str) -> None:
        self._waiting.pop(member, None)
        self.active = member
        self.fencing_epoch += 1


def member_rule(mode: str) -> MemberRule:
    """Return the rule of a mode."""
    is_exclusive = mode == "exclusive"
    return OneActive(is_exclusive) if is_exclusive or mode == "single_active" else AllMembers()


class ActiveListeners:
    """The members that want to know when the group begins or stops to serve them."""

    def __init__(self) -> None:
        #: member -> (its function, the value that the member was last given).
        self._listeners: dict[str, tuple[OnActive, bool]] = {}
        self._rule: MemberRule | None = None
        self._active: str | None = None

    def __bool__(self) -> bool:
        return bool(self._listeners)

    def __iter__(self) -> Iterator[str]:
        return iter(list(self._listeners))

    def add(self, member: str, on_active: OnActive, is_active: bool) -> None:
        """Add a member; the caller gives it the value `is_active`. Replace an earlier entry."""
        self._listeners[member] = on_active, is_active

    def remove(self, member: str) -> None:
        self._listeners.pop(member, None)

    def take_changes(self, rule: MemberRule) -> list[tuple[OnActive, bool]]:
        """Return the functions to call, each with its argument: those of members for which the
        answer has changed since the last call."""
        if rule is not self._rule:
            members: Iterable[str | None] = list(self._listeners)
        elif rule.active == self._active:
            return []
        else:
            members = self._active, rule.active
        self._rule, self._active = rule, rule.active
        changes = []
        for member in members:
            if member is None or member not in self._listeners:
                continue
            on_active, was_active = self._listeners[member]
            is_active = rule.is_active(member)
            if is_active != was_active:
                self._listeners[member] = on_active, is_active
                changes.append((on_active, is_active))
        return changes
