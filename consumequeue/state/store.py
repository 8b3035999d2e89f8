"""Durable state that cannot be rebuilt from the log's messages: topics, stored offsets.

The state is a dictionary of small records; keys and values are bytes. It is kept in memory and in
LMDB, which is synced before a change is acknowledged; one sync serves many changes. The caller also
keeps a copy in the log's own state topic, in case LMDB loses the records. Every value on disk has
its own CRC, which also covers its key.

A store counts as new until `restore` has filled it, even after a crash.
"""

import struct
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

import lmdb

from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.errors import StateUnavailable
from holdfast.consumequeue.lmdb_env.env import CORRUPT, open_env
from holdfast.consumequeue.lmdb_env.group_commit import Done, GroupCommit, write_with_room
from holdfast.consumequeue.lmdb_env.live_env import LiveEnv

FORMAT = b"holdfast-state-1"
_FORMAT_KEY = b"\0format"
#: One synced transaction takes at most this many changes.
MAX_GROUP = 1024

Changes = Mapping[bytes, bytes | None]
"""Records to store; None deletes a record."""


class StateCorrupt(Exception):
    """The state on disk cannot be trusted as a whole; the log's state topic has a copy."""


class StateStore:
    """The records of the state. Any thread may call `commit`. Its `done` is called in the store's
    own thread, with None when the change is on disk and in `records`, or with the error."""

    def __init__(
        self,
        directory: Path,
        map_size_bytes: int,
        *,
        readonly: bool = False,
        disk_full: Callable[[], None] = lambda: None,
    ) -> None:
        """Open or create the store. With `readonly` it must exist and is not changed.

        `disk_full` is called in the store's thread when the disk was full for a change; then the
        change is tried once more. Raises StateCorrupt if the file is damaged or has another
        format; lmdb.Error and OSError propagate.
        """
        self.damaged: list[bytes] = []
        """Keys whose values had a wrong CRC at opening; they are not in `records`."""
        self._disk_full = disk_full
        try:
            self._env = LiveEnv(partial(open_env, directory, map_size_bytes, readonly=readonly))
        except CORRUPT as error:
            raise StateCorrupt(str(error)) from error
        try:
            with self._env.transaction() as txn:
                found = txn.get(_FORMAT_KEY)
                self.is_new = found is None
                """Whether the store waits for `restore`."""
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
        """Commit the waiting changes, end the thread, close the environment; may be called
        twice."""
        self._commits.stop()
        self._env.close()

    def commit(self, changes: Changes, done: Done) -> None:
        """Queue a change. It is stored completely or not at all."""
        self._commits.submit(changes, done)

    @property
    def failure(self) -> str | None:
        """Why changes cannot be stored now, or None if they can."""
        return self._commits.failure

    @property
    def env(self) -> LiveEnv:
        """The LMDB environment, for code that checks its reader slots."""
        return self._env

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Fill a store with the records that were read from the log, or with none; then the store
        is no longer new. Call this before `start`. All records are stored, or none. If the map is
        full, it grows. lmdb.Error propagates."""

        def put() -> None:
            with self._env.transaction(write=True) as txn:
                txn.put(_FORMAT_KEY, FORMAT)
                for key, value in records.items():
                    txn.put(key, value + _crc(key, value))

        self._env.write(put)
        self.is_new = False
        self.damaged = [key for key in self.damaged if key not in records]
        self.records.update(records)

    def commit_now(self, changes: Changes) -> None:
        """Store a change, completely or not at all, in this thread. Call it only before `start`.
        Raises StateFull and StateUnavailable."""
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
        self._commits.set_failure(error)
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
        with self._env.transaction(write=True) as txn:
            if not group:
                txn.put(_FORMAT_KEY, FORMAT)
            for changes, _ in group:
                for key, value in changes.items():
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value + _crc(key, value))


def set_aside(directory: Path, aside: Path) -> None:
    """Move the files of a damaged state from `directory` into the folder `aside`, durably. Other
    files in `directory` stay. OSError propagates."""
    make_directory(aside)
    for name in ("data.mdb", "lock.mdb"):
        if (directory / name).exists():
            (directory / name).rename(aside / name)
    sync_directory(aside)
    sync_directory(directory)


def _crc(key: bytes, value: bytes) -> bytes:
    return struct.pack("<I", crc32c(key + value))
