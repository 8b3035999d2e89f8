"""Settling, durably: acknowledgements a second that cursors and their store take.

    python -m bench.groups_commit [--json] [--acks 30000] [--rounds 5] [--directory /tmp]

Leased messages are settled in random order in a window of 20,000, so many to a commit, by one group
or by several at once; a group goes on when its commit is durable. Beside it a bare loop over LMDB
writes the same bytes in the same transactions, which is what the disk allows; they take turns.
"""

import argparse
import queue
import random
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import lmdb

from bench.rows import TIMES, Row, report
from holdfast.groups.cursor import Cursor, End
from holdfast.groups.cursor_rows import page_of, take_writes
from holdfast.groups.cursor_store import CursorStore, stored_row
from holdfast.groups.heads import Head
from holdfast.groups.progress_page import ProgressPage, kernel_boot_id
from holdfast.groups.rows import DeleteRange, Write, key_prefix

_ACKS = "acks/s"
_DURABILITY = "fsync"
_WINDOW = 20_000
_MAP_BYTES = 1 << 30
#: What the requirements ask for at 32 a commit, on a disk that can.
_BAR = 20_000

Rows = list[tuple[bytes, bytes | None]]
"""One transaction: keys with values, None to delete."""


@dataclass(frozen=True)
class _Case:
    name: str
    groups: int
    acks_a_commit: int


_CASES = (
    _Case("32 a commit", 1, 32),
    _Case("256 a commit", 1, 256),
    _Case("32 a commit, 8 groups at once", 8, 32),
)


class _Recorded(CursorStore):
    """A store that keeps what each transaction wrote."""

    transactions: list[Rows]

    def _put(self, changes: list[Any]) -> None:
        writes = [write for change in changes for write in change.writes]
        self.transactions.append([stored_row(w) for w in writes if isinstance(w, Write)])
        super()._put(changes)


class _Settling:
    """One group: a cursor with messages leased ahead, settled in random order."""

    def __init__(self, number: int, acks: int) -> None:
        self.key = (number, 1, 0)
        self.prefix = key_prefix(*self.key)
        self.cursor = Cursor(boot=1, end=acks)
        self.order: list[int] = []
        rng = random.Random(number)
        for start in range(0, acks, _WINDOW):
            window = list(range(start, min(start + _WINDOW, acks)))
            for offset in window:
                self.cursor.lease([Head(offset)], "m", 1 << 40, 0, 1)
            rng.shuffle(window)
            self.order += window
        self.done = 0

    def settle(self, count: int) -> bool:
        """Settle the next so many; False when there are none."""
        offsets = self.order[self.done : self.done + count]
        for offset in offsets:
            self.cursor.finish(offset, End.ACKED)
        self.done += len(offsets)
        return bool(offsets)

    def writes(self) -> list[Write | DeleteRange]:
        """Return what changed since the last time."""
        return take_writes(self.cursor, self.prefix)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Durable acknowledgements a second.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--acks", type=int, default=30_000)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--directory", type=Path, help="where the disk to be measured is")
    options = parser.parse_args()
    report(rows(options.acks, options.rounds, options.directory), as_json=options.json)


def rows(acks: int, rounds: int, directory: Path | None = None) -> Iterator[Row]:
    """Measure; yield the rates, those of the bare loop, and their ratio."""
    for case in _CASES:
        ours: list[float] = []
        bare: list[float] = []
        for _ in range(rounds):
            with tempfile.TemporaryDirectory(prefix="holdfast-bench-", dir=directory) as made:
                seconds, written = settled(Path(made), case, acks)
                ours.append(acks / seconds)
                bare.append(acks / bare_loop(Path(made) / "bare", written))
        bar = _BAR if case.acks_a_commit == 32 else None
        yield Row("", f"acks, {case.name}", _DURABILITY, _ACKS, ours, at_least=bar)
        yield Row("", f"bare LMDB, {case.name}", _DURABILITY, _ACKS, bare)
        ratios = [mine / other for mine, other in zip(ours, bare, strict=True)]
        yield Row("", f"beside bare LMDB, {case.name}", _DURABILITY, TIMES, ratios)


def settled(directory: Path, case: _Case, acks: int) -> tuple[float, list[Rows]]:
    """Settle so many messages durably; return the seconds and what the transactions wrote."""
    groups = [_Settling(number, acks // case.groups) for number in range(case.groups)]
    store = _Recorded(directory / "groups", _MAP_BYTES)
    store.transactions = []
    # What was leased is on the disk before any of it is settled.
    store.begin([write for each in groups for write in each.writes()])
    page = ProgressPage(directory / "groups.page", kernel_boot_id())
    page.begin({each.key: page_of(each.cursor) for each in groups})
    store.start()
    durable: queue.SimpleQueue[_Settling] = queue.SimpleQueue()
    for each in groups:
        durable.put(each)
    left = len(groups)
    started = time.perf_counter()
    while left:
        each = durable.get()
        if not each.settle(case.acks_a_commit):
            left -= 1
            continue
        store.commit(each.writes(), partial(_go_on, durable, each), now_ms=each.done)
        page.note(each.key, page_of(each.cursor))
    seconds = time.perf_counter() - started
    store.stop()
    page.close()
    return seconds, store.transactions


def _go_on(
    durable: "queue.SimpleQueue[_Settling]", settling: _Settling, error: Exception | None
) -> None:
    assert error is None
    durable.put(settling)


def bare_loop(directory: Path, transactions: Sequence[Rows]) -> float:
    """Write the same rows in the same transactions with nothing around; return the seconds."""
    directory.mkdir()
    env = lmdb.open(str(directory), map_size=_MAP_BYTES)
    started = time.perf_counter()
    for rows_of_one in transactions:
        with env.begin(write=True) as txn:
            for key, value in rows_of_one:
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)
    seconds = time.perf_counter() - started
    env.close()
    return seconds


if __name__ == "__main__":
    main()
