"""How many acknowledgements per second the cursors of groups and their store can make durable.

    python -m bench.groups_commit [--json] [--acks 30000] [--rounds 5] [--directory /tmp]

One group, or several at once, settle leased messages in random order within each 20,000 messages. A
commit has a fixed number of acknowledgements, and a group continues when its commit is durable. For
comparison, a plain loop writes the same bytes in the same transactions with LMDB alone, which shows
the limit of the disk. Both are measured alternately.
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
from holdfast.groups.cursor.cursor import Cursor, End
from holdfast.groups.cursor.heads import Head
from holdfast.groups.cursor.rows import DeleteRange, Write, key_prefix, take_writes
from holdfast.groups.storage.cursor_store import CursorStore, stored_row
from holdfast.groups.storage.progress_page import ProgressPage, kernel_boot_id

_ACKS = "acks/s"
_DURABILITY = "fsync"
_WINDOW = 20_000
_MAP_BYTES = 1 << 30
#: The rate that the requirements demand at 32 per commit, on a disk that can reach it.
_BAR = 20_000

Rows = list[tuple[bytes, bytes | None]]
"""The changes of one transaction: keys with their values. A value of None deletes the key."""


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
    """A store that records the writes of each transaction."""

    transactions: list[Rows]

    def _put(self, changes: Sequence[Any]) -> None:
        writes = [write for change in changes for write in change.writes]
        self.transactions.append([stored_row(w) for w in writes if isinstance(w, Write)])
        super()._put(changes)


class _Settling:
    """One group: a cursor whose messages are all leased at the start, and settled in random
    order."""

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
        """Settle the next `count` messages; return False if none are left."""
        offsets = self.order[self.done : self.done + count]
        for offset in offsets:
            self.cursor.finish(offset, End.ACKED)
        self.done += len(offsets)
        return bool(offsets)

    def writes(self) -> list[Write | DeleteRange]:
        """Return the changes since the last call."""
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
    """Measure; yield the rates of cursors and of the plain loop, and their ratio."""
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
    """Settle `acks` messages durably; return the seconds and the writes of the transactions."""
    groups = [_Settling(number, acks // case.groups) for number in range(case.groups)]
    store = _Recorded(directory / "groups", _MAP_BYTES)
    store.transactions = []
    # Write the leases to the disk before the first message is settled.
    store.begin([write for each in groups for write in each.writes()])
    page = ProgressPage(directory / "groups.page", kernel_boot_id())
    page.begin({each.key: each.cursor for each in groups})
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
        page.note(each.key, each.cursor)
        page.write()
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
    """Write the same rows in the same transactions with LMDB only; return the seconds."""
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
