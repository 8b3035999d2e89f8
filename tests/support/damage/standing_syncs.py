"""Syncs of the log that wait, as on a slow disk."""

import threading

import pytest

from holdfast.commitlog.segments.segment import Segment


class StandingSyncs:
    """Syncs of the log that block while `hold` is in effect."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._may_go = threading.Event()
        self._may_go.set()
        self.hold, self.release = self._may_go.clear, self._may_go.set
        sync = Segment.sync

        def waiting(segment: Segment) -> None:
            assert self._may_go.wait(60)
            sync(segment)

        monkeypatch.setattr(Segment, "sync", waiting)
