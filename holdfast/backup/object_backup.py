"""The backups below one URL of an object store, for reading.

    manifests/0000000007            manifest of backup 7, created last; never overwritten
    commitlog/NAME.0000000007-1a2b  files, with the id of the backup that uploaded them
    state/..., groups/..., access/...

A manifest may list files of earlier backups. The highest number is the latest backup.
"""

import re
from collections.abc import Iterator

from holdfast.backup.manifest import BackupFile, Manifest, NotABackup, decode_manifest
from holdfast.backup.object_store import ObjectMissing, ObjectStore
from holdfast.commitlog.disk.data_dir import LAYOUT_VERSION, is_readable
from holdfast.commitlog.errors import UnknownFormatVersion

MANIFESTS = "manifests"
#: The folders of a backup's files.
FOLDERS = ("commitlog", "state", "groups", "access")

_MANIFEST = re.compile(rf"{MANIFESTS}/(\d{{10}})")
_SHOWN = 5


def manifest_name(number: int) -> str:
    return f"{MANIFESTS}/{number:010d}"


def manifests(store: ObjectStore) -> dict[int, int]:
    """Return the sizes of the manifests by the numbers of their backups, the oldest first. Raise
    StoreFailed."""
    found = store.sizes(MANIFESTS)
    numbers = {
        int(match[1]): size
        for name, size in found.items()
        if (match := _MANIFEST.fullmatch(name)) is not None
    }
    return dict(sorted(numbers.items()))


def load_manifest(store: ObjectStore, number: int, size: int) -> Manifest:
    """Return the manifest of one backup. Raise NotABackup if it is damaged, or StoreFailed."""
    raw = b"".join(store.read(manifest_name(number), size))
    return decode_manifest(raw, f"{store.where} (backup {number})")


def wrong_files(store: ObjectStore, manifest: Manifest) -> list[str]:
    """Return one text per file of a backup that is missing or has another size. Only lists; reads
    no file. Raise StoreFailed."""
    found: dict[str, int] = {}
    for folder in sorted({file.stored_as.partition("/")[0] for file in manifest.files}):
        found |= store.sizes(folder)
    wrong = []
    for file in manifest.files:
        size = found.get(file.stored_as)
        if size is None:
            wrong.append(f"{file.stored_as} is missing")
        elif size != file.stored_bytes:
            wrong.append(f"{file.stored_as} has {size} bytes, not {file.stored_bytes}")
    return wrong


def first_of(wrong: list[str]) -> str:
    """Return the first few texts on one line, and how many more there are."""
    rest = len(wrong) - _SHOWN
    return "; ".join(wrong[:_SHOWN]) + (f"; and {rest} more" if rest > 0 else "")


class ObjectBackup:
    """One of the backups below a URL: the latest, or the one with `number`."""

    def __init__(self, store: ObjectStore, number: int | None = None) -> None:
        self.where = store.where
        self._store = store
        self._number = number

    def read_manifest(self) -> Manifest:
        """Return the manifest, after a comparison with the list of the stored files. Raise
        NotABackup, UnknownFormatVersion or StoreFailed."""
        found = manifests(self._store)
        if not found:
            raise NotABackup(self.where, f"there is no object {MANIFESTS}/..., which is its end")
        number = max(found) if self._number is None else self._number
        if number not in found:
            there = ", ".join(str(each) for each in found)
            raise NotABackup(self.where, f"it has no backup {number}; it has {there}")
        manifest = load_manifest(self._store, number, found[number])
        if not is_readable(manifest.layout_version):
            raise UnknownFormatVersion(
                f"backup {number} of {self.where}", manifest.layout_version, LAYOUT_VERSION
            )
        if wrong := wrong_files(self._store, manifest):
            raise NotABackup(self.where, f"backup {number}: {first_of(wrong)}")
        return manifest

    def chunks(self, file: BackupFile) -> Iterator[bytes]:
        """Yield the bytes of a file. Raise NotABackup if it is missing, or StoreFailed."""
        try:
            yield from self._store.read(file.stored_as, file.stored_bytes)
        except ObjectMissing as error:
            raise NotABackup(self.where, f"{file.stored_as} is missing") from error
