"""What the fault tests share."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.memory_folder import folder_in_memory

#: More than any of these tests has in files at once.
NEEDED_BYTES = 256 * 1024 * 1024


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Return an empty directory in memory where there is room for it, so that LMDB's syncs
    cost nothing; they are tested elsewhere."""
    in_memory = folder_in_memory(NEEDED_BYTES)
    if in_memory is None:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir=in_memory))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def _ask_a_full_disk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A full disk is asked again at once: the tests' disk gets its room back when told to."""
    monkeypatch.setattr("holdfast.commitlog.commit_log.DISK_FULL_RETRY_S", 0.0)
