"""Where a backup is put: a folder (folder_target.py) or an object store (object_target.py).

A target never changes a file that an earlier manifest lists. So an earlier backup stays complete
until the new manifest is in place, and from then on the new backup is complete.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from holdfast.backup.files import Progress
from holdfast.backup.manifest import BackupFile, Manifest
from holdfast.commitlog.errors import LogError
from holdfast.commitlog.segments.segment import Segment


@dataclass(eq=False, repr=False)
class BackupRefused(LogError):
    """A backup may not be put into the given place. `reason` includes how to fix it."""

    sentence = "no backup is made in {where}: {reason}"
    where: object
    reason: str


@dataclass(frozen=True, slots=True)
class Added:
    """A file that a target has got. `is_cloned`: it shares its disk blocks with the source."""

    stored_as: str
    stored_bytes: int
    sha256: str
    is_cloned: bool = False


class Target(Protocol):
    """The place of one backup. Call `begin` first, and `finish` or `abandon` last."""

    @property
    def backup_id(self) -> str: ...

    @property
    def previous(self) -> Manifest | None:
        """The manifest of the latest backup in this place, None if there is none."""

    @property
    def notes(self) -> list[str]:
        """Harmless observations of this target."""

    def begin(self) -> None:
        """Mark the place as used by an unfinished backup, if the place has such a mark."""

    def has_intact(self, earlier: BackupFile) -> bool:
        """Return whether a file of the previous backup is still there, unchanged."""

    def add_sealed(self, name: str, segment: Segment, progress: Progress) -> Added:
        """Copy a whole sealed segment."""

    def add(self, name: str, data: Iterable[bytes], progress: Progress) -> Added:
        """Store a file whose path in a data directory is `name`."""

    def add_environment(self, name: str, write: Callable[[Path], bool]) -> Added | None:
        """Let `write` write an LMDB environment into a new folder, and store its data file. Return
        None if `write` returns False, because there is nothing to store."""

    def finish(self, manifest: Manifest) -> None:
        """Put the manifest in place, and remove what no kept backup needs. After an exception the
        earlier backup is still complete."""

    def abandon(self) -> None:
        """Remove the files of this backup, because it failed. Errors are ignored."""
