"""What the hold service refuses. Each error carries its values; `__str__` makes the sentence."""


class HoldError(Exception):
    """Any refusal of the hold service."""


class HoldLimitExceeded(HoldError):
    """One more pull cannot be held. `limit_name` is the setting that says so."""

    def __init__(self, limit_name: str, limit: int) -> None:
        super().__init__(limit_name, limit)
        self.limit_name = limit_name
        self.limit = limit

    def __str__(self) -> str:
        return (
            f"{self.limit_name} ({self.limit}) pulls are held already; "
            "try again later, or close pulls that are no longer needed"
        )


class InvalidFilter(HoldError):
    """A filter that cannot be used. `reason` is a stable word, `detail` a sentence.

    `position` counts the characters before the fault, None when it is the filter as a whole.
    """

    def __init__(self, reason: str, detail: str, position: int | None = None) -> None:
        super().__init__(reason, detail, position)
        self.reason = reason
        self.detail = detail
        self.position = position

    def __str__(self) -> str:
        where = "" if self.position is None else f" at position {self.position}"
        return f"the filter is refused{where}: {self.detail}"
