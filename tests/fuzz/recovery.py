"""Fuzz recovery and the walk over the log, on damaged images of segments.

The input is a list of edits to a log of three small segments: overwritten bytes, flipped bits,
zeroed or copied ranges, files that are cut, missing or renamed. No edit forges a checksum: a
damaged block fits its checksum only by chance. Then, after any edits:

- opening and recovering end with a result or with one of the documented errors;
- each served block has exactly the bytes that were written at its place;
- no block below the durable mark is lost if the edits left it whole;
- a second start finds the blocks of the first start, and the record of the damage, which the
  broker appends: the removed part may have held the only proof that an earlier hole was durable.
"""

import tempfile
from functools import cache
from pathlib import Path

from holdfast.commitlog.config import CommitLogConfig
from holdfast.commitlog.errors import CorruptBatch, CorruptRecord, UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader
from holdfast.commitlog.format.header_table import headers_in
from holdfast.commitlog.segments.commit_log import CommitLog
from holdfast.commitlog.segments.footer import block_tables, read_footer, seal_segment
from holdfast.commitlog.segments.log_scan import Damage, scan_log
from holdfast.commitlog.segments.recovery import recover
from tests.support.simulation.simulated_disk import SimulatedDisk
from tests.support.storage.batches import stamped
from tests.support.storage.small_log import SmallLog, raw_batch

SEGMENT_BYTES = 8 * 1024
#: The bytes of one edit: operation, file, place, length, source or value.
EDIT_BYTES = 8
MAX_EDITS = 16

_HOME = Path(tempfile.gettempdir()) / "holdfast-fuzz"


@cache
def _image() -> tuple[dict[str, bytes], dict[int, bytes]]:
    """Return the files of a log, and its blocks by their physical offsets."""
    disk = SimulatedDisk()
    log = SmallLog(_HOME, disk, SEGMENT_BYTES)
    log.open()
    log.log.roll()
    blocks = {}
    for number in range(14):
        raw = raw_batch(keys=3) if number % 5 == 0 else raw_batch(200 + 71 * number)
        batch = log.append(raw, queue_id=number % 3)
        blocks[batch.header.physical_offset] = bytes(batch.block)
        if number % 3 == 2:
            log.sync()
    for segment in log.log.segments:
        seal_segment(segment)
    files = {
        name: bytes(disk.open(_HOME / name).read(SEGMENT_BYTES, 0)) for name in disk.names(_HOME)
    }
    assert len(files) >= 3
    log.close()
    return files, blocks


def seeds() -> list[bytes]:
    """Return one of each edit, and a few together."""
    one = [bytes([kind, 1, 0x10, 0x40, 0, 64, 0x20, 3]) for kind in range(9)]
    return [b"", *one, b"".join(one[:3]), b"".join(one[4:])]


def check(data: bytes) -> None:
    """Raise for any behaviour that recovery must not show."""
    _HOME.mkdir(exist_ok=True)
    files, blocks = _image()
    edited = {name: bytearray(content) for name, content in files.items()}
    for at in range(0, min(len(data), MAX_EDITS * EDIT_BYTES), EDIT_BYTES):
        edit = data[at : at + EDIT_BYTES]
        if len(edit) == EDIT_BYTES and edited:
            _apply(edit, edited)
    disk = SimulatedDisk()
    for name, content in edited.items():
        disk.create(_HOME / name, len(content)).write([bytes(content)], 0)
    whole = _whole_blocks(edited, blocks)
    blocks = dict(blocks)
    try:
        _walk(disk, blocks)
        first = _start(disk, blocks, notes_damage=True)
        second = first if first is None else _start(disk, blocks)
    except UnknownFormatVersion:
        return
    if first is None:
        return
    assert second == first, "a second start finds something else"
    proven = max((Batch.decode(blocks[at]).header.durable_offset for at in first), default=0)
    lost = [at for at in whole if at < proven and at not in first]
    assert not lost, f"whole blocks below the durable mark {proven} are gone: {lost}"


