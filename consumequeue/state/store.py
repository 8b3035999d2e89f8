"""Durable state that cannot be rebuilt from the log's messages: topics, stored offsets.

The state is a dictionary of small records; keys and values are bytes. It is kept in memory and in
LMDB, which is synced before a change is acknowledged; one sync serves many changes. The caller also
keeps a copy in the log's own state topic, in case LMDB loses the records. Every value on disk has
its own CRC, which also covers its key.

A store counts as new until `restore` has filled it, even after a crash.
"""

import struct
from collections.abc import Mapping, Sequence
from pathlib import Path

import lmdb

from holdfast.commitlog.disk.disk import make_directory, sync_directory
from holdfast.commitlog.format.checksum import crc32c
from holdfast.consumequeue.lmdb_env.synced_store import FORMAT_KEY, Done, SyncedStore

Changes = Mapping[bytes, bytes | None]
"""Records to store; None deletes a record."""


class StateCorrupt(Exception):
    """The state on disk cannot be trusted as a whole; the log's state topic has a copy."""


class StateStore(SyncedStore[Changes]):
    """The records of the state. Any thread may call `commit`. Its `done` is called in the store's
    own thread, with None when the change is on disk and in `records`, or with the error."""

    FORMAT = b"holdfast-state-1"
    THREAD_NAME = "holdfast-state"
    CORRUPT_ERROR = StateCorrupt

    def _read(self, txn: "lmdb.Transaction[bytes]") -> None:
        self.damaged: list[bytes] = []
        """Keys whose values had a wrong CRC at opening; they are not in `records`."""
        self.records: dict[bytes, bytes] = {}
        for key, value in txn.cursor():
            if key == FORMAT_KEY:
                continue
            if len(value) < 4 or value[-4:] != _crc(key, value[:-4]):
                self.damaged.append(key)
            else:
                self.records[key] = value[:-4]

    def commit(self, changes: Changes, done: Done) -> None:
        """Queue a change. It is stored completely or not at all."""
        self._waiting.put((changes, done))

    def restore(self, records: Mapping[bytes, bytes]) -> None:
        """Fill a store with the records that were read from the log, or with none; then the store
        is no longer new. Call this before `start`. All records are stored, or none. If the map is
        full, it grows. lmdb.Error propagates."""

        def put() -> None:
            with self.env.transaction(write=True) as txn:
                txn.put(FORMAT_KEY, self.FORMAT)
                for key, value in records.items():
                    txn.put(key, value + _crc(key, value))

        self.env.write(put)
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

    def _put(self, changes: Sequence[Changes]) -> None:
        with self.env.transaction(write=True) as txn:
            if not changes:
                txn.put(FORMAT_KEY, self.FORMAT)
            for each in changes:
                for key, value in each.items():
                    if value is None:
                        txn.delete(key)
                    else:
                        txn.put(key, value + _crc(key, value))

    def _on_commit(self, change: Changes) -> None:
        for key, value in change.items():
            if value is None:
                self.records.pop(key, None)
            else:
                self.records[key] = value


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
