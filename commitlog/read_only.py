"""The log's files for those who only look: nothing is created, written, renamed or removed.

What a directory's files were when their names were listed stays readable, also when retention
deletes them meanwhile: each is opened then.
"""

import os
from pathlib import Path

from holdfast.commitlog.disk import Disk, File, LinuxFile


class ReadOnlyDisk:
    """A Disk over another one that leaves everything as it is."""

    def __init__(self, disk: Disk) -> None:
        self.names = disk.names
        self.open = disk.open

    def create(self, path: Path, size: int) -> File:
        """Nobody who only looks creates."""
        raise AssertionError(f"nothing is created: {path}, {size} bytes")

    def rename(self, source: Path, target: Path) -> None:
        """Nobody who only looks renames."""
        raise AssertionError(f"nothing is renamed: {source} to {target}")

    def remove(self, path: Path) -> None:
        """A file that a crash left unfinished stays."""


class SnapshotDisk:
    """The Disk of the machine as it was when `names` was called, beside a running broker."""

    def __init__(self) -> None:
        self._files: dict[Path, LinuxFile] = {}
        self.vanished: list[Path] = []
        """Files that were deleted between being listed and being opened."""

    def names(self, directory: Path) -> list[str]:
        """Open every file in `directory`, and return the names of those that were still there."""
        found = []
        for name in sorted(os.listdir(directory)):  # noqa: PTH208 - names, not paths
            path = directory / name
            if not path.is_file():
                continue
            try:
                self._files[path] = LinuxFile(os.open(path, os.O_RDONLY | os.O_CLOEXEC))
            except FileNotFoundError:
                self.vanished.append(path)
            else:
                found.append(name)
        return found

    def open(self, path: Path) -> File:
        """Return a file that `names` found."""
        return self._files[path]

    def create(self, path: Path, size: int) -> File:
        """Nobody who only looks creates."""
        raise AssertionError(f"nothing is created: {path}, {size} bytes")

    def rename(self, source: Path, target: Path) -> None:
        """Nobody who only looks renames."""
        raise AssertionError(f"nothing is renamed: {source} to {target}")

    def remove(self, path: Path) -> None:
        """A file that is not finished yet is its maker's."""

    def close(self) -> None:
        """Close every file that is still open; may be called twice."""
        for file in self._files.values():
            file.close()
        self._files.clear()
