"""A backup holds everything, is refused if a byte is wrong, and can be restored completely."""

import asyncio
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from holdfast.backup.create import make_backup
from holdfast.backup.folder_target import UNFINISHED
from holdfast.backup.manifest import (
    MANIFEST_NAME,
    BackupFile,
    Manifest,
    NotABackup,
    decode_manifest,
    encode_manifest,
)
from holdfast.backup.restore import RestoreRefused, restore_backup
from holdfast.backup.source import LiveState
from holdfast.backup.stored import read_manifest, verify_files
from holdfast.backup.target import BackupRefused
from holdfast.check import check_data_dir
from holdfast.commitlog.disk.data_dir import DataDir, NotADataDir
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_encoding import Rows
from holdfast.commitlog.format.segment_format import segment_name
from holdfast.consumequeue.state.records import (
    StoredOffsets,
    decode_kept,
    decode_offsets,
    encode_kept,
    encode_offsets,
    offsets_key,
)
from tests.support.storage.small_log import flip_bit
from tests.support.storage.stored import (
    MIB,
    batch,
    fill_segment,
    open_storage,
    read_queue,
    settled,
    small_config,
    until,
)
from tests.support.storage.three_segments import fingerprints

ENVELOPE = b"of AMQP"

Contents = dict[int, list[tuple[int, bytes]]]


async def _fill(data_dir: Path) -> Contents:
    """Make two full sealed segments and one that is not full; return each queue's messages."""
    async with open_storage(small_config(data_dir)) as storage:
        store = storage.store
        topic, _ = await store.topics.create("t", queues=2, fields={"retention_bytes": 10 * MIB})
        await store.publishing.publish(topic, [Rows(0, [b"first"], 1, envelopes=[ENVELOPE])])
        for number in range(10):
            await store.publishing.publish(
                topic, [batch([f"body {number}", "x"], number % 2, key="k")]
            )
        for queue in (0, 1):
            await fill_segment(storage, topic, queue)
            await store.publishing.publish(topic, [batch(f"in segment {queue + 2}", queue)])
        await store.offsets.store_offsets("g", topic, {0: 3, 1: 2})
        await settled(storage)
        await until(lambda: all(segment.sealed for segment in storage.log.segments[:-1]))
        return {queue: await read_queue(store, topic, queue) for queue in (0, 1)}


async def _publish(data_dir: Path, *texts: str) -> None:
    async with open_storage(small_config(data_dir)) as storage:
        for text in texts:
            await storage.store.publishing.publish(storage.store.table.get("t"), [batch(text, 0)])


async def _contents(data_dir: Path) -> Contents:
    async with open_storage(small_config(data_dir)) as storage:
        topic = storage.store.table.get("t")
        assert topic.config.retention_bytes == 10 * MIB
        assert storage.store.offsets.stored_offsets("g", topic).offsets == {0: 3, 1: 2}
        assert storage.degraded == []
        first = await storage.store.reading.read(topic, 0, 0, max_messages=1, max_bytes=1)
        assert first.slices[0].batch.envelope(0) == ENVELOPE
        return {queue: await read_queue(storage.store, topic, queue) for queue in (0, 1)}


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Contents]:
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    return data_dir, asyncio.run(_fill(data_dir))


@pytest.fixture(scope="module")
def backed_up(
    filled: tuple[Path, Contents], tmp_path_factory: pytest.TempPathFactory
) -> tuple[Path, Contents]:
    target = tmp_path_factory.mktemp("backup") / "b"
    make_backup(filled[0], target)
    return target, filled[1]


@pytest.fixture
def data_dir(filled: tuple[Path, Contents], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[0], tmp_path / "data"))


@pytest.fixture
def stored(backed_up: tuple[Path, Contents], tmp_path: Path) -> Path:
    return Path(shutil.copytree(backed_up[0], tmp_path / "stored"))


# -- backup and restore --------------------------------------------------------------------


