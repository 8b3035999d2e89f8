from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE, MAGIC
from holdfast.commitlog.format.header_table import Run, find_intact_run, headers_in
from holdfast.commitlog.format.segment_format import encode_end_mark
from holdfast.commitlog.segments import log_scan
from holdfast.commitlog.segments.footer import seal_segment
from holdfast.commitlog.segments.log_scan import Damage, scan_log, scan_runs, scan_segment
from tests.commitlog.format.test_batch_header import resealed
from tests.support.storage.batches import stamped
from tests.support.storage.small_log import (
    FIRST,
    SEGMENT_BYTES,
    SmallLog,
    flip_bit,
    open_small_log,
    overwrite,
    raw_batch,
    segment_path,
    walk,
)

BLOCK = len(raw_batch())
UNWRITTEN = "unwritten"


def _blocks(small: SmallLog, count: int) -> list[int]:
    """Append equal blocks; return their offsets."""
    return [small.append(raw_batch()).header.physical_offset for _ in range(count)]


@pytest.fixture(params=[None, 4096, 8 * 37], ids=["one window", "pages", "odd windows"])
def window(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Scan with windows so small that all blocks cross their borders."""
    if request.param is not None:
        monkeypatch.setattr(log_scan, "_WINDOW_BYTES", request.param)


# -- a sound log -----------------------------------------------------------------------------


def test_an_empty_log_has_no_blocks(small: SmallLog) -> None:
    assert walk(small.log) == []


def test_blocks_are_found_in_order_and_then_the_unwritten_rest(
    small: SmallLog, window: None
) -> None:
    places = _blocks(small, 5)
    assert places == [FIRST + i * BLOCK for i in range(5)]
    assert walk(small.log) == [*places, Damage(FIRST + 5 * BLOCK, SEGMENT_BYTES, UNWRITTEN)]


def test_a_scan_starts_at_the_given_offset(small: SmallLog) -> None:
    places = _blocks(small, 3)
    rest = Damage(FIRST + 3 * BLOCK, SEGMENT_BYTES, UNWRITTEN)
    assert walk(small.log, places[1]) == [*places[1:], rest]
    assert walk(small.log, rest.start) == [rest]
    assert walk(small.log, SEGMENT_BYTES) == []


def test_an_end_mark_ends_a_segment_without_damage(small: SmallLog) -> None:
    places = _blocks(small, 2)
    small.log.roll()
    places += _blocks(small, 1)
    assert places[-1] == SEGMENT_BYTES + FIRST
    assert walk(small.log) == [*places, Damage(places[-1] + BLOCK, 2 * SEGMENT_BYTES, UNWRITTEN)]


def test_a_footer_is_not_scanned(small: SmallLog) -> None:
    places = _blocks(small, 2)
    ended = small.log.segments[0]
    small.log.roll()
    seal_segment(ended)
    assert [f.header.physical_offset for f in scan_segment(ended) if isinstance(f, Batch)] == places
    assert len(list(scan_segment(ended))) == 2


def test_blocks_larger_than_a_window_are_found(small: SmallLog, window: None) -> None:
    sizes = [10, 100_000, 3, 20_000]
    found = [small.append(raw_batch(size)).header.physical_offset for size in sizes]
    assert walk(small.log)[:-1] == found


# -- damage ----------------------------------------------------------------------------------


def test_a_block_with_a_damaged_header_is_damage(small: SmallLog) -> None:
    places = _blocks(small, 3)
    segment = segment_path(small.log, 0)
    for bit in range(0, 8 * HEADER_SIZE, 13):
        flip_bit(segment, places[1] + bit // 8, bit % 8)
        damage = Damage(places[1], places[2], "bad-magic" if bit < 32 else "header-crc")
        assert walk(small.log)[:3] == [places[0], damage, places[2]], f"bit {bit}"
        flip_bit(segment, places[1] + bit // 8, bit % 8)
    assert walk(small.log)[:3] == places


@pytest.mark.parametrize("at", [HEADER_SIZE, HEADER_SIZE + 100, BLOCK - 1])
def test_a_damaged_payload_is_damage_with_its_header(small: SmallLog, at: int) -> None:
    places = _blocks(small, 3)
    header = small.headers[1]
    flip_bit(segment_path(small.log, 0), places[1] + at)
    damage = Damage(places[1], places[2], "payload-crc", header)
    assert walk(small.log)[:3] == [places[0], damage, places[2]]
    assert walk_headers_only(small)[:3] == places


def walk_headers_only(small: SmallLog) -> list[int | Damage]:
    return [
        found if isinstance(found, Damage) else found.header.physical_offset
        for _, found in scan_log(small.log.segments, 0, verify_payload=False)
    ]


def test_damage_over_several_blocks_is_one_hole(small: SmallLog, window: None) -> None:
    places = _blocks(small, 6)
    overwrite(segment_path(small.log, 0), places[1], b"\xaa" * (3 * BLOCK + 40))
    assert walk(small.log)[:3] == [places[0], Damage(places[1], places[5], "bad-magic"), places[5]]


def test_zeros_in_the_middle_are_damage(small: SmallLog) -> None:
    places = _blocks(small, 3)
    overwrite(segment_path(small.log, 0), places[1], bytes(BLOCK))
    assert walk(small.log)[1] == Damage(places[1], places[2], "bad-magic")


def test_damage_before_the_end_mark_does_not_hide_it(small: SmallLog, window: None) -> None:
    places = _blocks(small, 2)
    small.log.roll()
    overwrite(segment_path(small.log, 0), places[1], b"\xaa" * BLOCK)
    places += _blocks(small, 1)
    found = walk(small.log)
    assert found[:3] == [places[0], Damage(places[1], places[1] + BLOCK, "bad-magic"), places[2]]


def test_a_missing_end_mark_is_a_hole_to_the_end_of_the_segment(small: SmallLog) -> None:
    places = _blocks(small, 2)
    small.log.roll()
    overwrite(segment_path(small.log, 0), places[1] + BLOCK, bytes(32))
    places += _blocks(small, 1)
    hole = Damage(places[1] + BLOCK, SEGMENT_BYTES, UNWRITTEN)
    assert walk(small.log)[:4] == [*places[:2], hole, places[2]]


def test_the_rest_after_a_torn_block_is_not_unwritten(small: SmallLog) -> None:
    places = _blocks(small, 2)
    overwrite(segment_path(small.log, 0), places[1], bytes(HEADER_SIZE))
    assert walk(small.log) == [places[0], Damage(places[1], SEGMENT_BYTES, "bad-magic")]


def test_an_end_mark_with_another_offset_is_ignored(small: SmallLog) -> None:
    places = _blocks(small, 1)
    end = places[0] + BLOCK
    overwrite(segment_path(small.log, 0), end, encode_end_mark(end + 8))
    assert walk(small.log) == [places[0], Damage(end, SEGMENT_BYTES, "bad-magic")]


# -- misplaced blocks ------------------------------------------------------------------------


def test_a_block_with_another_offset_is_damage(small: SmallLog) -> None:
    places = _blocks(small, 3)
    path = segment_path(small.log, 0)
    first = path.read_bytes()[places[0] : places[1]]
    overwrite(path, places[1], first)  # a misdirected write, or a stale block of a used disk
    assert walk(small.log)[:3] == [places[0], Damage(places[1], places[2], "misplaced"), places[2]]


def test_a_segment_under_another_name_has_no_block(tmp_path: Path) -> None:
    small = open_small_log(tmp_path / "log")
    _blocks(small, 2)
    small.close()
    only = next((tmp_path / "log").iterdir())
    only.rename(only.with_name(f"{SEGMENT_BYTES:020d}"))
    moved = SmallLog(tmp_path / "log")
    moved.log.open()
    assert walk(moved.log) == [Damage(SEGMENT_BYTES + FIRST, 2 * SEGMENT_BYTES, "misplaced")]


def _hostile_body(at: int, body_at: int, count: int = 8) -> bytes:
    """Return a body full of blocks that are valid at their place in the log.

    The message's batch must be stored at `at`, with its body `body_at` bytes later.
    """
    inner = raw_batch(40, fill=b"fake")
    places = [at + body_at + i * len(inner) for i in range(count)]
    return b"".join(bytes(stamped(inner, physical_offset=p, topic_id=666).block) for p in places)


def _append_hostile(small: SmallLog) -> tuple[int, int, bytes]:
    """Store a message whose body is a forged part of the log.

    Return the start and the end of its block, and the body.
    """
    small.log.roll()
    at = small.log.written_offset
    body_at = Batch.decode(raw_batch()).layout.bodies.start
    body = _hostile_body(at, body_at)
    batch = small.append(encode_batch([body]))
    assert batch.header.physical_offset == at
    assert batch.layout.bodies.start == body_at
    return at, batch.header.end_physical_offset, body


def test_blocks_inside_a_body_are_ignored(small: SmallLog, window: None) -> None:
    at, end, body = _append_hostile(small)
    assert len(body) % 8 == 0
    places = [at, *_blocks(small, 1)]
    assert walk(small.log)[:2] == places
    # With a damaged payload the block is one hole: the range of its header is not searched.
    flip_bit(segment_path(small.log, 0), end - 1)
    assert walk(small.log)[:2] == [Damage(at, end, "payload-crc", small.headers[0]), end]


def test_a_body_full_of_magics_is_scanned_fast(small: SmallLog, window: None) -> None:
    at = small.append(encode_batch([(MAGIC + b"HFND") * 20_000])).header.physical_offset
    places = _blocks(small, 1)
    flip_bit(segment_path(small.log, 0), at)
    assert walk(small.log)[:2] == [Damage(at, places[0], "bad-magic"), places[0]]


# -- newer blocks ----------------------------------------------------------------------------


def _newer(block: memoryview) -> bytes:
    return resealed(block[:HEADER_SIZE].tobytes(), 4, "<H", 2) + block[HEADER_SIZE:]


@pytest.mark.parametrize("is_after_damage", [False, True])
def test_a_newer_block_stops_the_scan(small: SmallLog, is_after_damage: bool) -> None:
    places = _blocks(small, 1)
    newer = small.append(raw_batch())
    overwrite(segment_path(small.log, 0), newer.header.physical_offset, _newer(newer.block))
    if is_after_damage:
        flip_bit(segment_path(small.log, 0), places[0])
    with pytest.raises(UnknownFormatVersion):
        walk(small.log)


def test_a_newer_block_inside_a_body_is_ignored(small: SmallLog) -> None:
    newer = _newer(stamped(raw_batch(), physical_offset=FIRST).block)
    at = small.append(encode_batch([newer * 4])).header.physical_offset
    places = _blocks(small, 1)
    overwrite(segment_path(small.log, 0), at, bytes(HEADER_SIZE))
    assert walk(small.log)[:2] == [Damage(at, places[0], "bad-magic"), places[0]]


def test_a_newer_block_with_another_offset_is_damage(small: SmallLog) -> None:
    places = _blocks(small, 2)
    newer = _newer(stamped(raw_batch(), physical_offset=FIRST + 8).block)
    overwrite(segment_path(small.log, 0), places[0], newer)
    assert walk(small.log)[:2] == [Damage(places[0], places[1], "misplaced"), places[1]]


# -- segments --------------------------------------------------------------------------------


def _three_segments(small: SmallLog) -> list[int]:
    places = []
    for _ in range(3):
        small.log.roll()
        places += _blocks(small, 1)
    return places


@pytest.mark.parametrize("start", [0, FIRST, SEGMENT_BYTES - 8, SEGMENT_BYTES + 5000])
def test_a_missing_segment_is_a_hole(small: SmallLog, start: int) -> None:
    places = _three_segments(small)
    segment_path(small.log, 1).unlink()
    reopened = small.reopen_unrecovered()
    found = walk(reopened.log, start)
    hole = Damage(max(start, SEGMENT_BYTES), 2 * SEGMENT_BYTES, "missing-segment")
    assert found[:-1] == [place for place in (places[0],) if place >= start] + [hole, places[2]]


def test_deleted_segments_are_not_a_hole(small: SmallLog) -> None:
    places = _three_segments(small)
    small.log.delete_before(SEGMENT_BYTES)
    assert walk(small.log)[:2] == places[1:]


@pytest.mark.parametrize("size", [0, 100, 4096, FIRST + BLOCK - 1, FIRST + BLOCK + 8])
def test_a_truncated_file_is_a_hole_at_its_end(small: SmallLog, size: int) -> None:
    places = _blocks(small, 3)
    small.log.roll()
    places += _blocks(small, 1)
    with segment_path(small.log, 0).open("r+b") as file:
        file.truncate(size)
    whole = places[: (size - FIRST) // BLOCK] if size > FIRST else []
    found = walk(small.log)
    assert found[: len(whole)] == whole
    damage = found[len(whole) : -2]
    assert all(isinstance(each, Damage) for each in damage)
    assert isinstance(damage[0], Damage)
    assert damage[0].start == FIRST + len(whole) * BLOCK
    assert isinstance(damage[-1], Damage)
    assert damage[-1].end == SEGMENT_BYTES
    assert found[-2] == places[3]


# -- scan_runs finds the same as scan_log --------------------------------------------------------

#: Positions of damage: in the part of a segment that blocks reach, and at its end.
_PLACES = st.one_of(st.integers(0, 12_000), st.integers(SEGMENT_BYTES - 300, SEGMENT_BYTES - 1))


def _scan_blocks(small: SmallLog, start: int) -> list[object]:
    found: list[object] = []
    try:
        for segment, each in scan_log(small.log.segments, start):
            found.append((segment.path, each if isinstance(each, Damage) else each.header))
    except UnknownFormatVersion as error:
        found.append(str(error))
    return found


def _scan_tables(small: SmallLog, start: int) -> list[object]:
    found: list[object] = []
    try:
        for segment, each in scan_runs(small.log.segments, start):
            if isinstance(each, Damage):
                found.append((segment.path, each))
            else:
                assert len(each.headers)
                found += [(segment.path, header) for header in headers_in(each)]
    except UnknownFormatVersion as error:
        found.append(str(error))
    return found


@st.composite
def _harms(draw: st.DrawFn) -> tuple[str, int, int, bytes]:
    """Draw a kind of damage, its segment, its position, and its bytes."""
    what = draw(st.sampled_from(["bytes", "zeros", "copy", "newer", "cut", "remove"]))
    fill = draw(st.binary(min_size=1, max_size=40))
    return what, draw(st.integers(0, 2)), draw(_PLACES), fill


def _harm(small: SmallLog, harm: tuple[str, int, int, bytes]) -> None:
    what, index, place, fill = harm
    path = small.directory / f"{index * SEGMENT_BYTES:020d}"
    if not path.exists() or path.stat().st_size < SEGMENT_BYTES:
        return
    aligned = place & -8
    if what == "bytes":
        overwrite(path, min(place, SEGMENT_BYTES - len(fill)), fill)
    elif what == "zeros":
        overwrite(path, min(place, SEGMENT_BYTES - 400), bytes(400))
    elif what == "cut":
        with path.open("r+b") as file:
            file.truncate(place)
    elif what == "remove" and index == 1:
        path.unlink()
    elif what in ("copy", "newer") and place < SEGMENT_BYTES - 500:
        at = index * SEGMENT_BYTES + aligned
        block = bytes(stamped(raw_batch(40), physical_offset=at).block)
        if what == "newer":
            block = resealed(block[:128], 4, "<H", 2) + block[128:]
        overwrite(path, aligned, block)


@pytest.mark.parametrize("window", [4096, 8 * 137, None])
@given(
    sizes=st.lists(st.integers(0, 900), min_size=1, max_size=14),
    rolls=st.sets(st.integers(0, 13), max_size=2),
    harms=st.lists(_harms(), max_size=4),
    start=st.one_of(st.just(0), st.integers(0, 14)),
)
@settings(deadline=None, max_examples=40)
def test_both_scans_find_the_same(
    window: int | None,
    sizes: list[int],
    rolls: set[int],
    harms: list[tuple[str, int, int, bytes]],
    start: int,
) -> None:
    with TemporaryDirectory() as directory, pytest.MonkeyPatch.context() as patch:
        if window is not None:
            patch.setattr(log_scan, "_WINDOW_BYTES", window)
        patch.setattr(log_scan, "_SHORT_RUN", 2)
        small = open_small_log(Path(directory) / "log")
        for number, size in enumerate(sizes):
            if number in rolls:
                small.log.roll()
            small.append(encode_batch([b"b" * size] * (1 + size % 3)))
        places = [header.physical_offset for header in small.headers]
        small.close()
        for harm in harms:
            _harm(small, harm)
        again = SmallLog(small.directory)
        again.log.open()
        at = places[start % len(places)] if start else 0
        assert _scan_tables(again, at) == _scan_blocks(again, at)
        again.close()


def test_many_damaged_blocks_cost_linear_time(
    small: SmallLog, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each run that damage interrupts checks only a few headers in vain."""
    for _ in range(400):
        small.append(raw_batch(100))
    path = small.log.segments[0].path
    for header in small.headers[::2]:
        overwrite(path, header.end_physical_offset - 1, b"\xff")
    proven = 0

    def counted(data: bytes, position: int, physical_offset: int, most: int) -> Run:
        nonlocal proven
        proven += most
        return find_intact_run(data, position, physical_offset, most)

    monkeypatch.setattr(log_scan, "find_intact_run", counted)
    found = _scan_tables(small, 0)
    assert found == _scan_blocks(small, 0)
    assert proven < 400 * 4 * log_scan._SHORT_RUN
