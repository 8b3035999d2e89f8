"""What the fault tests share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

SHARED_MEMORY = Path("/dev/shm")


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Return an empty directory in memory where there is such a place, so that LMDB's syncs
    cost nothing; they are tested elsewhere."""
    if not SHARED_MEMORY.is_dir():
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir=SHARED_MEMORY))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def _ask_a_full_disk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is asked again at once: the tests' disk gets its room back when told to."""
    monkeypatch.setattr("holdfast.commitlog.commit_log.DISK_FULL_RETRY_S", 0.0)
