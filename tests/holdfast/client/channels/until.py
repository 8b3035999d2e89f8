"""Waiting for a condition in a test with threads."""

import time
from collections.abc import Callable


def until(condition: Callable[[], object], timeout_s: float = 30.0) -> None:
    """Return once the condition holds."""
    ends_s = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < ends_s, "the condition does not hold"
        time.sleep(0.005)
