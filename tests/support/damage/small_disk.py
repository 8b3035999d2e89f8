"""A small file system in memory that a test fills and frees. Only root may mount it."""

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Self

import pytest

MIB = 1024 * 1024


class SmallDisk:
    """A mounted tmpfs of this size. Entering it skips the test if the system cannot mount it."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("not root: nothing can be mounted")
        self.path.mkdir(parents=True, exist_ok=True)
        command = [
            "mount",
            "-t",
            "tmpfs",
            "-o",
            f"size={self._size_bytes}",
            "tmpfs",
            str(self.path),
        ]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        return self

    def __exit__(self, *_: object) -> None:
        # Lazily: a broker that a failed test left running must not block the unmount.
        subprocess.run(["umount", "--lazy", self.path], capture_output=True, check=False)

    @property
    def free_bytes(self) -> int:
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Fill the file system to the last page, except `leave_bytes`."""
        with tempfile.NamedTemporaryFile(dir=self.path, prefix="ballast-", delete=False) as file:
            try:
                while (left := self.free_bytes - leave_bytes) > 0:
                    os.write(file.fileno(), bytes(min(MIB, left)))
            except OSError as error:
                assert error.errno == errno.ENOSPC

    def release(self) -> None:
        """Delete the files that `fill` created."""
        for ballast in self.path.glob("ballast-*"):
            ballast.unlink()
