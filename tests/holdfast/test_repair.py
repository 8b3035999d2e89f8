"""A repair makes a directory sound, reports the loss, and loses nothing else."""

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.check import check_data_dir
from holdfast.commitlog.disk.data_dir import DataDirInUse, NotADataDir
from holdfast.commitlog.format.segment_format import segment_name
from holdfast.repair import Loss, NotRepairable, RepairReport, repair_data_dir
from holdfast.repair.apply import Repair
from holdfast.repair.plan import loss_of
from tests.support.storage.small_log import overwrite
from tests.support.storage.stored import MIB, batch, open_storage, small_config
from tests.support.storage.three_segments import (
    FIRST,
    LAST,
    SECOND,
    Messages,
    block_of,
    change_lmdb,
    fill,
    fingerprints,
    flip,
    read_all,
)


async def _publish(data_dir: Path, text: str, queue: int) -> int:
    async with open_storage(small_config(data_dir)) as storage:
        topic = storage.store.table.get("t")
        before = storage.store.reading.queue_state(topic, queue).max_offset
        await storage.store.publishing.publish(topic, [batch(text, queue)])
        return before


@pytest.fixture(scope="module")
def filled(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Messages]:
    data_dir = tmp_path_factory.mktemp("filled") / "data"
    asyncio.run(fill(data_dir))
    messages, _, _ = asyncio.run(read_all(data_dir))
    return data_dir, messages


@pytest.fixture
def data_dir(filled: tuple[Path, Messages], tmp_path: Path) -> Path:
    return Path(shutil.copytree(filled[0], tmp_path / "data"))


# -- kinds of damage -----------------------------------------------------------------------


def _header(data_dir: Path) -> None:
    path = data_dir / "commitlog" / FIRST
    flip(path, at=block_of(path, b"body 4")[0] + 40)


def _several(data_dir: Path) -> None:
    path = data_dir / "commitlog" / FIRST
    start, end = block_of(path, b"body 4")[0], block_of(path, b"body 9")[1]
    overwrite(path, start, b"\xee" * (end - start))


def _last_missing(data_dir: Path) -> None:
    for name in (LAST, segment_name(3 * MIB)):
        (data_dir / "commitlog" / name).unlink()


def _truncated(data_dir: Path) -> None:
    path = data_dir / "commitlog" / SECOND
    os.truncate(path, path.stat().st_size // 2)


def _truncated_without_header(data_dir: Path) -> None:
    _truncated(data_dir)
    flip(data_dir / "commitlog" / SECOND, at=9)


def _end_lost(data_dir: Path) -> None:
    path = data_dir / "commitlog" / LAST
    os.truncate(path, block_of(path, b"the very last")[0] + 10)


Damage = Callable[[Path], object]

LOSING: dict[str, Damage] = {
    "payload": lambda path: flip(path / "commitlog" / FIRST, b"body 4"),
    "header": _header,
    "several": _several,
    "first missing": lambda path: (path / "commitlog" / FIRST).unlink(),
    "middle missing": lambda path: (path / "commitlog" / SECOND).unlink(),
    "last missing": _last_missing,
    "truncated": _truncated,
    "truncated without header": _truncated_without_header,
    "empty file": lambda path: os.truncate(path / "commitlog" / SECOND, 0),
    "end lost": _end_lost,
    "end mark": lambda path: flip(path / "commitlog" / FIRST, b"HFND", at=17),
}
#: Damage that is also tested without an index.
_NO_INDEX = ("payload", "header", "several", "first missing", "middle missing", "truncated")


@pytest.mark.parametrize(
    ("kind", "has_index"),
    [*((each, True) for each in LOSING), *((each, False) for each in _NO_INDEX)],
)
async def test_the_loss_is_as_reported_and_readers_skip_it(
    data_dir: Path, filled: tuple[Path, Messages], kind: str, has_index: bool
) -> None:
    LOSING[kind](data_dir)
    if not has_index:
        shutil.rmtree(data_dir / "consumequeue")
    before = fingerprints(data_dir)
    said = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=False)
    assert not said.is_sound
    assert said.after is None
    assert fingerprints(data_dir) == before, "a repair that may lose nothing changed something"

    done = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
    assert done.is_sound, done.after
    assert [each for each, _ in done.loss.lost] == [each for each, _ in said.loss.lost]
    report = await asyncio.to_thread(check_data_dir, data_dir)
    assert report.is_sound, report.findings
    lost = {
        (each.queue, offset)
        for each, _ in done.loss.lost
        for offset in range(each.start_offset, each.end_offset)
    }
    if done.loss.may_be_more:  # the damaged part may have held messages that nothing else records
        assert done.loss.messages is None
    else:
        assert done.loss.messages == len(lost)
    assert done.loss.messages_at_least == len(lost)
    messages, skipped, degraded = await read_all(data_dir)
    assert degraded == []
    _, all_messages = filled
    assert messages == {place: body for place, body in all_messages.items() if place not in lost}
    assert _offsets_in(skipped) == lost
    # Lost offsets are not assigned to new messages, and a second start finds no fault.
    for queue in (0, 1):
        offset = await _publish(data_dir, "after the repair", queue)
        assert (queue, offset) not in all_messages
        assert offset == 1 + max(at for of, at in all_messages if of == queue)
    assert (await read_all(data_dir))[2] == []
    assert (await asyncio.to_thread(check_data_dir, data_dir)).is_sound


