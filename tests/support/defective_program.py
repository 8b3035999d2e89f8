"""Run `holdfast` with a planted defect. Each defect is a shortcut that a broker might take.

python -m tests.support.defective_program DEFECT serve --data-dir ...
"""

import sys
from collections.abc import Callable
from typing import Any


def _acknowledge_without_sync() -> None:
    from holdfast.commitlog.append.syncer import Syncer

    Syncer._sync = lambda self, mark: None  # type: ignore[method-assign]


def _acknowledge_offsets_without_commit() -> None:
    from holdfast.consumequeue.state.store import StateStore

    StateStore._write = lambda self, changes: None  # type: ignore[method-assign]


def _commit_the_index_position_before_its_entries() -> None:
    from holdfast.consumequeue.index.index import Index

    commit = Index.commit
    held_back: list[Any] = []

    def commit_apart(self: Index, units: Any, position: Any, producers: Any = ()) -> None:
        commit(self, held_back.pop() if held_back else (), position, producers)
        held_back.append(units)

    Index.commit = commit_apart  # type: ignore[method-assign]


def _forget_producers() -> None:
    from holdfast.commitlog.append.producer_sequences import ProducerSequences

    ProducerSequences.restore = lambda *_: None  # type: ignore[method-assign]
    ProducerSequences.find = lambda *_: None  # type: ignore[method-assign]


def _settle_without_commit() -> None:
    from holdfast.groups.storage.cursor_store import CursorStore

    CursorStore._write = lambda self, changes: None  # type: ignore[method-assign]


def _forget_leases() -> None:
    from holdfast.groups.cursor import rows
    from holdfast.groups.cursor.cursor import Cursor

    rows._restore_lease = lambda *_: None
    Cursor.begin_grace = lambda *_: None  # type: ignore[method-assign]


DEFECTS: dict[str, Callable[[], None]] = {
    "acknowledge without sync": _acknowledge_without_sync,
    "acknowledge offsets without commit": _acknowledge_offsets_without_commit,
    "index position before its entries": _commit_the_index_position_before_its_entries,
    "forget producers": _forget_producers,
    "settle without commit": _settle_without_commit,
    "forget leases": _forget_leases,
}


if __name__ == "__main__":
    DEFECTS[sys.argv[1]]()
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[2:]]
    main(prog_name="holdfast")
