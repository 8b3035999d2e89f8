"""The manifest of a backup: the list of its files. Pure: bytes in, bytes out.

    holdfast-backup-1 <SHA-256 of the rest of the file, in hex>\n
    { ... }   JSON

The manifest is written last, so a folder without a manifest is not a backup. The first line has the
checksum of the rest of the manifest. The rest has the checksum of every other file.
"""

import hashlib
import json
import re
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field

from holdfast.commitlog.errors import LogError

MANIFEST_NAME = "MANIFEST"
FORMAT = "holdfast-backup-1"

_PART = r"[A-Za-z0-9_-][A-Za-z0-9_.-]*"
_STORED_AS = re.compile(rf"{_PART}/{_PART}")
_NAMES = re.compile(rf"commitlog/\d{{20}}|state/(groups/)?data\.mdb|access/{_PART}")


@dataclass(eq=False, repr=False)
class NotABackup(LogError):
    """The folder is not a complete backup, or the backup is damaged."""

    sentence = "{where} is not an intact backup: {reason}"
    where: object
    reason: str


@dataclass(frozen=True, slots=True)
class BackupFile:
    """One file of a backup.

    `name` is its path in a data directory, `stored_as` its path in the backup. `size` is its size
    in a data directory; a segment that was being written is stored only up to its last block, and
    the rest reads as zeros. `identity` is set for sealed segments, which never change again.
    """

    role: str
    name: str
    stored_as: str
    size: int
    stored_bytes: int
    sha256: str
    identity: str | None = None


@dataclass(frozen=True, slots=True)
class Manifest:
    """The contents of a backup. `min_offset` and `end_offset` are physical offsets. Between them
    the log is complete, except for `damage`, which the source had already."""

    backup_id: str
    created_timestamp_us: int
    holdfast_version: str
    layout_version: str
    min_offset: int
    end_offset: int
    files: tuple[BackupFile, ...]
    damage: tuple[str, ...] = field(default=())

    def of_role(self, *roles: str) -> Iterable[BackupFile]:
        """Yield the files of these roles: "segment", "tail", "state", "groups", "access"."""
        return (file for file in self.files if file.role in roles)


def encode_manifest(manifest: Manifest) -> bytes:
    """Return the manifest as bytes, with its checksum line."""
    text = json.dumps(asdict(manifest), indent=1).encode() + b"\n"
    return f"{FORMAT} {hashlib.sha256(text).hexdigest()}\n".encode() + text


def decode_manifest(raw: bytes, where: object) -> Manifest:
    """Return the manifest. Raise NotABackup unless it is intact."""
    first, newline, text = raw.partition(b"\n")
    found, _, checksum = first.decode("ascii", "replace").partition(" ")
    if found != FORMAT:
        raise NotABackup(
            where,
            f"its {MANIFEST_NAME} has the format {found[:40]!r}, this Holdfast reads {FORMAT!r}: "
            "it is damaged, or a newer Holdfast wrote it",
        )
    if not newline or hashlib.sha256(text).hexdigest() != checksum:
        raise NotABackup(where, f"its {MANIFEST_NAME} is damaged; take another backup")
    try:
        fields = json.loads(text)
        files = tuple(BackupFile(**file) for file in fields.pop("files"))
        manifest = Manifest(**{**fields, "files": files, "damage": tuple(fields["damage"])})
        are_within = all(
            _NAMES.fullmatch(file.name) and _STORED_AS.fullmatch(file.stored_as) for file in files
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        raise NotABackup(where, f"its {MANIFEST_NAME} is malformed: {error}") from error
    if not are_within:
        raise NotABackup(where, f"its {MANIFEST_NAME} lists files that no backup contains")
    return manifest
