"""Read-only access to the log's files: nothing is created, written, renamed or removed, and files
are opened for reading only."""

import os
from pathlib import Path
from typing import Protocol

from holdfast.commitlog.disk.disk import File, LinuxDisk, LinuxFile
from holdfast.commitlog.disk.owned_files import open_file


class Readable(Protocol):
    """The methods of a Disk that a reader needs."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""

    def open(self, path: Path) -> File: ...


class ReadOnlyDisk:
    """A Disk that changes nothing."""

    def __init__(self, disk: Readable | None = None) -> None:
        """`disk` gives access to the files; by default the machine's own disk."""
        self.names = disk.names if disk is not None else LinuxDisk().names
        self.open = disk.open if disk is not None else _open_file

    def create(self, path: Path, size: int) -> File:
        raise AssertionError(f"nothing is created: {path}, {size} bytes")

    def rename(self, source: Path, target: Path) -> None:
        raise AssertionError(f"nothing is renamed: {source} to {target}")

    def remove(self, path: Path) -> None:
        """Do nothing: `CommitLog.open` removes unfinished files, a reader leaves them."""

    def sync_names(self, directory: Path) -> None:
        """Do nothing: a reader does not need durable names."""


class Snapshot:
    """The files that a directory has when `names` is called; a broker may be running. `names`
    opens every file, so the files stay readable if retention deletes them. Use a Snapshot through
    a ReadOnlyDisk."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self.vanished: list[Path] = []
        """Files that were deleted after they were listed and before they were opened."""

    def names(self, directory: Path) -> list[str]:
        """Open every file in `directory`, and return the names of the opened files."""
        found = []
        for name in LinuxDisk().names(directory):
            path = directory / name
            if path.is_dir():
                continue
            try:
                self._descriptors[path] = open_file(path)
            except FileNotFoundError:
                self.vanished.append(path)
            else:
                found.append(name)
        return found

    def open(self, path: Path) -> File:
        """Return a File for a file that `names` opened; may be called several times per file."""
        return LinuxFile(os.dup(self._descriptors[path]))

    def close(self) -> None:
        """Close the descriptors that `names` opened; may be called twice."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _open_file(path: Path) -> File:
    return LinuxFile(open_file(path))