def _offsets_in(ranges: dict[int, list[tuple[int, int]]]) -> set[tuple[int, int]]:
    return {
        (queue, offset)
        for queue, pairs in ranges.items()
        for start, end in pairs
        for offset in range(start, end)
    }


def test_overwritten_bytes_are_copied(data_dir: Path) -> None:
    _several(data_dir)
    path = data_dir / "commitlog" / FIRST
    image = path.read_bytes()
    start = image.index(b"\xee" * 8)
    end = image.rindex(b"\xee" * 8) + 8
    done = repair_data_dir(data_dir, accept_loss=True)
    assert done.copies is not None
    assert (done.copies / f"{FIRST}-from-{start}").read_bytes() == image[start:end]
    assert b"offsets 4 to 10 of queue 0 of 't'" in (done.copies / "report.json").read_bytes()
    after = path.read_bytes()
    assert after[:start] == image[:start]
    at = after.index(b"HFND")
    assert after[end:at] == image[end:at]


def test_a_repair_without_room_for_copies_changes_nothing(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _header(data_dir)
    before = fingerprints(data_dir)

    def refuse(*arguments: object, **more: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("holdfast.repair.apply.write_file", refuse)
    with pytest.raises(OSError, match="No space left"):
        repair_data_dir(data_dir, accept_loss=True)
    assert fingerprints(data_dir) == before


def test_a_second_repair_does_nothing(data_dir: Path) -> None:
    _header(data_dir)
    repair_data_dir(data_dir, accept_loss=True)
    before = fingerprints(data_dir)
    again = repair_data_dir(data_dir, accept_loss=True)
    assert again.is_sound
    assert again.loss.is_nothing
    assert fingerprints(data_dir) == before


async def test_an_accepted_loss_is_known_after_further_damage(
    data_dir: Path, filled: tuple[Path, Messages]
) -> None:
    _header(data_dir)
    await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
    flip(data_dir / "commitlog" / FIRST, b"body 7")
    done = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
    assert [str(each) for each, _ in done.loss.lost] == ["offsets 6 to 8 of queue 1 of 't'"]
    messages, skipped, degraded = await read_all(data_dir)
    assert (skipped, degraded) == ({0: [(4, 6)], 1: [(6, 8)]}, [])
    assert len(messages) == len(filled[1]) - 4


async def test_an_accepted_loss_is_also_known_from_the_log(data_dir: Path) -> None:
    _header(data_dir)
    await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
    await _publish(data_dir, "with a snapshot of the state before it", 0)
    shutil.rmtree(data_dir / "state")
    shutil.rmtree(data_dir / "consumequeue")
    _, skipped, degraded = await read_all(data_dir)
    assert (skipped, degraded) == ({0: [(4, 6)]}, [])


# -- damage without lost messages ----------------------------------------------------------


def _segment_header(data_dir: Path) -> None:
    flip(data_dir / "commitlog" / SECOND, at=9)


def _empty_file_within_a_segment_without_header(data_dir: Path) -> None:
    (data_dir / "commitlog" / segment_name(MIB + 800 * 1024)).touch()
    _segment_header(data_dir)


ENTRY = bytes.fromhex("00000001000000000000000000000004")
LOSSLESS: dict[str, Damage] = {
    "segment header": _segment_header,
    "footer": lambda path: flip(path / "commitlog" / FIRST, at=MIB - 40),
    "tables": lambda path: flip(path / "commitlog" / FIRST, at=MIB - 100),
    "version": lambda path: (path / "VERSION").write_text("q\n"),
    "index entry": lambda path: change_lmdb(
        path / "consumequeue", lambda txn: txn.put(ENTRY, b"?" * 44), b"entries"
    ),
    "overlapping": lambda path: (path / "commitlog" / segment_name(4096)).write_bytes(b"\1" * 8192),
    "empty file within a segment": _empty_file_within_a_segment_without_header,
    "state record": lambda path: change_lmdb(
        path / "state", lambda txn: txn.put(b"offsets/g/1", b"?????????")
    ),
    "state": lambda path: (path / "state" / "data.mdb").write_bytes(b"no environment" * 1000),
}


@pytest.mark.parametrize("kind", LOSSLESS)
async def test_damage_without_loss_is_repaired_without_consent(
    data_dir: Path, filled: tuple[Path, Messages], kind: str
) -> None:
    LOSSLESS[kind](data_dir)
    done = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=False)
    assert done.is_sound
    assert done.loss.is_nothing
    report = await asyncio.to_thread(check_data_dir, data_dir)
    kinds = {finding.kind for finding in report.findings}
    assert kinds <= {"index-missing"}, report.findings
    assert await read_all(data_dir) == (filled[1], {}, [])


async def test_segments_after_a_missing_last_one_are_moved(
    data_dir: Path, filled: tuple[Path, Messages]
) -> None:
    """Nothing is left that proves that the missing file was ever durable."""
    shutil.rmtree(data_dir / "consumequeue")
    (data_dir / "commitlog" / LAST).unlink()
    found = await asyncio.to_thread(check_data_dir, data_dir)
    behind = segment_name(3 * MIB)
    assert [(each.where, each.kind) for each in found.findings if each.damage] == [
        (f"commitlog/{behind}", "segment-behind-hole")
    ]
    done = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=False)
    assert done.is_sound
    assert done.copies is not None
    assert (done.copies / behind).exists()
    messages, skipped, degraded = await read_all(data_dir)
    assert (skipped, degraded) == ({}, [])
    assert messages.items() < filled[1].items()


