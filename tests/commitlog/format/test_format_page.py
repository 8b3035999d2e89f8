"""FORMAT.md agrees with the code: its tables and its example are parsed and compared."""

import re
import struct
from pathlib import Path

import numpy as np
import pytest

from holdfast.commitlog.format.batch_header import BatchFlag, Layout
from holdfast.commitlog.format.segment_format import BLOCK_DTYPE, KEY_DTYPE
from holdfast.commitlog.segments.segment import largest_batch
from tests.commitlog.format.test_batch_header import PLACES
from tests.commitlog.golden.make import golden

PAGE = (Path(__file__).parents[3] / "FORMAT.md").read_text("utf-8")
KINDS = {"u16": "<H", "u32": "<I", "u64": "<Q", "i32": "<i", "i64": "<q"}


def table(section: str, number: int = 0) -> list[list[str]]:
    """Return the rows of a section's table, without its head."""
    text = PAGE.split(f"\n{section}", 1)[1].split("\n#", 1)[0]
    tables = re.findall(r"(?:^\|.*\n)+", text, re.MULTILINE)
    rows = tables[number].splitlines()[2:]
    return [[cell.strip().strip("`") for cell in row.strip("|").split("|")] for row in rows]


def test_the_page_draws_the_header() -> None:
    rows = table("### 1.1 ")
    drawn = {field: (KINDS[kind], int(at)) for at, _, kind, field, *_ in rows if kind in KINDS}
    beside = {"version": ("<H", 4), "header_crc": ("<I", 12)}
    assert drawn == {**PLACES, **beside}


@pytest.mark.parametrize(
    ("section", "number", "size"),
    [
        ("### 1.1 ", 0, 128),
        ("### 2.1 ", 0, 4096),
        ("### 2.2 ", 0, 32),
        ("### 2.3 ", 0, BLOCK_DTYPE.itemsize),
        ("### 2.3 ", 1, KEY_DTYPE.itemsize),
        ("### 2.3 ", 2, 64),
        ("## 6. ", 0, 44),
        ("## 6. ", 1, 36),
    ],
)
def test_every_table_of_the_page_covers_all_bytes(section: str, number: int, size: int) -> None:
    end = 0
    for at, length, kind, *_ in table(section, number):
        assert int(at) == end
        assert kind == "bytes" or int(length) == struct.calcsize(KINDS[kind])
        end += int(length)
    assert end == size


def test_the_page_lists_the_flags() -> None:
    drawn = {name: int(bit) for bit, name, _ in table("### 1.2 ") if name}
    assert drawn == {flag.name: int(flag).bit_length() - 1 for flag in BatchFlag}


def test_the_page_lists_the_sections_in_order() -> None:
    sections = [name for name in Layout.__slots__ if name != "total_size"]
    assert [name for name, *_ in table("### 1.3 ")] == sections


@pytest.mark.parametrize(("number", "dtype"), [(0, BLOCK_DTYPE), (1, KEY_DTYPE)])
def test_the_page_draws_the_rows_of_footers(number: int, dtype: np.dtype[np.void]) -> None:
    rows = table("### 2.3 ", number)
    drawn = [(field, f"<{kind[0]}{int(kind[1:]) // 8}") for _, _, kind, field in rows]
    assert drawn == list(dtype.descr)


@pytest.mark.parametrize(
    ("name", "section", "number", "known"),
    [
        ("segment_header.bin", "### 2.1 ", 0, {"start_offset": 0x10_0000, "size": 0x10_0000}),
        ("end_mark.bin", "### 2.2 ", 0, {"physical_offset": 0x10_1168}),
        ("footer.bin", "### 2.3 ", 2, {"block_count": 1, "key_count": 2}),
    ],
)
def test_the_examples_have_the_fields_at_the_drawn_positions(
    name: str, section: str, number: int, known: dict[str, int]
) -> None:
    raw = golden(name)[-64:]
    rows = table(section, number)
    found = {
        f: struct.unpack_from(KINDS[k], raw, int(at))[0] for at, _, k, f, *_ in rows if k in KINDS
    }
    assert {field: found[field] for field in known} == known
    assert raw[:4].decode() == rows[0][4]


def test_the_example_of_the_page_is_the_golden_one() -> None:
    drawn = PAGE.split("```\n    at", 1)[1].split("```", 1)[0]
    data = b""
    for line in drawn.splitlines()[1:]:
        at, octets = re.match(r" *(\d+)  ((?:[0-9a-f]{2} ?)+)", line).groups()  # type: ignore[union-attr]
        assert int(at) == len(data)
        data += bytes.fromhex(octets)
    assert data == golden("batch_stored.bin")


@pytest.mark.parametrize(
    ("words", "at"),
    [("body offsets 0 3 3 11", 128), ("key offsets 0 2 2 10", 176), ("expires", 336)],
)
def test_the_example_lists_the_positions_of_its_sections(words: str, at: int) -> None:
    assert re.search(rf"^ +{at}  .*{words}$", PAGE, re.MULTILINE)


def test_the_page_states_the_largest_batch() -> None:
    assert "(S - 4096 - 32 - 56 - 64) / 2" in PAGE
    assert largest_batch(1024 * 1024) == (1024 * 1024 - 4096 - 32 - 56 - 64) // 2
