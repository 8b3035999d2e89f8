"""What a group answers when it cannot do what was asked. Each error carries its values.

GroupError
  ExclusiveHeld          another member has the group to itself
  FilterNotAllowed       members have no filters in this mode
InvalidReceipt           no receipt of this broker, or not as it was given
"""


class GroupError(Exception):
    """Any refusal of a group."""


class ExclusiveHeld(GroupError):
    """The group is another member's until it leaves. `holder` None: it is not known yet."""

    def __init__(self, member: str, holder: str | None) -> None:
        super().__init__(member, holder)
        self.member = member
        self.holder = holder

    def __str__(self) -> str:
        holder = "a member from before the restart" if self.holder is None else repr(self.holder)
        return f"{self.member!r} has to wait: the group is exclusive and held by {holder}"


class FilterNotAllowed(GroupError):
    """A member's own filter would hold up the keys of what it passes over."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.mode = mode

    def __str__(self) -> str:
        return f"members of a {self.mode} group have no filters of their own; filter in the group"


class InvalidReceipt(Exception):
    """Text that is no receipt, or was signed with another key."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"no receipt of this broker: {self.reason}"
