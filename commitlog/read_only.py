"""The log's files for those who only look: nothing is created, written, renamed or removed, and
what the files permit is only asked to be read."""

import os
from pathlib import Path
from typing import Protocol

from holdfast.commitlog.disk import File, LinuxDisk, LinuxFile


class Readable(Protocol):
    """What a Disk is to those who only look."""

    def names(self, directory: Path) -> list[str]:
        """Return the names in `directory`, sorted."""

    def open(self, path: Path) -> File:
        """Open an existing file."""


class ReadOnlyDisk:
    """A Disk that leaves everything as it is."""

    def __init__(self, disk: Readable | None = None) -> None:
        """`disk` is where the files are, the machine's own if not given."""
        self.names = disk.names if disk is not None else LinuxDisk().names
        self.open = disk.open if disk is not None else _opened

    def create(self, path: Path, size: int) -> File:
        """Nobody who only looks creates."""
        raise AssertionError(f"nothing is created: {path}, {size} bytes")

    def rename(self, source: Path, target: Path) -> None:
        """Nobody who only looks renames."""
        raise AssertionError(f"nothing is renamed: {source} to {target}")

    def remove(self, path: Path) -> None:
        """A file that is not finished yet, or was left so by a crash, stays."""

    def sync_names(self, directory: Path) -> None:
        """Who only looks builds nothing on the names."""


class Snapshot:
    """The files of the machine as they were when `names` was called, beside a running broker:
    each is opened then, and stays readable when retention deletes it. Look at it through a
    ReadOnlyDisk."""

    def __init__(self) -> None:
        self._descriptors: dict[Path, int] = {}
        self.vanished: list[Path] = []
        """Files that were deleted between being listed and being opened."""

    def names(self, directory: Path) -> list[str]:
        """Open every file in `directory`, and return the names of those that were still there."""
        found = []
        for name in LinuxDisk().names(directory):
            path = directory / name
            if not path.is_file():
                continue
            try:
                self._descriptors[path] = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
            except FileNotFoundError:
                self.vanished.append(path)
            else:
                found.append(name)
        return found

    def open(self, path: Path) -> File:
        """Open a file that `names` found, as often as wanted."""
        return LinuxFile(os.dup(self._descriptors[path]))

    def close(self) -> None:
        """Let go of what `names` opened; may be called twice."""
        for descriptor in self._descriptors.values():
            os.close(descriptor)
        self._descriptors.clear()


def _opened(path: Path) -> File:
    return LinuxFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
