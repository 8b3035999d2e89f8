"""Run `holdfast` with a patch that stops it (SIGSTOP) at a named place, the COUNT-th time:

    python -m tests.support.damage.failpoint_program PLACE COUNT serve --data-dir ...

The test waits with `wait_until_stopped`, then cuts the power or kills the process.
"""

import functools
import importlib
import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.backup.manifest import MANIFEST_NAME
from holdfast.groups.storage.open import PAGE
from tests.support.clients.broker_calls import wait_until


@dataclass(frozen=True, slots=True)
class Place:
    """A place before or after a call of a function. `counts` selects the calls that count."""

    module: str
    function: str
    when: str = "before"
    counts: Callable[..., bool] = lambda *_: True


def _in_segments_thread(*_: object) -> bool:
    return threading.current_thread().name == "holdfast-segments"


def _segment(path: Path, **_: object) -> bool:
    return path.parent.name == "commitlog" and path.suffix != ".new"


def _at_start_of_file(_file: object, _buffers: object, position: int) -> bool:
    return position == 0


def _into(name: str) -> Callable[..., bool]:
    """Select renames to this file name, or into the folder of this name."""
    return lambda _path, target: name in target.parts[-2:]


def _into_manifest(_folder: object, _name: str, new_name: str) -> bool:
    return new_name == MANIFEST_NAME


def _opened(name: str) -> Callable[..., bool]:
    """Select descriptors of files with this name, or in the folder of this name."""
    return lambda descriptor: name in Path(f"/proc/self/fd/{descriptor}").readlink().parts[-2:]


_DISK = "holdfast.commitlog.disk.disk"
_FILES = "holdfast.commitlog.disk.owned_files"
_DATA_DIR = "holdfast.commitlog.disk.data_dir"
_LMDB = "holdfast.consumequeue.lmdb_env.env"
_LETTERS = "holdfast.groups.serving.dead_letters"

PLACES = {
    # Create a segment: the calls of create_segment in their order.
    "segment allocated": Place(_DISK, "LinuxDisk.create", "after"),
    "segment header written": Place(_DISK, "LinuxFile.write", "after", _at_start_of_file),
    "segment synced": Place(_DISK, "LinuxDisk.rename"),
    "segment renamed": Place("pathlib", "Path.rename", "after", lambda _, target: _segment(target)),
    "segment entered": Place(_DISK, "LinuxDisk.rename", "after"),
    # End the previous segment, write its footer, and delete it later.
    "segment ended": Place("holdfast.commitlog.segments.commit_log", "CommitLog.roll", "after"),
    "footer written": Place(
        "holdfast.commitlog.segments.segment", "Segment.sync", "before", _in_segments_thread
    ),
    "footer synced": Place(
        "holdfast.commitlog.segments.segment", "Segment.sync", "after", _in_segments_thread
    ),
    "segment unlinked": Place("pathlib", "Path.unlink", "after", _segment),
    # Index and state.
    "index not committed": Place("holdfast.consumequeue.index.index", "Index.commit"),
    "index committed": Place("holdfast.consumequeue.index.index", "Index.commit", "after"),
    "state not committed": Place("holdfast.consumequeue.state.store", "StateStore._put"),
    "state committed": Place("holdfast.consumequeue.state.store", "StateStore._put", "after"),
    # Cursors of groups.
    "cursors not committed": Place("holdfast.groups.storage.cursor_store", "CursorStore._put"),
    "cursors committed": Place("holdfast.groups.storage.cursor_store", "CursorStore._put", "after"),
    # A start records its beginning together with the restored rows; then it writes a new page.
    "cursors not begun": Place("holdfast.groups.storage.cursor_store", "CursorStore.begin"),
    "cursors begun": Place("holdfast.groups.storage.cursor_store", "CursorStore.begin", "after"),
    "page not replaced": Place("pathlib", "Path.replace", "before", _into(PAGE)),
    "page replaced": Place("pathlib", "Path.replace", "after", _into(PAGE)),
    # Append a dead letter to its topic, then mark the message.
    "letter not appended": Place(_LETTERS, "DeadLetters._append"),
    "letter appended": Place(_LETTERS, "DeadLetters._mark_dead"),
    "letter marked": Place(_LETTERS, "DeadLetters._mark_dead", "after"),
    # Create a new data directory.
    "folder made": Place(_DISK, "sync_directory"),
    "version written": Place("os", "fsync", "before", _opened("VERSION.new")),
    "version renamed": Place("pathlib", "Path.rename", "after", _into("VERSION")),
    "version entered": Place(_DATA_DIR, "sync_directory", "after"),
    "LMDB made": Place(_LMDB, "sync_directory"),
    # Commands: write a token file in two copies; complete a backup with its manifest.
    "tokens written": Place("os", "fsync", "before", _opened("access")),
    "tokens renamed": Place("pathlib", "Path.rename", "after", _into("access")),
    "manifest written": Place(_FILES, "Folder.rename", "before", _into_manifest),
    "manifest renamed": Place(_FILES, "Folder.rename", "after", _into_manifest),
}


def wait_until_stopped(pid: int, timeout_s: float = 200.0) -> None:
    """Return once the process has stopped at its place."""

    def is_stopped() -> bool:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        assert state not in "ZX", f"process {pid} ended before it came to its place"
        return state == "T"

    wait_until(is_stopped, f"process {pid} comes to its place", timeout_s)


def find_function(place: Place) -> tuple[Any, str, Any]:
    """Return the module or class, the name and the function of a place. Raises AttributeError."""
    holder: Any = importlib.import_module(place.module)
    *path, name = place.function.split(".")
    for part in path:
        holder = getattr(holder, part)
    return holder, name, getattr(holder, name)


def _plant(place: Place, count: int) -> None:
    """Stop the process at the `count`-th call of this place."""
    holder, name, function = find_function(place)
    calls = iter(range(count - 1))

    @functools.wraps(function)
    def planted(*args: Any, **options: Any) -> Any:
        is_it = place.counts(*args, **options) and next(calls, None) is None
        if is_it and place.when == "before":
            _stop()
        result = function(*args, **options)
        if is_it:
            _stop()
        return result

    setattr(holder, name, planted)


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)
    threading.Event().wait()  # this thread never continues


if __name__ == "__main__":
    _plant(PLACES[sys.argv[1]], int(sys.argv[2]))
    from holdfast.cli.main import main

    sys.argv = ["holdfast", *sys.argv[3:]]
    main(prog_name="holdfast")
