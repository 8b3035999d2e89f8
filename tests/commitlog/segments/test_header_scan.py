"""The scan by tables compared with the scan block by block: the same blocks, the same damage."""

from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import UnknownFormatVersion
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.header_table import Run, find_intact_run, headers_in
from holdfast.commitlog.segments import log_scan
from holdfast.commitlog.segments.log_scan import Damage, scan_log, scan_runs
from tests.commitlog.format.test_batch_header import resealed
from tests.support.batches import stamped
from tests.support.small_log import SEGMENT_BYTES, SmallLog, open_small_log, overwrite, raw_batch

#: Positions of damage: in the part of a segment that blocks reach, and at its end.
_PLACES = st.one_of(st.integers(0, 12_000), st.integers(SEGMENT_BYTES - 300, SEGMENT_BYTES - 1))


def _blocks(small: SmallLog, start: int) -> list[object]:
    found: list[object] = []
    try:
        for segment, each in scan_log(small.log.segments, start):
            found.append((segment.path, each if isinstance(each, Damage) else each.header))
    except UnknownFormatVersion as error:
        found.append(str(error))
    return found


def _tables(small: SmallLog, start: int) -> list[object]:
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
@settings(deadline=None, max_examples=75)
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
        assert _tables(again, at) == _blocks(again, at)
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
    found = _tables(small, 0)
    assert found == _blocks(small, 0)
    assert proven < 400 * 4 * log_scan._SHORT_RUN
