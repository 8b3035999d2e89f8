"""A separate file system for a test, stored in a file, that can lose its power.

It needs root and a loop device. The power loss is the ioctl that shuts ext4 and XFS down without
writing their journal: data that was not synced is missing after the next mount, and until then
every write fails. The folder's name contains the id of the test process, so that later tests can
remove the volume of a test process that was killed.
"""

import fcntl
import os
import shutil
import struct
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.support.storage.memory_folder import folder_in_memory

FILE_SYSTEMS = ("ext4", "xfs")

_SHUTDOWN = 0x8004587D  # EXT4_IOC_SHUTDOWN, XFS_IOC_GOINGDOWN
_NO_LOG_FLUSH = struct.pack("I", 2)
_PREFIX = "holdfast-volume-"
_IMAGE_MIB = 1024  # sparse; a broker keeps 64 MiB free, and mkfs.xfs needs at least 300
_DEADLINE_S = 20.0


@contextmanager
def loop_volume(file_system: str, options: str = "") -> "Iterator[LoopVolume]":
    """Mount a file system until the block ends. Skip the test if this machine cannot do it."""
    if os.geteuid() != 0:
        pytest.skip("not root: nothing can be mounted")
    if not Path("/dev/loop-control").exists():
        pytest.skip("no loop devices here")
    if shutil.which(f"mkfs.{file_system}") is None:
        package = {"ext4": "e2fsprogs", "xfs": "xfsprogs"}[file_system]
        pytest.skip(f"mkfs.{file_system} is missing (package {package})")
    try:
        volume = LoopVolume(file_system, options)
    except CannotMount as error:
        pytest.skip(f"no loop device can be mounted here: {error}")
    try:
        yield volume
    finally:
        volume.remove()


class CannotMount(Exception):
    """The system refuses to mount, as containers do. The message is the system's."""


class LoopVolume:
    """A file system that is mounted at `path`. Always call `remove`."""

    def __init__(self, file_system: str, options: str = "") -> None:
        """Create and mount the file system, with mount `options` if given. Raise CannotMount."""
        parent = folder_in_memory(_IMAGE_MIB << 20) or Path(tempfile.gettempdir())
        _remove_abandoned(parent)
        self._folder = Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-", dir=parent))
        self._image = self._folder / "image"
        self._options = ",".join(filter(None, ("loop", options)))
        self.path = self._folder / "volume"
        self.path.mkdir()
        try:
            with self._image.open("wb") as image:
                image.truncate(_IMAGE_MIB << 20)
            _run(f"mkfs.{file_system}", "-q", self._image)
            self._mount()
        except BaseException:
            self.remove()
            raise

    def cut_power(self) -> None:
        """Lose all data that is not on the disk; every write fails from now on."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_DIRECTORY)
        try:
            fcntl.ioctl(descriptor, _SHUTDOWN, _NO_LOG_FLUSH)
        finally:
            os.close(descriptor)

    def restore_power(self) -> None:
        """Mount the file system again. No file on it may be open. Remove the pages of leases, which
        are valid only in one boot: the boot id is unchanged here."""
        _unmount(self.path)
        self._mount()
        for page in self.path.rglob("groups.page"):
            page.unlink()

    def lose_power(self, end_process: Callable[[], object]) -> None:
        """Cut the power, end the process that uses the file system, and restore the power."""
        self.cut_power()
        end_process()
        self.restore_power()

    def become_read_only(self) -> None:
        """Make a file system with errors=remount-ro read-only, as ext4 does if it finds damage."""
        number = self.path.stat().st_dev
        block_device = Path("/sys/dev/block", f"{os.major(number)}:{os.minor(number)}").resolve()
        Path("/sys/fs/ext4", block_device.name, "trigger_fs_error").write_text("tests")

    def remove(self) -> None:
        """Unmount and delete the file system; may be called twice."""
        _remove(self._folder)

    def _mount(self) -> None:
        _run("mount", "-o", self._options, self._image, self.path)


def _remove(folder: Path) -> None:
    # Not is_mount(): it fails after a power loss.
    if f" {folder / 'volume'} " in Path("/proc/self/mountinfo").read_text():
        _unmount(folder / "volume", lazily=True)
    shutil.rmtree(folder, ignore_errors=True)


def _unmount(path: Path, *, lazily: bool = False) -> None:
    """Unmount. Retry for some time: a process that was just killed may keep the volume busy."""
    deadline = time.monotonic() + (2.0 if lazily else _DEADLINE_S)
    while True:
        done = subprocess.run(["umount", path], capture_output=True, text=True, check=False)
        if done.returncode == 0:
            return
        if time.monotonic() > deadline:
            break
        time.sleep(0.02)
    if not lazily:
        raise AssertionError(f"{path} stays busy: {done.stderr}")
    subprocess.run(["umount", "--lazy", path], capture_output=True, check=False)


def _remove_abandoned(parent: Path) -> None:
    """Remove the volumes of test processes that no longer run."""
    for folder in parent.glob(f"{_PREFIX}*"):
        owner = folder.name.removeprefix(_PREFIX).partition("-")[0]
        if owner.isdecimal() and not Path("/proc", owner).exists():
            _remove(folder)


def _run(*command: object) -> None:
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise CannotMount(f"{command[0]}: {done.stderr.strip()}")
