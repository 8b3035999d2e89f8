"""`check` finds each kind of damage, reports it, and changes nothing."""

import asyncio
import os
import shutil
from pathlib import Path
from typing import Any

import lmdb
import pytest

from holdfast.check import CheckReport, check_data_dir
from holdfast.commitlog.disk.data_dir import DataDirInUse, NotADataDir
from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.segment_format import segment_name
from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.index import _decode_unit, _encode_unit
from holdfast.http_api.access.token_file import TokenFile
from tests.support.storage.stored import MIB, open_storage, settled, small_config
from tests.support.storage.three_segments import (
    FIRST,
    LAST,
    SECOND,
    block_of,
    change_lmdb,
    fill,
    fingerprints,
    flip,
)


@pytest.fixture(scope="module")
def sound(tmp_path_factory: pytest.TempPathFactory) -> Path:
    data_dir = tmp_path_factory.mktemp("sound") / "data"
    asyncio.run(fill(data_dir))
    return data_dir


@pytest.fixture
def data_dir(sound: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(sound, tmp_path / "data"))


def checked(data_dir: Path, *, deep: bool = True) -> CheckReport:
    """Check the directory, and assert that the check changed nothing."""
    before = fingerprints(data_dir)
    report = check_data_dir(data_dir, deep=deep)
    assert fingerprints(data_dir) == before
    return report


def findings(report: CheckReport, *, damage: bool) -> list[str]:
    return [f"{f.where}: {f.what}" for f in report.findings if f.damage == damage]


# -- sound directories ---------------------------------------------------------------------


def test_a_sound_directory_is_counted_without_findings(data_dir: Path) -> None:
    for deep in (True, False):
        report = checked(data_dir, deep=deep)
        assert report.is_sound
        assert report.findings == []
        assert report.segments == 3 + 1  # one segment is prepared ahead
        assert (report.topics, report.groups) == (1, 1)
        assert report.messages > 43
        assert report.blocks == report.index_entries
        assert report.queues == 3  # the broker's own topic has one queue
        assert report.bytes > 2 * MIB - 200_000


def test_progress_grows_to_the_end(data_dir: Path) -> None:
    steps: list[tuple[int, int]] = []
    check_data_dir(data_dir, progress=lambda done, total: steps.append((done, total)))
    assert [done for done, _ in steps] == sorted(done for done, _ in steps)
    assert all(0 <= done <= total == 4 * MIB for done, total in steps)
    assert steps[-1][0] > 2 * MIB


def test_an_empty_new_directory_is_sound(tmp_path: Path) -> None:
    (tmp_path / "VERSION").write_text("1\n")
    for name in ("commitlog", "consumequeue", "state"):
        (tmp_path / name).mkdir()
    report = checked(tmp_path)
    assert report.is_sound
    assert len(findings(report, damage=False)) == 2  # no state and no index yet


async def test_a_directory_in_use_is_not_checked(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)):
        with pytest.raises(DataDirInUse):
            check_data_dir(tmp_path)


def test_only_data_directories_of_known_versions_are_checked(tmp_path: Path) -> None:
    with pytest.raises(NotADataDir):
        check_data_dir(tmp_path)
    (tmp_path / "letters.txt").touch()
    with pytest.raises(NotADataDir, match=r"letters\.txt"):
        check_data_dir(tmp_path)
    (tmp_path / "VERSION").write_text("3\n")
    with pytest.raises(UnknownFormatVersion):
        check_data_dir(tmp_path)
    assert not (tmp_path / "lock").exists()


# -- damage in the log ---------------------------------------------------------------------


def test_a_flipped_bit_in_a_body_names_the_block_and_the_offsets(data_dir: Path) -> None:
    flip(data_dir / "commitlog" / FIRST, b"body 4")
    found = findings(checked(data_dir), damage=True)
    assert any(FIRST in each and "payload-crc" in each for each in found)
    assert any("queue 0 of 't'" in each and "between offsets 4 and 6" in each for each in found)


def test_a_shallow_check_does_not_verify_bodies(data_dir: Path) -> None:
    flip(data_dir / "commitlog" / FIRST, b"body 4")
    assert findings(checked(data_dir, deep=False), damage=True) == []


@pytest.mark.parametrize("field", range(0, 128, 5))
def test_a_flipped_bit_in_a_header_is_found(data_dir: Path, field: int) -> None:
    segment = data_dir / "commitlog" / FIRST
    flip(segment, at=block_of(segment, b"body 4")[0] + field)
    found = findings(checked(data_dir, deep=False), damage=True)
    assert any(FIRST in each for each in found)
    assert any("between offsets 4 and 6" in each for each in found)


def test_a_torn_tail_is_a_note(data_dir: Path) -> None:
    # the index's position would prove that the block was durable
    shutil.rmtree(data_dir / "consumequeue")
    segment = data_dir / "commitlog" / LAST
    flip(segment, b"the very last")
    report = checked(data_dir)
    assert report.is_sound
    assert any("torn tail" in each for each in findings(report, damage=False))


