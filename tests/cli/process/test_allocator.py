"""Freed memory is used again without new pages."""

import subprocess
import sys

import pytest

SCRIPT = """
import resource, sys
import numpy as np
from holdfast.cli.process.allocator import keep_freed_memory

print(keep_freed_memory(int(sys.argv[1])))

def faults():
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt

def use():
    kept = [np.ones(1_000_000, np.uint8) for _ in range(8)]

for _ in range(5):
    use()
before = faults()
for _ in range(5):
    use()
print(faults() - before)
"""


def kept(memory_bytes: int, **environ: str) -> tuple[str, int]:
    """Return whether the setting was made in a process with this much memory, and the page faults
    of 5 uses of 8 MB."""
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(memory_bytes)],
        capture_output=True,
        text=True,
        check=True,
        env={"PATH": "", **environ},
    )
    made, faults = done.stdout.split()
    return made, int(faults)


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is glibc's")
def test_freed_memory_is_used_again() -> None:
    made, faults = kept(4 * 1024**3)
    assert made == "True"
    assert faults < 500


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="the setting is glibc's")
def test_less_is_kept_where_memory_is_small() -> None:
    made, faults = kept(32 * 1024**2)
    assert made == "True"
    assert faults > 5000


def test_settings_of_the_environment_have_priority() -> None:
    made, _ = kept(4 * 1024**3, MALLOC_TRIM_THRESHOLD_="131072")
    assert made == "False"