def test_a_restored_directory_has_the_same_content(
    backed_up: tuple[Path, Contents], tmp_path: Path
) -> None:
    target, contents = backed_up
    restore_backup(target, tmp_path / "new")
    report = check_data_dir(tmp_path / "new")
    assert report.is_sound, report.findings
    assert asyncio.run(_contents(tmp_path / "new")) == contents


def test_a_backup_does_not_change_its_source(data_dir: Path, tmp_path: Path) -> None:
    before = fingerprints(data_dir)
    make_backup(data_dir, tmp_path / "b")
    assert fingerprints(data_dir) == before


async def test_an_empty_broker_is_backed_up(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path / "data")):
        pass
    make_backup(tmp_path / "data", tmp_path / "b")
    restore_backup(tmp_path / "b", tmp_path / "new")
    async with open_storage(small_config(tmp_path / "new")) as storage:
        assert storage.degraded == []
    shutil.rmtree(tmp_path / "data" / "commitlog")
    with pytest.raises(BackupRefused, match="has no log"):
        make_backup(tmp_path / "data", tmp_path / "b2")
    assert not (tmp_path / "b2").exists()


def test_a_restored_queue_continues_after_its_last_message(
    backed_up: tuple[Path, Contents], tmp_path: Path
) -> None:
    target, contents = backed_up
    restore_backup(target, tmp_path / "new")
    asyncio.run(_publish(tmp_path / "new", "one more"))
    found = asyncio.run(_contents(tmp_path / "new"))
    assert found[0] == [*contents[0], (len(contents[0]), b"one more")]


def test_a_missing_state_is_backed_up_from_the_log(
    data_dir: Path, filled: tuple[Path, Contents], tmp_path: Path
) -> None:
    shutil.rmtree(data_dir / "state")
    report = make_backup(data_dir, tmp_path / "b")
    assert report.manifest.damage == ()
    assert any("read from the log" in note for note in report.notes)
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert asyncio.run(_contents(tmp_path / "new")) == filled[1]


def test_tokens_are_backed_up_only_for_their_owner(data_dir: Path, tmp_path: Path) -> None:
    (data_dir / "access").mkdir()
    (data_dir / "access" / "tokens").write_bytes(b"whatever tokens are")
    make_backup(data_dir, tmp_path / "b")
    restore_backup(tmp_path / "b", tmp_path / "new")
    restored = tmp_path / "new" / "access" / "tokens"
    assert restored.read_bytes() == b"whatever tokens are"
    assert restored.stat().st_mode & 0o777 == 0o600


def test_a_torn_tail_is_not_backed_up(data_dir: Path, tmp_path: Path) -> None:
    before = make_backup(data_dir, tmp_path / "before").manifest.end_offset
    asyncio.run(_publish(data_dir, "the very last"))
    segment = data_dir / "commitlog" / segment_name(2 * MIB)
    image = bytearray(segment.read_bytes())
    image[image.index(b"the very last")] ^= 1
    # The rest of the log is zeros, so nothing proves that the damaged block was ever durable.
    at = image.rindex(b"HFBT", 0, image.index(b"e very last"))
    end = at + int.from_bytes(image[at + 8 : at + 12], "little")
    segment.write_bytes(image[:end] + bytes(MIB - end))
    report = make_backup(data_dir, tmp_path / "b")
    assert before < report.manifest.end_offset <= 2 * MIB + at
    assert report.manifest.damage == ()


