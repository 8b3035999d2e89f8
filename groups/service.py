"""Groups as the layers above see them: settings, receiving, settling. On the event loop."""

from collections.abc import Mapping, Sequence

from holdfast.consumequeue.topics import QueueKey
from holdfast.groups.service_types import (
    GroupDescription,
    GroupServiceStats,
    GroupSpec,
    GroupState,
    ReceiveAsk,
    Received,
    SeekTarget,
    Status,
    Verb,
)


class GroupService:
    """Every group with leases. All methods are the event loop's."""

    async def start(self) -> None:
        """Take up every group where it was."""
        raise NotImplementedError

    async def stop(self) -> None:
        """Answer every waiting receive with nothing, and make durable what waits for that. May
        be called twice."""
        raise NotImplementedError

    def has_leases(self, group: str) -> bool:
        """Say whether a group is one with leases; any other only stores offsets."""
        raise NotImplementedError

    def groups(self) -> list[str]:
        """Return the names of the groups with leases, sorted."""
        raise NotImplementedError

    async def put_group(self, group: str, spec: GroupSpec) -> tuple[GroupState, bool]:
        """Create a group or change it, durably; return it and whether it is new.

        A new group begins at the offsets that were stored for its name, where there are any, else
        at its `start`; so does a topic that is new in it. Raises InvalidName, InvalidGroup,
        UnknownTopic, LimitReached, GroupBusy, StateUnavailable. A change that was begun goes on
        to its end even if the caller is cancelled.
        """
        raise NotImplementedError

    async def delete_group(self, group: str) -> None:
        """Delete a group with all that is known of it; what waits is answered with
        UnknownGroup. Raises UnknownGroup, StateUnavailable."""
        raise NotImplementedError

    def group_state(self, group: str) -> GroupState:
        """Return a group's configuration. Raises InvalidName, UnknownGroup."""
        raise NotImplementedError

    def describe(self, group: str) -> GroupDescription:
        """Return everything about a group. Raises InvalidName, UnknownGroup."""
        raise NotImplementedError

    def floors(self, group: str, topic: str) -> dict[int, int]:
        """Return by queue below which offset everything is settled. Raises UnknownGroup,
        UnknownTopic (also for a topic that is not the group's)."""
        raise NotImplementedError

    async def receive(self, group: str, ask: ReceiveAsk) -> Received:
        """Return messages for a member; wait for the first for up to `ask.wait_s`.

        Raises UnknownGroup, UnknownTopic, ExclusiveHeld, FilterNotAllowed, InvalidFilter,
        HoldLimitExceeded, StateUnavailable. Cancelling gives back what was leased.
        """
        raise NotImplementedError

    def undelivered(self, group: str, received: Received) -> None:
        """A reply could not be sent: its messages are available again at once. That is no
        failure of theirs."""
        raise NotImplementedError

    async def settle(
        self,
        group: str,
        verb: Verb,
        receipts: Sequence[str],
        *,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        cumulative: bool = False,
        used_ms: float | None = None,
    ) -> list[Status]:
        """Settle each receipt, durably; return what became of each, in order.

        Raises UnknownGroup, StateUnavailable (then it may hold or not: ask again). Cancelling
        does not undo it.
        """
        raise NotImplementedError

    async def seek(self, group: str, target: SeekTarget) -> Mapping[str, Mapping[int, int]]:
        """Start again elsewhere, durably; return topic -> queue -> offset for what moved. Queues
        not named by a mapping stay where they are; offsets are brought within the queue. Old
        receipts are stale. Raises UnknownGroup, UnknownTopic, UnknownQueue, StateUnavailable."""
        raise NotImplementedError

    async def leave(self, group: str, member: str) -> None:
        """A member goes: what it had leased is available again, what it waits for is answered
        with nothing. Raises UnknownGroup."""
        raise NotImplementedError

    # -- what the storage tells ------------------------------------------------------------

    def arrived(self, advanced: Mapping[QueueKey, int]) -> None:
        """Queues reach to these ends, readable."""
        raise NotImplementedError

    def trimmed(self, begins: Mapping[QueueKey, int]) -> None:
        """Queues begin at these offsets now."""
        raise NotImplementedError

    def topic_deleted(self, topic_id: int) -> None:
        """A topic is gone, with all its messages."""
        raise NotImplementedError

    def scan(self) -> int:
        """Look whether somebody waits for what is there; serve it, and return for how many that
        was so. It stays 0: the periodic scan counts it as rescues."""
        raise NotImplementedError

    def stats(self) -> GroupServiceStats:
        """Return the figures for metrics."""
        raise NotImplementedError