def test_a_loss_found_after_other_steps_stops_the_repair(
    data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    _segment_header(data_dir)
    losses = iter([loss_of(check_data_dir(data_dir)), Loss((), 5, False)])
    monkeypatch.setattr("holdfast.repair.loss_of", lambda _: next(losses))
    stopped = repair_data_dir(data_dir, accept_loss=False)
    assert stopped.is_begun
    assert (stopped.after, stopped.loss.bytes) == (None, 5)
    assert check_data_dir(data_dir).is_sound  # the header was mended


def test_a_sound_directory_is_not_changed(data_dir: Path) -> None:
    before = fingerprints(data_dir)
    assert repair_data_dir(data_dir, accept_loss=True).is_sound
    assert fingerprints(data_dir) == before


# -- refused repairs -----------------------------------------------------------------------


async def test_a_directory_in_use_is_not_repaired(tmp_path: Path) -> None:
    async with open_storage(small_config(tmp_path)):
        with pytest.raises(DataDirInUse, match="stop that one"):
            repair_data_dir(tmp_path, accept_loss=True)


def test_unrepairable_damage_is_reported(data_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(NotADataDir):
        repair_data_dir(tmp_path, accept_loss=True)
    shutil.rmtree(data_dir / "commitlog")
    with pytest.raises(NotRepairable, match="restore a backup"):
        repair_data_dir(data_dir, accept_loss=True)


# -- interrupted repairs -------------------------------------------------------------------


class _CutShort(Exception):
    """Simulates a power loss."""


@pytest.mark.fault
@pytest.mark.parametrize(
    "kind", ["header", "middle missing", "end lost", "truncated without header"]
)
async def test_an_interrupted_repair_is_completed_by_the_next_one(
    filled: tuple[Path, Messages], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    expected: RepairReport | None = None
    for count in range(1, 60):
        data_dir = Path(shutil.copytree(filled[0], tmp_path / f"data{count}"))
        LOSING[kind](data_dir)
        left = count

        def counted(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*arguments: Any, **more: Any) -> Any:
                nonlocal left
                left -= 1
                if left == 0:
                    raise _CutShort
                return function(*arguments, **more)

            return call

        with monkeypatch.context() as patch:
            # Interrupt at every change of a file and at the end of every step.
            patch.setattr("os.pwrite", counted(os.pwrite))
            patch.setattr("os.pwritev", counted(os.pwritev))
            patch.setattr("os.fsync", counted(os.fsync))
            patch.setattr("os.fdatasync", counted(os.fdatasync))
            patch.setattr(Path, "rename", counted(Path.rename))
            patch.setattr(Repair, "_renew_state", counted(Repair._renew_state))
            try:
                report = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
            except _CutShort:
                report = None
        if report is not None:
            expected = report
            break
        done = await asyncio.to_thread(repair_data_dir, data_dir, accept_loss=True)
        assert done.is_sound, f"cut short at call {count}"
        messages, skipped, degraded = await read_all(data_dir)
        assert degraded == []
        lost = _offsets_in(skipped)
        assert messages.keys() | lost == filled[1].keys()
        assert not messages.keys() & lost
        shutil.rmtree(data_dir)
    assert expected is not None
    assert count > 5
