"""Durable state that no walk over the log's messages gives back: topics, stored offsets.

A dictionary of small records, kept in memory, in LMDB (synced before a change is acknowledged,
many changes to a sync) and, by the caller, in the log's own state topic, so that losing either
one loses nothing. Keys and values are bytes; every value on disk carries its own CRC, which
covers its key too.

A new store is one only once `restore` has filled it: a crash before that leaves it new.
"""

import struct
from collections.abc import Callable, Mapping
from pathlib import Path

import lmdb

from holdfast.commitlog.checksum import crc32c
from holdfast.commitlog.disk import make_directory, sync_directory
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.group_commit import Done, GroupCommit, put_growing, write_with_room
from holdfast.consumequeue.lmdb_env import CORRUPT, open_env

FORMAT = b"holdfast-state-1"
_FORMAT_KEY = b"\0format"
#: Changes that one synced transaction takes at most.
MAX_GROUP = 1024

Changes = Mapping[bytes, bytes | None]
"""What to put; None deletes."""


class StateCorrupt(Exception):
    """The state on disk cannot be trusted as a whole; the log's state topic has it too."""


class StateStore:
    """The records. `commit` may be called from any thread; `done` is called in the store's own
    thread, with None once the change is on the disk and in `records`, or with the reason."""

    def __init__(
        self,
        directory: Path,
        map_size_bytes: int,
        *,
        readonly: bool = False,
        disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or create; with `readonly` it must exist, and is left as it is.

        `disk_full` is called, in the store's thread, when the disk refused a change; the change
        is tried once more then. Raises StateCorrupt for what is no state of this format;
        lmdb.Error and OSError pass through.
        """
        self.damaged: list[bytes] = []
        """Keys whose values failed their CRC at opening; they are not in `records`."""
        self._disk_full = disk_full
        try:
            self._env = open_env(directory, map_size_bytes, readonly=readonly)
        except CORRUPT as error:
            raise StateCorrupt(str(error)) from error
        try:
            with self._env.begin() as txn:
                found = txn.get(_FORMAT_KEY)
                self.is_new = found is None
                """Whether it waits for `restore`."""
                if found not in (None, FORMAT):
                    raise StateCorrupt(f"format {found!r}, not {FORMAT!r}")
                self.records: dict[bytes, bytes] = dict(self._load(txn))
        except CORRUPT as error:
            self._env.close()
            raise StateCorrupt(str(error)) from error
        except StateCorrupt:
            self._env.close()
            raise
        self._commits: GroupCommit[Changes] = GroupCommit(
            "holdfast-state", MAX_GROUP, self._commit_group
        )

    def _load(self, txn: "lmdb.Transaction[bytes]") -> list[tuple[bytes, bytes]]:
        found = []
        for key, value in txn.cursor():
            if key == _FORMAT_KEY:
                continue
            if len(value) < 4 or value[-4:] != _crc(key, value[:-4]):
                self.damaged.append(key)
            else:
                found.append((key, value[:-4]))
        return found

    def start(self) -> None:
        """Start the thread that commits."""
        self._commits.start()

    def stop(self) -> None:
        """Commit what waits, end the thread, close the environment; may be called twice."""
        self._commits.stop()
        self._env.close()

    def commit(self, changes: Changes, done: Done) -> None:
        """Queue a change: all of it is stored or nothing."""
        self._commits.submit(changes, done)

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Put back records read from the log (or none), before `start`; the store is no longer
        new. All or nothing; a full map grows; lmdb.Error passes through."""

        def put() -> None:
            with self._env.begin(write=True) as txn:
                txn.put(_FORMAT_KEY, FORMAT)
                for key, value in records.items():
                    txn.put(key, value + _crc(key, value))

        put_growing(self._env, put)
        self.is_new = False
        self.damaged = [key for key in self.damaged if key not in records]
        self.records.update(records)

    def commit_now(self, changes: Changes) -> None:
        """Store a change, or nothing of it, in this thread: before `start` alone. StateFull and
        StateUnavailable are raised."""
        errors: list[Exception | None] = []
        self._commit_group([(changes, errors.append)])
        if errors[0] is not None:
            raise errors[0]

    # -- the state thread ------------------------------------------------------------------

    def _commit_group(self, group: list[tuple[Changes, Done]]) -> None:
        error: Exception | None = None
        try:
            self._write(group)
        except StateUnavailable as failure:
            error = failure
        for changes, done in group:
            if error is None:
                for key, value in changes.items():
                    if value is None:
                        self.records.pop(key, None)
                    else:
                        self.records[key] = value
            done(error)

    def _write(self, group: list[tuple[Changes, Done]]) -> None:
        write_with_room(self._env, lambda: self._put(group), self._disk_full)

    def _put(self, group: list[tuple[Changes, Done]]) -> None:
        with self._env.begin(write=True) as txn:
            for changes, _ in group:
                for key, value in changes.items():
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value + _crc(key, value))


def set_aside(directory: Path, aside: Path) -> None:
    """Move the files of a damaged state into a folder of their own; what else lies in the
    directory stays. Durable on return; OSError passes through."""
    make_directory(aside)
    for name in ("data.mdb", "lock.mdb"):
        if (directory / name).exists():
            (directory / name).rename(aside / name)
    sync_directory(aside)
    sync_directory(directory)


def _crc(key: bytes, value: bytes) -> bytes:
    return struct.pack("<I", crc32c(key + value))
