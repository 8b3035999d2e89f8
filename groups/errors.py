"""Errors of groups. Each error carries its values.

GroupError
  ExclusiveHeld          another member holds the exclusive group
  FilterNotAllowed       members may not use filters in this mode
  NoDeadLetters          the group has no dead-letter topic
  GroupsStopping         the broker is stopping; the client should retry after its restart
  RedriveRunning         a redrive of the group is running already
InvalidReceipt           not a receipt of this broker, or a changed one
"""


class GroupError(Exception):
    """A group refuses a request."""


class ExclusiveHeld(GroupError):
    """Another member holds the exclusive group. `holder` is None if it is not known yet."""

    def __init__(self, member: str, holder: str | None) -> None:
        super().__init__(member, holder)
        self.member = member
        self.holder = holder

    def __str__(self) -> str:
        holder = "a member from before the restart" if self.holder is None else repr(self.holder)
        return f"{self.member!r} has to wait: the group is exclusive and held by {holder}"


class FilterNotAllowed(GroupError):
    """A member may not use its own filter in this mode: skipped messages would block their keys."""

    def __init__(self, mode: str) -> None:
        super().__init__(mode)
        self.mode = mode

    def __str__(self) -> str:
        return f"members of a {self.mode} group cannot have their own filters; filter in the group"


class GroupsStopping(GroupError):
    """The broker is stopping, so the request cannot wait. It leased nothing."""

    def __str__(self) -> str:
        return "the broker is stopping; receive again when it is back"


class NoDeadLetters(GroupError):
    """The group has no dead-letter topic."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} has no dead-letter topic; set one, or give the topic "
            "with its dead letters as dead_letter_topic"
        )


class RedriveRunning(GroupError):
    """A redrive of the group is running; there may be only one at a time."""

    def __init__(self, group: str) -> None:
        super().__init__(group)
        self.group = group

    def __str__(self) -> str:
        return (
            f"a redrive of the group {self.group!r} is running; try again when it has ended, after "
            "a few seconds at most"
        )


class InvalidReceipt(Exception):
    """The text is not a receipt, or was signed with another key."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason

    def __str__(self) -> str:
        return f"not a receipt of this broker: {self.reason}"
