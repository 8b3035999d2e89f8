"""Backups in object stores: whole or absent, incremental, and restorable after any failure."""

import asyncio
import contextlib
import shutil
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

pytest.importorskip("obstore")

from obstore.store import LocalStore, MemoryStore

from holdfast.backup.create import BackupReport, make_backup_in
from holdfast.backup.manifest import NotABackup
from holdfast.backup.object_backup import ObjectBackup, manifest_name, manifests
from holdfast.backup.object_store import (
    PART_BYTES,
    AccessDenied,
    ObjectExists,
    ObjectMissing,
    ObjectStore,
    ObstoreMissing,
    ObstoreStore,
    StoreFailed,
    StoreUrlWrong,
    folder_of,
    open_store,
)
from holdfast.backup.object_target import BackupOvertaken, ObjectTarget
from holdfast.backup.restore import RestoreRefused, restore_backup
from holdfast.backup.target import BackupRefused
from holdfast.check import check_data_dir
from holdfast.commitlog.format.segment_format import segment_name
from tests.support.storage.stored import MIB, batch, open_storage, read_queue, small_config
from tests.support.storage.three_segments import fill, fingerprints

Contents = list[tuple[int, bytes]]


class Killed(BaseException):
    """The process ends: nothing that it would do afterwards happens."""


class FailingStore:
    """A store whose call number `fails_at` fails. Each chunk of an upload counts as a call.

    `kills`: all later calls fail too, as after the end of the process."""

    def __init__(self, store: ObjectStore, fails_at: int, *, kills: bool = False) -> None:
        self.where = store.where
        self.calls = 0
        self.has_created = False
        self._store = store
        self._fails_at = fails_at
        self._kills = kills

    def _step(self) -> None:
        self.calls += 1
        if self.calls == self._fails_at or (self._kills and 0 < self._fails_at < self.calls):
            raise Killed if self._kills else StoreFailed(self.where, "the connection was lost")

    def put(self, name: str, data: Iterable[bytes]) -> None:
        def steps() -> Iterator[bytes]:
            for chunk in data:
                self._step()
                yield chunk

        self._store.put(name, steps())
        self._step()

    def create(self, name: str, data: bytes) -> None:
        self.has_created = True
        self._step()
        self._store.create(name, data)

    def read(self, name: str, size: int) -> Iterator[bytes]:
        self._step()
        return self._store.read(name, size)

    def sizes(self, folder: str) -> dict[str, int]:
        self._step()
        return self._store.sizes(folder)

    def top_names(self) -> list[str]:
        self._step()
        return self._store.top_names()

    def delete(self, names: list[str]) -> None:
        for name in names:
            self._step()
            self._store.delete([name])


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    asyncio.run(fill(data_dir))
    return data_dir


@pytest.fixture
def data_dir(filled: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled, tmp_path / "data"))


@pytest.fixture
def store() -> ObjectStore:
    return empty_store()


def empty_store() -> ObjectStore:
    return ObstoreStore(MemoryStore(), "memory://tests")


def copy_of(store: ObjectStore) -> ObjectStore:
    copy = empty_store()
    for folder in store.top_names():
        for name, size in store.sizes(folder).items():
            copy.put(name, store.read(name, size))
    return copy


def back_up(store: ObjectStore, data_dir: Path, keep: int | None = None) -> BackupReport:
    return make_backup_in(ObjectTarget(store, keep=keep), data_dir)


def contents_of(data_dir: Path) -> Contents:
    async def read() -> Contents:
        async with open_storage(small_config(data_dir)) as storage:
            assert storage.degraded == []
            return await read_queue(storage.store, storage.store.table.get("t"), 0)

    return asyncio.run(read())


def publish(data_dir: Path, text: str) -> None:
    async def run() -> None:
        async with open_storage(small_config(data_dir)) as storage:
            await storage.store.publishing.publish(storage.store.table.get("t"), [batch(text, 0)])

    asyncio.run(run())


def restored(store: ObjectStore, folder: Path, number: int | None = None) -> Contents:
    shutil.rmtree(folder, ignore_errors=True)
    restore_backup(ObjectBackup(store, number), folder)
    assert check_data_dir(folder).is_sound
    return contents_of(folder)


def names(store: ObjectStore) -> set[str]:
    return {name for folder in store.top_names() for name in store.sizes(folder)}


# -- backup and restore


