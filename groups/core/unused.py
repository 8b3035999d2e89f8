"""Since when a group has no member, and when it is deleted for that. Pure.

A group is unused while it has no member, no lease and no waiting request. The time counts from the
first `update`, so after a restart it begins again.
"""

import msgspec


class UnusedTime(msgspec.Struct):
    """How long one group has been unused. It is reported as due once; after that, `postpone` must
    be called if the group was not deleted."""

    #: For how long the group may be unused; 0 means without limit.
    _limit_ms: int = 0
    #: When the group is due; None if it is in use, has no limit, or was reported.
    due_ms: int | None = None
    is_reported: bool = False

    def update(self, limit_ms: int, *, is_used: bool, now_ms: int) -> None:
        """Record the limit, and whether the group is in use. A new limit begins a new time."""
        if limit_ms != self._limit_ms:
            self._limit_ms, self.due_ms, self.is_reported = limit_ms, None, False
        if is_used or not limit_ms:
            self.due_ms, self.is_reported = None, False
        elif self.due_ms is None and not self.is_reported:
            self.due_ms = now_ms + limit_ms

    def take_due(self, now_ms: int) -> bool:
        """Return True, once, if the group is due."""
        if self.due_ms is None or now_ms < self.due_ms:
            return False
        self.due_ms, self.is_reported = None, True
        return True

    def postpone(self, until_ms: int) -> None:
        """Let a group that was reported be due again at `until_ms`."""
        if self.is_reported:
            self.due_ms, self.is_reported = until_ms, False
