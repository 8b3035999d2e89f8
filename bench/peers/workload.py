"""The types of workloads and their results, and the choice of each system's number of messages."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.peers.system import Measured, Server

#: The intended duration of one load; slower systems get fewer messages.
TARGET_S = 2.0


@dataclass(frozen=True)
class Bar:
    """The limit that Holdfast's figure must meet: `times` x the peer's figure. A rate must be at
    least this high, and a time at most this high."""

    peer: str
    times: float


@dataclass(frozen=True)
class Result:
    """One figure of one load. `value` is in the workload's unit."""

    case: str
    value: float
    measured: Measured


@dataclass(frozen=True)
class Workload:
    """A load that every system runs. `run` yields a result for each of its cases."""

    name: str
    what: str
    durability: str
    unit: str
    run: "Callable[[Run], Iterator[Result]]"
    #: The label of each case, one of W1 to W5.
    labels: Mapping[str, str]
    #: Bars by case; a case without an entry has none.
    bars: Mapping[str, tuple[Bar, ...]] = field(default_factory=dict)
    #: Systems that are left out, with the reason.
    leaves_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_rate(self) -> bool:
        """Whether a higher value is better."""
        return self.unit.endswith("/s")


class Run:
    """One running system in one round."""

    def __init__(self, server: Server, durability: str, counts: dict[str, int]) -> None:
        self.server = server
        self._durability = durability
        #: Load -> the number of messages that take TARGET_S. The first round determines it.
        self._counts = counts
        self._topics = 0

    def topic(self) -> str:
        """Return a topic name that has not been used on this server."""
        self._topics += 1
        return f"bench{self._topics}"

    def load(self, verb: str, **parameters: Any) -> Measured:
        """Run a load."""
        return self.server.load(verb, durability=self._durability, **parameters)

    def sized(self, name: str, *, least: int, most: int, **parameters: Any) -> Measured:
        """Run a publishing load with as many messages as take TARGET_S.

        The number is a multiple of `least`, and at most `most`. The other parameters are those of
        `load`.
        """
        topic = parameters.pop("topic")
        if name not in self._counts:
            trial = self.load(messages=least, topic=self.topic(), **parameters)
            fits = int(least * TARGET_S / trial.seconds) // least * least
            self._counts[name] = min(max(fits, least), most)
        return self.load(messages=self._counts[name], topic=topic, **parameters)


def rate(case: str, measured: Measured) -> Result:
    """Return a Result with the messages per second of a load."""
    return Result(case, measured.messages / measured.seconds, measured)
