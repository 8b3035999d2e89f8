"""Hypothesis settings and a clean environment for all tests.

`make test` tries the same inputs each time, so a failure comes from a change, not from chance.
`make test-inputs` tries new inputs. There is no deadline per input, because a machine may be slow.
"""

import gc
import os
import signal
import sys
from typing import Any

import pytest
from hypothesis import HealthCheck, settings

# Nearly all that imports and collection make lives until the end (`pytest_collection_finish`).
gc.disable()

_BOTH: dict[str, Any] = {
    "deadline": None,
    "print_blob": True,
    "suppress_health_check": [HealthCheck.too_slow],
}

settings.register_profile("new-inputs", derandomize=False, **_BOTH)
settings.register_profile("same-inputs", derandomize=True, max_examples=50, **_BOTH)
settings.load_profile("same-inputs")

#: Variables that would change the output of tests and of the processes that they start.
_TERMINALS = {"FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE", "COLUMNS", "LINES"}

for name in list(os.environ):
    if name in _TERMINALS or name.startswith("HOLDFAST_"):  # settings of a broker or a client
        del os.environ[name]

# Each process that a test starts would compile the whole product again.
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
sys.dont_write_bytecode = False

# A shell starts background jobs with SIGINT ignored, and child processes would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_make_parametrize_id(val: object) -> str | None:
    """Name a function among parameters, so that all workers collect the same names."""
    return getattr(val, "__name__", None) if callable(val) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the tests of a file in one worker, and the tests that share a Spark session in one.

    The tests that are marked `machine` run in one worker, too, so that none of them runs while
    another one measures.

    pytest-xdist begins the groups with the most tests first. The group with Spark, the longest by
    far, is among the first thirty of some 440, so no worker runs it alone at the end.
    """
    for item in items:
        shared = (name for name in ("machine", "spark") if item.get_closest_marker(name))
        item.add_marker(pytest.mark.xdist_group(next(shared, str(item.path))))


def pytest_collection_finish() -> None:
    """Leave what was imported and collected out of garbage collection: it lives until the end, and
    each full collection would look at all of it again."""
    gc.collect()
    gc.freeze()
    gc.enable()