def test_offsets_are_read_before_the_log_and_other_records_after_it(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log contains all messages before the offsets, and the messages of later topics."""
    looks = 0

    def records(state: LiveState) -> tuple[dict[bytes, bytes], list[bytes]]:
        nonlocal looks
        looks += 1
        found, damaged = LiveState._read(state)
        later = {b"next_topic_id": b"\x09", b"kept/1": encode_kept({0: looks})}
        offsets = {offsets_key("g", 1): encode_offsets(StoredOffsets({0: looks}, looks))}
        return found | offsets | (later if looks == 2 else {}), damaged

    monkeypatch.setattr(LiveState, "records", records)
    manifest = make_backup(data_dir, tmp_path / "b").manifest
    assert looks == 2
    (state,) = manifest.of_role("state")
    found = LiveState((tmp_path / "b" / state.stored_as).parent)._read()[0]
    assert decode_offsets(found[b"offsets/g/1"]).offsets == {0: 1}
    assert found[b"next_topic_id"] == b"\x09"
    assert decode_kept(found[b"kept/1"]) == {0: 2}


def _last_block(segment: Path) -> tuple[int, int]:
    """Return the start and the end of a segment's last block."""
    image = segment.read_bytes()
    at = image.rindex(b"HFBT")
    return at, at + int.from_bytes(image[at + 8 : at + 12], "little")


def test_a_backup_waits_for_a_write_in_progress(
    data_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    segment = data_dir / "commitlog" / segment_name(2 * MIB)
    at, end = _last_block(segment)
    image = segment.read_bytes()
    segment.write_bytes(image[: at + 100] + bytes(MIB - at - 100))
    monkeypatch.setattr(
        "holdfast.backup.source.time.sleep", lambda seconds: segment.write_bytes(image)
    )
    report = make_backup(data_dir, tmp_path / "b")
    assert report.manifest.end_offset == 2 * MIB + end
    assert report.manifest.damage == ()


def test_blocks_after_damage_in_the_last_segment_are_backed_up(
    data_dir: Path, tmp_path: Path
) -> None:
    asyncio.run(_publish(data_dir, "soon damaged"))
    asyncio.run(_publish(data_dir, "after it"))
    segment = data_dir / "commitlog" / segment_name(2 * MIB)
    flip_bit(segment, segment.read_bytes().index(b"soon damaged"))
    report = make_backup(data_dir, tmp_path / "b")
    assert report.manifest.end_offset == 2 * MIB + _last_block(segment)[1]
    (damage,) = report.manifest.damage
    assert "payload-crc" in damage
    restore_backup(tmp_path / "b", tmp_path / "new")
    found = check_data_dir(tmp_path / "new")
    assert [str(lost) for each in found.findings for lost in each.lost] == [
        f"offsets {found.ends[1, 0] - 2} to {found.ends[1, 0] - 1} of queue 0 of 't'"
    ]


# -- incremental backups -------------------------------------------------------------------


def test_sealed_segments_are_not_copied_twice(data_dir: Path, tmp_path: Path) -> None:
    first = make_backup(data_dir, tmp_path / "b")
    times = {
        path: path.stat().st_mtime_ns for path in (tmp_path / "b" / "commitlog").glob("?" * 20)
    }
    asyncio.run(_publish(data_dir, "one more"))
    second = make_backup(data_dir, tmp_path / "b", incremental=True)
    assert (first.reused_bytes, second.reused_bytes) == (0, 2 * MIB)
    assert len(times) == 2
    assert all(path.stat().st_mtime_ns == time for path, time in times.items())
    assert second.copied_bytes < first.copied_bytes
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert asyncio.run(_contents(tmp_path / "new"))[0][-1][1] == b"one more"
    # Files that only the earlier backup needed are gone.
    assert len(list((tmp_path / "b").iterdir())) == 3


def test_a_segment_damaged_in_the_backup_is_copied_again(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "b")
    flip_bit(tmp_path / "b" / "commitlog" / segment_name(0), 9000)
    report = make_backup(data_dir, tmp_path / "b", incremental=True)
    assert any("copied again" in note for note in report.notes)
    assert verify_files(tmp_path / "b", report.manifest) == []


def test_a_damaged_source_does_not_replace_an_intact_copy(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "b")
    flip_bit(data_dir / "commitlog" / segment_name(0), 9000)
    report = make_backup(data_dir, tmp_path / "b", incremental=True)
    assert report.reused_bytes == 2 * MIB
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert check_data_dir(tmp_path / "new").is_sound


def test_damage_of_the_source_is_copied_and_listed(data_dir: Path, tmp_path: Path) -> None:
    flip_bit(data_dir / "commitlog" / segment_name(0), 9000)
    report = make_backup(data_dir, tmp_path / "b")
    assert any("the source's log" in each for each in report.manifest.damage)
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert not check_data_dir(tmp_path / "new").is_sound


def test_segments_of_another_history_are_not_reused(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "b")
    shutil.rmtree(data_dir)
    contents = asyncio.run(_fill(data_dir))
    report = make_backup(data_dir, tmp_path / "b", incremental=True)
    assert report.reused_bytes == 0
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert asyncio.run(_contents(tmp_path / "new")) == contents


def test_a_segment_whose_header_is_damaged_is_backed_up_with_all_its_blocks(
    data_dir: Path, filled: tuple[Path, Contents], tmp_path: Path
) -> None:
    flip_bit(data_dir / "commitlog" / segment_name(MIB), 9)
    report = make_backup(data_dir, tmp_path / "b")
    assert any("segment-header" in each for each in report.manifest.damage)
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert check_data_dir(tmp_path / "new").blocks == check_data_dir(data_dir).blocks


# -- refused targets -----------------------------------------------------------------------


def test_a_target_with_other_files_is_refused(data_dir: Path, stored: Path, tmp_path: Path) -> None:
    with pytest.raises(BackupRefused, match="--incremental"):
        make_backup(data_dir, stored)
    (tmp_path / "letters").mkdir()
    (tmp_path / "letters" / "to-her.txt").touch()
    with pytest.raises(BackupRefused, match=r"to-her\.txt"):
        make_backup(data_dir, tmp_path / "letters", incremental=True)
    with pytest.raises(BackupRefused, match="inside the data directory"):
        make_backup(data_dir, data_dir / "commitlog" / "b")
    flip_bit(stored / MANIFEST_NAME, 200)
    with pytest.raises(BackupRefused, match="damaged"):
        make_backup(data_dir, stored, incremental=True)


def test_only_data_directories_of_known_versions_are_backed_up(
    data_dir: Path, tmp_path: Path
) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotADataDir):
        make_backup(tmp_path / "empty", tmp_path / "b")
    (data_dir / "VERSION").write_text("3\n")
    with pytest.raises(UnknownFormatVersion):
        make_backup(data_dir, tmp_path / "b")


def test_a_failed_backup_leaves_the_earlier_one_complete(
    data_dir: Path, stored: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = fingerprints(stored)
    asyncio.run(_publish(data_dir, "one more"))

    def fail(*arguments: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.backup.folder_target.sync_tree", fail)
    with pytest.raises(OSError, match="No space"):
        make_backup(data_dir, stored, incremental=True)
    after = fingerprints(stored)
    assert after.pop(UNFINISHED) is not None
    assert after == before
    monkeypatch.undo()
    make_backup(data_dir, stored, incremental=True)
    assert verify_files(stored, read_manifest(stored)) == []
    assert not (stored / UNFINISHED).exists()


def test_files_of_an_interrupted_backup_do_no_harm(data_dir: Path, tmp_path: Path) -> None:
    make_backup(data_dir, tmp_path / "b")
    (tmp_path / "b" / MANIFEST_NAME).rename(tmp_path / "b" / "MANIFEST.new")
    (tmp_path / "b" / UNFINISHED).touch()
    with pytest.raises(NotABackup, match="not finished"):
        restore_backup(tmp_path / "b", tmp_path / "new")
    make_backup(data_dir, tmp_path / "b")
    restore_backup(tmp_path / "b", tmp_path / "new")
    assert len(list((tmp_path / "b" / "commitlog").iterdir())) == 3


# -- restoring -----------------------------------------------------------------------------


def _drop_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def _add_a_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


@pytest.mark.parametrize("role", ["segment", "tail", "state"])
@pytest.mark.parametrize(
    "spoil",
    [
        lambda path: flip_bit(path, 0),
        lambda path: flip_bit(path, path.stat().st_size // 2),
        lambda path: flip_bit(path, path.stat().st_size - 1),
        _drop_last_byte,
        _add_a_byte,
        Path.unlink,
        lambda path: path.write_bytes(b""),
    ],
    ids=["first", "middle", "last", "short", "long", "missing", "empty"],
)
def test_a_damaged_backup_is_not_restored(
    stored: Path, tmp_path: Path, role: str, spoil: Callable[[Path], object]
) -> None:
    manifest = read_manifest(stored)
    file = next(iter(manifest.of_role(role)))
    spoil(stored / file.stored_as)
    (wrong,) = verify_files(stored, manifest)
    assert wrong.startswith(file.stored_as)
    with pytest.raises(NotABackup, match=file.stored_as):
        restore_backup(stored, tmp_path / "new")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stored"]


def test_every_flipped_bit_of_the_manifest_is_refused(stored: Path) -> None:
    image = (stored / MANIFEST_NAME).read_bytes()
    for position in range(len(image)):
        for bit in range(8):
            changed = bytearray(image)
            changed[position] ^= 1 << bit
            with pytest.raises(NotABackup):
                decode_manifest(bytes(changed), stored)
    for size in range(len(image)):
        with pytest.raises(NotABackup):
            decode_manifest(image[:size], stored)


@pytest.mark.parametrize(
    ("name", "stored_as"),
    [
        ("../../etc/passwd", "commitlog/x"),
        ("commitlog/00000000000000000000", "../secret"),
        ("commitlog/00000000000000000000", "/etc/shadow"),
        ("VERSION", "commitlog/x"),
        ("access/../../x", "commitlog/x"),
    ],
)
def test_a_manifest_cannot_list_paths_outside_the_backup(name: str, stored_as: str) -> None:
    file = BackupFile("segment", name, stored_as, 1, 1, "0")
    with pytest.raises(NotABackup, match="lists files"):
        decode_manifest(encode_manifest(Manifest("1", 1, "", "1", 0, 1, (file,))), "b")


def test_one_sealed_segment_can_be_restored_by_hand(
    data_dir: Path, filled: tuple[Path, Contents], stored: Path
) -> None:
    """A check names this as the fix. The other segments have grown meanwhile."""
    asyncio.run(_publish(data_dir, "since the backup"))
    segment = data_dir / "commitlog" / segment_name(0)
    flip_bit(segment, 9000)
    assert not check_data_dir(data_dir).is_sound
    asyncio.run(_publish(data_dir, "while it was damaged"))
    shutil.copy(stored / "commitlog" / segment_name(0), segment)
    assert check_data_dir(data_dir).is_sound
    found = asyncio.run(_contents(data_dir))
    end = len(filled[1][0])
    new = [(end, b"since the backup"), (end + 1, b"while it was damaged")]
    assert found == {0: [*filled[1][0], *new], 1: filled[1][1]}


def test_a_restore_needs_an_empty_target(stored: Path, tmp_path: Path) -> None:
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "x").touch()
    with pytest.raises(RestoreRefused, match="not empty"):
        restore_backup(stored, tmp_path / "taken")
    with pytest.raises(RestoreRefused, match="not a folder"):
        restore_backup(stored, tmp_path / "taken" / "x")
    (tmp_path / "empty").mkdir()
    restore_backup(stored, tmp_path / "empty")
    assert (tmp_path / "empty" / "VERSION").exists()


def test_a_backup_of_a_newer_layout_is_refused(stored: Path, tmp_path: Path) -> None:
    manifest = read_manifest(stored)
    newer = Manifest("1", 1, "9.0", "3", manifest.min_offset, manifest.end_offset, manifest.files)
    (stored / MANIFEST_NAME).write_bytes(encode_manifest(newer))
    with pytest.raises(UnknownFormatVersion):
        restore_backup(stored, tmp_path / "new")


def test_a_restore_that_fails_at_the_end_leaves_nothing(stored: Path, tmp_path: Path) -> None:
    def refuse(built: Path) -> None:
        raise ValueError(built.name)

    with pytest.raises(ValueError, match="restoring"):
        restore_backup(stored, tmp_path / "new", finish=refuse)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["stored"]


def test_a_broker_does_not_start_on_a_backup(stored: Path) -> None:
    with pytest.raises(NotADataDir, match="holdfast restore"):
        DataDir(stored, 0)