def test_a_restored_directory_has_the_same_content(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    before = fingerprints(data_dir)
    done: list[tuple[int, int]] = []
    report = make_backup_in(
        ObjectTarget(store), data_dir, progress=lambda count, total: done.append((count, total))
    )
    assert fingerprints(data_dir) == before
    assert done[-1][0] == done[-1][1] > 2 * MIB
    assert report.copied_bytes == sum(file.stored_bytes for file in report.manifest.files)
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_sealed_segments_are_uploaded_once(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    back_up(store, data_dir)
    first = names(store)
    publish(data_dir, "one more")
    report = back_up(store, data_dir)
    assert report.reused_bytes == 2 * MIB
    assert report.copied_bytes < MIB
    added = names(store) - first
    assert first < names(store)
    assert not any(segment_name(0) in name or segment_name(MIB) in name for name in added)
    assert restored(store, tmp_path / "new")[-1][1] == b"one more"
    # The first backup is still there.
    assert restored(store, tmp_path / "old", 1) == restored(store, tmp_path / "new")[:-1]


def test_old_backups_are_removed_if_asked(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    for _ in range(3):
        back_up(store, data_dir)
    report = back_up(store, data_dir, keep=2)
    assert (report.notes, list(manifests(store))) == ([], [3, 4])
    assert restored(store, tmp_path / "new", 3) == restored(store, tmp_path / "new", 4)
    with pytest.raises(NotABackup, match="no backup 1; it has 3, 4"):
        restored(store, tmp_path / "new", 1)
    back_up(store, data_dir, keep=1)
    # Two segments of backup 1; the tail, the state and the manifest of backup 5.
    assert len(names(store)) == 5
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_a_segment_that_is_missing_in_the_store_is_uploaded_again(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    report = back_up(store, data_dir)
    segment = next(iter(report.manifest.of_role("segment")))
    store.delete([segment.stored_as])
    report = back_up(store, data_dir)
    assert report.reused_bytes == MIB
    assert any("copied again" in note for note in report.notes)
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_tokens_are_restored_only_for_their_owner(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    (data_dir / "access").mkdir()
    (data_dir / "access" / "tokens").write_bytes(b"whatever tokens are")
    back_up(store, data_dir)
    restore_backup(ObjectBackup(store), tmp_path / "new")
    file = tmp_path / "new" / "access" / "tokens"
    assert file.read_bytes() == b"whatever tokens are"
    assert file.stat().st_mode & 0o777 == 0o600


# -- what a restore refuses


def test_a_damaged_backup_is_not_restored_and_what_is_missing_is_named(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    report = back_up(store, data_dir)
    files = [file.stored_as for file in report.manifest.files]
    for name in files:
        (size,) = (file.stored_bytes for file in report.manifest.files if file.stored_as == name)
        image = b"".join(store.read(name, size))
        for spoilt, match in (
            (image[:-1], f"{name} has {size - 1} bytes, not {size}"),
            (image + b"\0", f"{name} has {size + 1} bytes, not {size}"),
            (image[:-1] + bytes([image[-1] ^ 1]), f"{name} has changed"),
        ):
            store.put(name, [spoilt])
            with pytest.raises(NotABackup, match=match):
                restore_backup(ObjectBackup(store), tmp_path / "new")
        store.put(name, [image])
    store.delete(files[:2])
    with pytest.raises(NotABackup, match=f"{files[0]} is missing; {files[1]} is missing$"):
        restore_backup(ObjectBackup(store), tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["data"]


def test_nothing_is_restored_over_other_files_or_without_a_manifest(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    with pytest.raises(NotABackup, match="no object manifests"):
        restore_backup(ObjectBackup(store), tmp_path / "new")
    back_up(store, data_dir)
    with pytest.raises(RestoreRefused, match="is not empty"):
        restore_backup(ObjectBackup(store), data_dir)
    store.put(manifest_name(2), [b"not a manifest"])
    with pytest.raises(NotABackup, match="MANIFEST has the format"):
        restore_backup(ObjectBackup(store), tmp_path / "new")
    with pytest.raises(BackupRefused, match="use another prefix"):
        ObjectTarget(store)


def test_a_prefix_with_other_objects_is_refused(store: ObjectStore) -> None:
    store.put("letters/to-her", [b"..."])
    with pytest.raises(BackupRefused, match="contains 'letters'"):
        ObjectTarget(store)


# -- failures


@pytest.mark.parametrize("kills", [False, True], ids=["error", "kill"])
def test_a_failure_at_any_step_leaves_a_complete_latest_backup(
    data_dir: Path, tmp_path: Path, kills: bool
) -> None:
    earlier, old = empty_store(), contents_of(data_dir)
    back_up(earlier, data_dir)
    publish(data_dir, "one more")
    new = contents_of(data_dir)
    is_new_at = []
    for fails_at in range(1, 200):
        store = copy_of(earlier)
        failing = FailingStore(store, fails_at, kills=kills)
        with contextlib.suppress(StoreFailed, Killed):
            back_up(failing, data_dir, keep=1)
        is_new = max(manifests(store)) == 2
        is_new_at.append(is_new)
        assert restored(store, tmp_path / "new") == (new if is_new else old)
        if not kills and not failing.has_created:
            assert names(store) == names(earlier), "a failed backup has left files"
        if failing.calls < fails_at:
            break
        # The next backup succeeds, and nothing is left of the failed one.
        back_up(store, data_dir, keep=1)
        assert restored(store, tmp_path / "new") == new
        assert len(names(store)) == len(names(earlier))
    assert is_new_at == sorted(is_new_at)
    assert is_new_at.count(False) > 10
    assert is_new_at.count(True) > 5


def test_a_manifest_whose_answer_was_lost_counts_and_its_files_stay(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    class LosesTheAnswer(FailingStore):
        def create(self, name: str, data: bytes) -> None:
            super().create(name, data)
            raise StoreFailed(name, "the connection was lost")

    with pytest.raises(StoreFailed, match="connection was lost"):
        back_up(LosesTheAnswer(store, 0), data_dir)
    assert list(manifests(store)) == [1]
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_a_retried_creation_that_finds_its_own_manifest_succeeds(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    class Retrying(FailingStore):
        def create(self, name: str, data: bytes) -> None:
            super().create(name, data)
            raise ObjectExists(name, "it exists already")

    back_up(Retrying(store, 0), data_dir)
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_of_two_backups_at_the_same_time_one_fails_and_leaves_nothing(
    store: ObjectStore, data_dir: Path, tmp_path: Path
) -> None:
    late = ObjectTarget(store)
    back_up(store, data_dir)
    first = names(store)
    with pytest.raises(BackupOvertaken):
        make_backup_in(late, data_dir)
    assert names(store) == first
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


@pytest.mark.parametrize("others", [1, 2])
def test_a_backup_that_is_overtaken_at_its_last_step_leaves_nothing(
    store: ObjectStore, data_dir: Path, tmp_path: Path, others: int
) -> None:
    class Overtaken(FailingStore):
        """Other backups end just before this one creates its manifest, and remove old ones."""

        def create(self, name: str, data: bytes) -> None:
            for _ in range(others):
                back_up(store, data_dir, keep=1)
            self.found = names(store)
            super().create(name, data)

    overtaken = Overtaken(store, 0)
    with pytest.raises(BackupOvertaken):
        back_up(overtaken, data_dir)
    assert manifests(store).keys() == {others}
    # The other backup has removed the files of the overtaken one already, or that one does it now.
    assert names(store) <= overtaken.found
    assert restored(store, tmp_path / "new") == contents_of(data_dir)


def test_files_of_a_running_backup_are_not_removed_with_old_ones(
    store: ObjectStore, data_dir: Path
) -> None:
    later: list[str] = []

    class Slow(FailingStore):
        """The next backup begins while this one removes old files."""

        def delete(self, names: list[str]) -> None:
            if not later:
                target = ObjectTarget(store)
                later.append(target.add("access/tokens", [b"x"], lambda count: None).stored_as)
            super().delete(names)

    back_up(store, data_dir)
    back_up(Slow(store, 0), data_dir, keep=1)
    assert list(manifests(store)) == [2]
    assert later[0] in names(store)


# -- the store itself


@pytest.fixture(params=["memory", "file"])
def any_store(request: pytest.FixtureRequest, tmp_path: Path) -> ObjectStore:
    if request.param == "memory":
        return ObstoreStore(MemoryStore(), "memory://tests")
    (tmp_path / "objects").mkdir()
    return ObstoreStore(LocalStore(str(tmp_path / "objects")), "file://tests")


@pytest.mark.parametrize(
    "sizes", [[], [3], [MIB] * 7, [MIB] * 8, [MIB] * 17 + [1], [2 * PART_BYTES + 5]]
)
def test_an_object_has_the_bytes_that_were_put(any_store: ObjectStore, sizes: list[int]) -> None:
    data = [bytes([number % 251]) * size for number, size in enumerate(sizes)]
    any_store.put("commitlog/a", iter(data))
    assert any_store.sizes("commitlog") == {"commitlog/a": sum(sizes)}
    parts = list(any_store.read("commitlog/a", sum(sizes)))
    assert b"".join(parts) == b"".join(data)
    assert all(len(part) <= PART_BYTES for part in parts)


def test_an_upload_reads_no_more_than_a_few_parts_ahead() -> None:
    """What is uploaded is not gathered in memory first."""

    class Counting:
        def put(self, store: object, name: str, data: Iterable[bytes], **options: object) -> None:
            assert options["use_multipart"] is True
            assert options["chunk_size"] == PART_BYTES
            sent = 0
            for chunk in data:
                sent += len(chunk)
                assert produced - sent <= PART_BYTES
            assert sent == 64 * MIB

    produced = 0

    def data() -> Iterator[bytes]:
        nonlocal produced
        for _ in range(64):
            produced += MIB
            yield bytes(MIB)

    target = ObstoreStore(MemoryStore(), "memory://tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("obstore.put", Counting().put)
        target.put("commitlog/a", data())


def test_failed_uploads_and_missing_objects_are_named(any_store: ObjectStore) -> None:
    def breaks() -> Iterator[bytes]:
        yield bytes(2 * PART_BYTES)
        raise OSError(5, "Input/output error")

    with pytest.raises(OSError, match="Input/output error"):
        any_store.put("commitlog/a", breaks())
    assert any_store.sizes("commitlog") == {}
    with pytest.raises(ObjectMissing, match=r"tests/commitlog/a: .*not found"):
        list(any_store.read("commitlog/a", 1))
    any_store.delete(["commitlog/a"])
    any_store.create("manifests/1", b"x")
    with pytest.raises(ObjectExists, match="tests/manifests/1"):
        any_store.create("manifests/1", b"y")
    assert "manifests" in any_store.top_names()
    try:
        list(any_store.read("none", 1))
    except StoreFailed as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("url", "match"),
    [
        ("ftp://host/x", "'ftp' is not known; use one of abfs, "),
        ("memory:///", "'memory' is not known"),
        ("s3:///x", "names no bucket; use s3://BUCKET/PREFIX"),
        ("s3://bucket/x?versionId=1", "no '[?]'"),
        ("file://folder/x", "with three slashes"),
        ("file:///", "with three slashes"),
        ("s3://[x/y", "s3://.x/y: "),
    ],
)
def test_a_wrong_url_is_refused(url: str, match: str) -> None:
    with pytest.raises(StoreUrlWrong, match=match):
        open_store(url)


def test_a_password_in_a_url_is_refused_and_not_repeated() -> None:
    with pytest.raises(StoreUrlWrong, match="in the environment") as caught:
        open_store("s3://user:secret@bucket/x")
    assert "secret" not in str(caught.value)


def test_a_url_of_a_file_is_a_folder(tmp_path: Path) -> None:
    assert folder_of("file:///a%20b/c") == Path("/a b/c")
    assert folder_of("s3://bucket/x") is None
    url = f"file://{tmp_path}/new%20folder"
    with pytest.raises(ObjectMissing, match="no such folder"):
        open_store(url)
    open_store(url, make=True).put("commitlog/a", [b"x"])
    assert (tmp_path / "new folder" / "commitlog" / "a").read_bytes() == b"x"


def test_a_missing_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "obstore.store", None)
    with pytest.raises(ObstoreMissing, match=r"pip install 'holdfast\[objectstore\]'"):
        open_store("s3://bucket/x")


def test_missing_credentials_are_a_lack_of_rights() -> None:
    class Failing:
        def put(self, *arguments: object, **options: object) -> None:
            raise NotImplementedError(
                "Error performing PUT http://169.254.169.254/latest: no route"
            )

    store = empty_store()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("obstore.put", Failing().put)
        with pytest.raises(AccessDenied, match="no credentials are in the environment"):
            store.create("x", b"")


def test_a_secret_in_the_query_of_a_failed_request_is_not_shown() -> None:
    class Failing:
        def put(self, *arguments: object, **options: object) -> None:
            raise NotImplementedError("PUT https://a.net/c?sig=secret failed\n\nDebug source: x")

    store = ObstoreStore(MemoryStore(), "memory://tests")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("obstore.put", Failing().put)
        with pytest.raises(StoreFailed) as caught:
            store.create("x", b"")
    assert str(caught.value) == "memory://tests/x: PUT https://a.net/c?... failed"
