"""The errors of the hold service. Each error stores values; `__str__` makes a sentence of them."""


class HoldLimitExceeded(Exception):
    """No further pull can be held. `limit_name` is the setting whose limit is reached."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"the limit of held pulls is reached: {self.limit_name} ({self.limit}); "
            "try again later, or close pulls that are no longer needed"
        )


class InvalidFilter(Exception):
    """A filter that cannot be used. `reason` is a fixed word for programs, `detail` a sentence for
    people. `position` is the index of the faulty character, from 0; None if the error concerns the
    whole filter."""

    def __init__(self, reason: str, detail: str, position: int | None = None) -> None:
        super().__init__(reason, detail, position)
        self.reason = reason
        self.detail = detail
        self.position = position

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        return f"the filter is refused{where}: {self.detail}"
