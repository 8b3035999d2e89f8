"""The errors of the hold service. Each error stores values; `__str__` makes a sentence of them."""

from dataclasses import dataclass


@dataclass(eq=False, repr=False)
class HoldLimitExceeded(Exception):
    """No further pull can be held. `limit_name` is the setting whose limit is reached."""

    limit_name: str
    limit: int

    def __str__(self) -> str:
        return (
            f"the limit of held pulls is reached: {self.limit_name} ({self.limit}); "
            "try again later, or close pulls that are no longer needed"
        )


@dataclass(eq=False, repr=False)
class InvalidFilter(Exception):
    """A filter that cannot be used. `reason` is a fixed word for programs, `detail` a sentence for
    people. `position` is the index of the faulty character, from 0; None if the error concerns the
    whole filter."""

    reason: str
    detail: str
    position: int | None = None

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        return f"the filter is refused{where}: {self.detail}"
