"""Run `holdfast` with a planted defect. Each defect is a shortcut that a broker might take.

python -m tests.support.damage.defective_program DEFECT serve --data-dir ...
"""

import sys
from collections.abc import Callable
from typing import Any

import pytest

from holdfast.commitlog.append.producer_sequences import ProducerSequences
from holdfast.commitlog.append.syncer import Syncer
from holdfast.consumequeue.index.index import Index
from holdfast.consumequeue.state.store import StateStore
from holdfast.groups.cursor import rows
from holdfast.groups.cursor.cursor import Cursor
from holdfast.groups.storage.cursor_store import CursorStore


def acknowledge_without_sync(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(Syncer, "_sync", lambda self, mark: None)


def _acknowledge_offsets_without_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(StateStore, "_write", lambda self, changes: None)


def commit_position_first(patch: pytest.MonkeyPatch) -> None:
    commit = Index.commit
    held_back: dict[int, Any] = {}

    def commit_apart(self: Index, units: Any, position: Any, producers: Any = ()) -> None:
        commit(self, held_back.pop(id(self), ()), position, producers)
        held_back[id(self)] = units

    patch.setattr(Index, "commit", commit_apart)


def _forget_producers(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(ProducerSequences, "restore", lambda *_: None)
    patch.setattr(ProducerSequences, "find", lambda *_: None)


def settle_without_commit(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(CursorStore, "_write", lambda self, changes: None)


def forget_leases(patch: pytest.MonkeyPatch) -> None:
    patch.setattr(rows, "_restore_lease", lambda *_: None)
    patch.setattr(Cursor, "begin_grace", lambda *_: None)


DEFECTS: dict[str, Callable[[pytest.MonkeyPatch], None]] = {
    "acknowledge without sync": acknowledge_without_sync,
    "acknowledge offsets without commit": _acknowledge_offsets_without_commit,
    "index position before its entries": commit_position_first,
    "forget producers": _forget_producers,
    "settle without commit": settle_without_commit,
    "forget leases": forget_leases,
}


if __name__ == "__main__":
    DEFECTS[sys.argv[1]](pytest.MonkeyPatch())
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[2:]]
    main(prog_name="holdfast")
