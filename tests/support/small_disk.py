"""A small file system of its own, in memory, that a test fills and frees. Only root may mount."""

import errno
import os
import subprocess
import tempfile
from pathlib import Path
from types import TracebackType
from typing import Self

import pytest

MIB = 1024 * 1024


class SmallDisk:
    """A mounted tmpfs of so many bytes. Skips the test where that cannot be."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self.path = path
        self._size_bytes = size_bytes

    def __enter__(self) -> Self:
        if os.geteuid() != 0:
            pytest.skip("not root: nothing can be mounted")
        self.path.mkdir(parents=True, exist_ok=True)
        options = f"size={self._size_bytes}"
        done = subprocess.run(
            ["mount", "-t", "tmpfs", "-o", options, "tmpfs", self.path],
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode:
            pytest.skip(f"cannot mount: {done.stderr.strip()}")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Lazily: a broker that a failed test left behind must not keep it.
        subprocess.run(["umount", "--lazy", self.path], capture_output=True, check=False)

    @property
    def free_bytes(self) -> int:
        """How much room is left."""
        stats = os.statvfs(self.path)
        return stats.f_bavail * stats.f_frsize

    def fill(self, leave_bytes: int = 0) -> None:
        """Take all of the room but so much, to the last page."""
        with tempfile.NamedTemporaryFile(dir=self.path, prefix="ballast-", delete=False) as file:
            try:
                while (left := self.free_bytes - leave_bytes) > 0:
                    os.write(file.fileno(), bytes(min(MIB, left)))
            except OSError as error:
                assert error.errno == errno.ENOSPC

    def release(self) -> None:
        """Give back what `fill` took."""
        for ballast in self.path.glob("ballast-*"):
            ballast.unlink()
