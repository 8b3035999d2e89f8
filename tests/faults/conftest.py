"""Fixtures of the fault tests."""

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.memory_folder import folder_in_memory

#: More bytes than any of these tests has in files at once.
NEEDED_BYTES = 256 * 1024 * 1024


@pytest.fixture
def memory_path(tmp_path: Path) -> Iterator[Path]:
    """Return an empty directory in memory, where syncs cost nothing, or on disk without room."""
    in_memory = folder_in_memory(NEEDED_BYTES)
    if in_memory is None:
        yield tmp_path
        return
    made = Path(tempfile.mkdtemp(prefix="holdfast-", dir=in_memory))
    yield made
    shutil.rmtree(made)


@pytest.fixture(autouse=True)
def _ask_a_full_disk_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the broker retry a full disk at once: the tests decide when the disk has room again."""
    monkeypatch.setattr("holdfast.commitlog.segments.commit_log.DISK_FULL_RETRY_S", 0.0)
