"""What a workload is, and how much of it a system is given."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from bench.peers.system import Measured, Server

#: How long one load should take; slower systems are given fewer messages.
TARGET_S = 2.0


@dataclass(frozen=True)
class Bar:
    """What is demanded of ours beside a peer: at least (rates) or at most (times) so many times
    the peer's figure."""

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
    """A load that every system is put under. `run` yields a result for each of its cases."""

    name: str
    what: str
    durability: str
    unit: str
    run: "Callable[[Run], Iterator[Result]]"
    #: Which of W1 to W5 each case is.
    labels: Mapping[str, str]
    #: By case; a case that is not named has none.
    bars: Mapping[str, tuple[Bar, ...]] = field(default_factory=dict)
    #: Systems that are left out, and why.
    leaves_out: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_rate(self) -> bool:
        """Whether more is better."""
        return self.unit.endswith("/s")


class Run:
    """One system that runs, in one round."""

    def __init__(self, server: Server, durability: str, counts: dict[str, int]) -> None:
        self.server = server
        self._durability = durability
        #: How many messages fill TARGET_S, by load; the first round finds them.
        self._counts = counts
        self._topics = 0

    def topic(self) -> str:
        """Return a name that this server has not seen."""
        self._topics += 1
        return f"bench{self._topics}"

    def load(self, verb: str, **parameters: Any) -> Measured:
        """Run a load."""
        return self.server.load(verb, durability=self._durability, **parameters)

    def sized(self, name: str, *, least: int, most: int, **parameters: Any) -> Measured:
        """Run a load that publishes with as many messages as take TARGET_S: a multiple of `least`,
        at most `most`. `topic` and all else as `load` has it."""
        topic = parameters.pop("topic")
        if name not in self._counts:
            trial = self.load(messages=least, topic=self.topic(), **parameters)
            fits = int(least * TARGET_S / trial.seconds) // least * least
            self._counts[name] = min(max(fits, least), most)
        return self.load(messages=self._counts[name], topic=topic, **parameters)


def rate(case: str, measured: Measured) -> Result:
    """Return the messages per second of a load."""
    return Result(case, measured.messages / measured.seconds, measured)
