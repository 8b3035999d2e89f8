from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.storage.small_log import SmallLog


@pytest.fixture
def small(tmp_path: Path) -> Iterator[SmallLog]:
    """Yield a new log, open and empty."""
    log = SmallLog(tmp_path / "commitlog")
    log.open()
    yield log
    log.close()