@pytest.mark.parametrize("name", [FIRST, SECOND, LAST])
def test_a_missing_segment_is_damage(data_dir: Path, name: str) -> None:
    (data_dir / "commitlog" / name).unlink()
    report = checked(data_dir)
    assert not report.is_sound
    assert any("missing or damaged in the log" in each for each in findings(report, damage=True))


def test_a_missing_segment_is_found_without_an_index_too(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "consumequeue")
    (data_dir / "commitlog" / SECOND).unlink()
    report = checked(data_dir)
    (found,) = [each for each in report.findings if each.damage]
    assert found.kind == "missing-segment"
    assert [each.queue for each in found.lost] == [0, 1]
    assert all(each.topic == "t" and each.start_offset > 0 for each in found.lost)
    assert report.lost == {
        (1, each.queue): [(each.start_offset, each.end_offset)] for each in found.lost
    }


def test_a_missing_first_segment_is_found_without_an_index_too(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "consumequeue")
    (data_dir / "commitlog" / FIRST).unlink()
    assert any("begins at" in each for each in findings(checked(data_dir), damage=True))


def test_a_truncated_segment_is_damage(data_dir: Path) -> None:
    os.truncate(data_dir / "commitlog" / FIRST, MIB // 2)
    report = checked(data_dir)
    assert not report.is_sound
    assert any(FIRST in each for each in findings(report, damage=True))


def test_a_missing_log_is_damage(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "commitlog")
    report = checked(data_dir)
    assert any("commitlog: missing" in each for each in findings(report, damage=True))
    assert not (data_dir / "commitlog").exists()


def _lost(report: CheckReport, kind: str) -> list[str]:
    return [str(lost) for each in report.findings if each.kind == kind for lost in each.lost]


@pytest.mark.parametrize("forgotten", [None, "consumequeue"])
@pytest.mark.parametrize(
    ("flipped", "kind"), [(b"body 4", "payload-crc"), (b"HFBT", "header-crc")], ids=str
)
def test_a_damaged_block_is_reported_with_its_position_and_loss(
    data_dir: Path, forgotten: str | None, flipped: bytes, kind: str
) -> None:
    if forgotten:
        shutil.rmtree(data_dir / forgotten)
    path = data_dir / "commitlog" / FIRST
    block, end = block_of(path, b"body 4")
    if kind == "payload-crc":
        flip(path, b"body 4")
    else:
        flip(path, at=block + 40)
    report = checked(data_dir)
    (found,) = [each for each in report.findings if each.kind == kind]
    assert (found.where, found.start, found.end) == (f"commitlog/{FIRST}", block, end)
    assert _lost(report, kind) == ["offsets 4 to 6 of queue 0 of 't'"]
    assert "backup" in found.mend
    assert report.lost == {(1, 0): [(4, 6)]}


def test_the_index_shows_the_loss_at_the_end_of_the_log(data_dir: Path) -> None:
    last = data_dir / "commitlog" / LAST
    end = checked(data_dir).ends[1, 0]
    os.truncate(last, block_of(last, b"the very last")[0])
    report = checked(data_dir)
    assert report.lost == {(1, 0): [(end - 1, end)]}
    assert report.ends[1, 0] == end


def test_a_malformed_version_is_damage_and_the_rest_is_checked(data_dir: Path) -> None:
    (data_dir / "VERSION").write_text("q\n")
    report = checked(data_dir)
    (found,) = [each for each in report.findings if each.damage]
    assert (found.kind, found.where) == ("version", "VERSION")
    assert "repair" in found.mend
    assert report.messages > 43


def test_tokens_are_checked(data_dir: Path) -> None:
    TokenFile(data_dir).change(lambda tokens: tokens)
    assert checked(data_dir).findings == []
    for name, is_sound in (("tokens", True), ("tokens.copy", False)):
        flip(data_dir / "access" / name, b"generation")
        report = checked(data_dir)
        assert report.is_sound == is_sound
        assert [each.kind for each in report.findings] == ["tokens"]


# -- damage without lost messages ----------------------------------------------------------


def test_a_damaged_segment_header_is_a_note(data_dir: Path) -> None:
    flip(data_dir / "commitlog" / SECOND, b"", at=9)
    report = checked(data_dir)
    assert report.is_sound
    assert any(
        SECOND in each and "no message is lost" in each for each in findings(report, damage=False)
    )


@pytest.mark.parametrize("from_end", [1, 30, 40, 64, 70, 100, 200])
def test_a_damaged_footer_is_a_note(data_dir: Path, from_end: int) -> None:
    segment = data_dir / "commitlog" / FIRST
    flip(segment, b"", at=MIB - from_end)
    report = checked(data_dir)
    assert report.is_sound
    # The trailer's last 24 bytes are unused.
    assert len(findings(report, damage=False)) == (0 if from_end < 24 else 1)


def test_a_footer_of_another_segment_is_damage(data_dir: Path) -> None:
    """It is intact, and would make searches return wrong results."""
    first, second = (data_dir / "commitlog" / name for name in (FIRST, SECOND))
    other = second.read_bytes()
    size = _footer_size(other)
    image = bytearray(first.read_bytes())
    image[MIB - size :] = other[MIB - size :]
    first.write_bytes(image)
    report = checked(data_dir)
    assert [each for each in report.findings if FIRST in each.where]


def _footer_size(image: bytes) -> int:
    blocks = int.from_bytes(image[-64 + 16 : -64 + 24], "little")
    keys = int.from_bytes(image[-64 + 24 : -64 + 32], "little")
    return blocks * 56 + keys * 8 + 64


def test_unknown_and_unfinished_files_are_notes(data_dir: Path) -> None:
    (data_dir / "notes.txt").touch()
    (data_dir / "commitlog" / "00000000000009437184.new").touch()
    report = checked(data_dir)
    assert report.is_sound
    assert len(findings(report, damage=False)) == 2
    assert (data_dir / "commitlog" / "00000000000009437184.new").exists()


# -- the index -----------------------------------------------------------------------------


KEY = bytes.fromhex("00000001000000000000000000000004")


def test_a_missing_entry_is_damage_with_block_and_offset(data_dir: Path) -> None:
    change_lmdb(data_dir / "consumequeue", lambda txn: txn.delete(KEY), b"entries")
    (found,) = findings(checked(data_dir), damage=True)
    assert "no entry for block" in found
    assert "offset 4 of queue 0 of 't'" in found


def test_an_entry_that_describes_another_block_is_damage(data_dir: Path) -> None:
    def spoil(txn: Any) -> None:
        value = txn.get(KEY)
        assert value is not None
        unit = _decode_unit(KEY, value)._replace(tag_summary=7)
        txn.put(*_encode_unit((1, 0), unit))

    change_lmdb(data_dir / "consumequeue", spoil, b"entries")
    (found,) = findings(checked(data_dir), damage=True)
    assert "does not describe it" in found


def test_a_damaged_entry_is_damage_with_a_remedy(data_dir: Path) -> None:
    change_lmdb(data_dir / "consumequeue", lambda txn: txn.put(KEY, b"?" * 44), b"entries")
    (found,) = findings(checked(data_dir), damage=True)
    assert "delete the folder" in found
    assert not (data_dir / "consumequeue" / "condemned").exists()


def test_entries_beyond_the_log_are_damage(data_dir: Path) -> None:
    def add(txn: Any) -> None:
        txn.put(*_encode_unit((1, 1), CqUnit(5000, 90 * MIB, 128, 5, 0, 0, 0)))

    change_lmdb(data_dir / "consumequeue", add, b"entries")
    (found,) = findings(checked(data_dir), damage=True)
    assert found.startswith("queue 1 of 't': 1 indexed batches are missing or damaged in the log,")
    assert "between offsets 5000 and 5005" in found


@pytest.mark.parametrize("image", [b"", b"no environment" * 1000])
def test_an_unusable_index_is_a_note(data_dir: Path, image: bytes) -> None:
    (data_dir / "consumequeue" / "data.mdb").write_bytes(image)
    report = checked(data_dir)
    assert report.is_sound
    assert any("rebuilt" in each for each in findings(report, damage=False))


def test_an_index_marked_as_damaged_is_a_note(data_dir: Path) -> None:
    (data_dir / "consumequeue" / "condemned").touch()
    assert any("rebuilt" in each for each in findings(checked(data_dir), damage=False))


def test_a_missing_index_is_a_note(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "consumequeue")
    report = checked(data_dir)
    assert report.is_sound
    assert findings(report, damage=False) == [
        "consumequeue: missing; it is rebuilt at the next start"
    ]


# -- the state -----------------------------------------------------------------------------


def test_a_damaged_record_is_damage_and_named(data_dir: Path) -> None:
    change_lmdb(data_dir / "state", lambda txn: txn.put(b"offsets/g/1", b"?????????"))
    (found,) = findings(checked(data_dir), damage=True)
    assert "offsets/g/1" in found


def test_an_unusable_state_is_damage(data_dir: Path) -> None:
    (data_dir / "state" / "data.mdb").write_bytes(b"no environment" * 1000)
    found = findings(checked(data_dir), damage=True)
    assert any("read from the log" in each for each in found)


def test_a_missing_or_unfinished_state_is_a_note(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "state")
    assert any("missing" in each for each in findings(checked(data_dir), damage=False))
    lmdb.open(str(data_dir / "state"), lock=False).close()
    assert any("unfinished" in each for each in findings(checked(data_dir), damage=False))


def test_a_state_read_from_a_log_without_its_end_is_incomplete(data_dir: Path) -> None:
    shutil.rmtree(data_dir / "state")
    for name in (LAST, segment_name(3 * MIB)):
        (data_dir / "commitlog" / name).unlink()
    kinds = {finding.kind for finding in checked(data_dir).findings if finding.damage}
    assert "state-incomplete" in kinds


# -- after a repair ------------------------------------------------------------------------


@pytest.mark.parametrize("forgotten", ["consumequeue", "state"])
async def test_a_broker_repairs_notes_at_its_start(data_dir: Path, forgotten: str) -> None:
    shutil.rmtree(data_dir / forgotten)
    async with open_storage(small_config(data_dir)) as storage:
        await settled(storage)
    assert checked(data_dir).findings == []
