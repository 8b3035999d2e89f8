"""Errors of groups. Each error carries its values.

GroupError
  ExclusiveHeld          another member holds the exclusive group
  FilterNotAllowed       members may not use filters in this mode
  GroupBusy              the mode cannot change while messages are leased
  GroupsStopping         the broker is stopping; the client should retry after its restart
  InvalidGroup           the settings are invalid
  NoDeadLetters          the group has no dead-letter topic
  RedriveRunning         a redrive of the group is running already
  TooCostlyMandatory     comparing the messages of a publish with filters would take too long
InvalidReceipt           not a receipt of this broker, or a changed one
UnknownTopic (of the message store)
  NotSubscribed          the group does not subscribe to the topic
LimitReached (of the message store)
  TooManyMembers         the group has as many members as it may have
"""

from dataclasses import dataclass

from holdfast.consumequeue.errors import LimitReached, UnknownTopic


class GroupError(Exception):
    """A group refuses a request. The fields of an error are its `args`, so that it can be copied
    and pickled."""

    def __post_init__(self) -> None:
        self.args = tuple(self.__dict__.values())


@dataclass(eq=False, repr=False)
class ExclusiveHeld(GroupError):
    """Another member holds the exclusive group. `holder` is None if it is not known yet."""

    member: str
    holder: str | None

    def __str__(self) -> str:
        holder = "a member from before the restart" if self.holder is None else repr(self.holder)
        return f"{self.member!r} has to wait: the group is exclusive and held by {holder}"


@dataclass(eq=False, repr=False)
class FilterNotAllowed(GroupError):
    """A member may not use its own filter in this mode: skipped messages would block their keys."""

    mode: str

    def __str__(self) -> str:
        return f"members of a {self.mode} group cannot have their own filters; filter in the group"


@dataclass(eq=False, repr=False)
class GroupBusy(GroupError):
    """The mode of a group cannot change while messages are leased."""

    group: str
    in_flight: int

    def __str__(self) -> str:
        return (
            f"{self.in_flight} messages of {self.group!r} are leased, or may still be leased from "
            "before a restart; the mode can change when they are settled or their leases have ended"
        )


class GroupsStopping(GroupError):
    """The broker is stopping, so the request cannot wait. It leased nothing."""

    def __str__(self) -> str:
        return "the broker is stopping; receive again when it is back"


@dataclass(eq=False, repr=False)
class InvalidGroup(GroupError):
    """A setting of a group is invalid. `field` is its name in the HTTP API."""

    field: str
    reason: str

    def __str__(self) -> str:
        return f"{self.field}: {self.reason}"


@dataclass(eq=False, repr=False)
class NoDeadLetters(GroupError):
    """The group has no dead-letter topic."""

    group: str

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} has no dead-letter topic; set one, or give the topic "
            "with its dead letters as dead_letter_topic"
        )


@dataclass(eq=False, repr=False)
class RedriveRunning(GroupError):
    """A redrive of the group is running; there may be only one at a time."""

    group: str

    def __str__(self) -> str:
        return (
            f"a redrive of the group {self.group!r} is running; try again when it has ended, after "
            "a few seconds at most"
        )


@dataclass(eq=False, repr=False)
class TooCostlyMandatory(GroupError):
    """Comparing the messages of a publish with the filters of all groups would take too long."""

    limit: int
    limit_name: str = "max_mandatory_match_ms"

    def __str__(self) -> str:
        return (
            "comparing these messages with the filters of the topic's groups would take more than "
            f"about {self.limit} ms"
        )


@dataclass(eq=False, repr=False)
class InvalidReceipt(Exception):
    """The text is not a receipt, or was signed with another key."""

    reason: str

    def __str__(self) -> str:
        return f"not a receipt of this broker: {self.reason}"


@dataclass(eq=False, repr=False)
class NotSubscribed(UnknownTopic):
    """A group does not subscribe to a topic."""

    group: str

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} does not subscribe to a topic {self.topic!r}; leave it "
            "out, or change the group's topics"
        )


@dataclass(eq=False, repr=False)
class TooManyMembers(LimitReached):
    """The group has as many members as it may have."""

    group: str

    def __str__(self) -> str:
        return (
            f"the group {self.group!r} has {self.limit} members, the limit of {self.limit_name}; "
            "remove some, try again when idle members are removed (member_ttl_ms), or raise the "
            "limit in the configuration"
        )