def _apply(edit: bytes, files: dict[str, bytearray]) -> None:
    kind, which, at_low, at_high, size_high, size, low, high = edit
    names = sorted(files)
    name = names[which % len(names)]
    content = files[name]
    at = (at_low | at_high << 8) % max(len(content), 1)
    length = 1 + (size | size_high << 8) % 4096
    other = (low | high << 8) % max(len(content), 1)
    match kind % 9:
        case 0:
            content[at : at + 2] = bytes([low, high])[: len(content) - at]
        case 1:
            if content:
                content[at] ^= 1 << low % 8
        case 2:
            content[at : at + length] = bytes(min(length, len(content) - at))
        case 3:
            piece = content[other : other + length][: len(content) - at]
            content[at : at + len(piece)] = piece
        case 4:
            del content[at:]
        case 5:
            content += bytes([low]) * length
        case 6:
            del files[name]
        case 7:
            files[names[high % len(names)]] = content[:]
        case 8:
            start = SEGMENT_BYTES * (low % 8) + (high & 8)
            files[f"{start:020d}"] = content[:]


def _whole_blocks(files: dict[str, bytearray], blocks: dict[int, bytes]) -> list[int]:
    """Return the unchanged blocks, or none if a long or misnamed file may overlap the next."""
    whole = []
    if any(int(name) % SEGMENT_BYTES or len(files[name]) > SEGMENT_BYTES for name in files):
        return []
    for at, block in blocks.items():
        name = f"{at - at % SEGMENT_BYTES:020d}"
        content = files.get(name, b"")
        position = at % SEGMENT_BYTES
        if len(content) == SEGMENT_BYTES and content[position : position + len(block)] == block:
            whole.append(at)
    return whole


def _start(
    disk: SimulatedDisk, blocks: dict[int, bytes], *, notes_damage: bool = False
) -> list[int] | None:
    """Recover as a start does; return the physical offsets of the served blocks.

    With `notes_damage`, append a block after any damage, and add the block to `blocks`. Return None
    if the last file is too short for the append: a file on a real disk would grow, the simulated
    one does not.
    """
    log = CommitLog(_HOME, CommitLogConfig(segment_bytes=SEGMENT_BYTES), disk, now_us=lambda: 1)
    log.open()
    try:
        headers: list[BatchHeader] = []
        recovered = recover(
            log,
            from_offset=log.min_offset,
            from_counts=(0, 0, 0),
            on_blocks=lambda run: headers.extend(headers_in(run)),
        )
        assert recovered.written_offset <= max((s.end_offset for s in log.segments), default=0)
        served = []
        for header in headers:
            at = header.physical_offset
            try:
                block = log.read_batch(at, header.total_size).block
            except CorruptRecord:
                continue
            assert bytes(block) == blocks.get(at), f"wrong bytes are served at {at}"
            served.append(at)
        if notes_damage and recovered.damage:
            if log.segments[-1].file.size() < SEGMENT_BYTES:
                return None
            served.append(_append_note(log, blocks))
        return served
    finally:
        log.close()


def _append_note(log: CommitLog, blocks: dict[int, bytes]) -> int:
    raw = raw_batch()
    while not log.has_room(len(raw), 0, 1):
        log.roll()
    at = log.written_offset
    note = stamped(raw, physical_offset=at, durable_offset=at, topic_id=0)
    log.append([note.block[:HEADER_SIZE], note.block[HEADER_SIZE:]], [note.header])
    blocks[at] = bytes(note.block)
    return at


def _walk(disk: SimulatedDisk, blocks: dict[int, bytes]) -> None:
    """Walk the log as `check` does, and as sealing and searches by key do."""
    log = CommitLog(_HOME, CommitLogConfig(segment_bytes=SEGMENT_BYTES), disk, now_us=lambda: 1)
    log.open()
    end = 0
    for _, found in scan_log(log.segments, 0):
        if isinstance(found, Damage):
            assert found.start < found.end
            assert found.start >= end
            end = found.end
        else:
            assert bytes(found.block) == blocks.get(found.header.physical_offset)
            end = found.header.end_physical_offset
    for segment in log.segments:
        try:
            block_tables(segment)
        except CorruptBatch as error:
            raise AssertionError("a walk says damage, it does not raise it") from error
        read_footer(segment)
