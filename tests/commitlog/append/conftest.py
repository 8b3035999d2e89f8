from collections.abc import Iterator

import pytest

from holdfast.commitlog.segments import commit_log
from tests.commitlog.publishing import Publishing


@pytest.fixture
def publishing(monkeypatch: pytest.MonkeyPatch) -> Iterator[Publishing]:
    """Yield a log and an appender that is not started. A full disk is tried again at once."""
    monkeypatch.setattr(commit_log, "DISK_FULL_RETRY_S", 0.0)
    made = Publishing()
    yield made
    made.stop()
