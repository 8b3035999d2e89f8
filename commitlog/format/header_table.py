"""Batch headers as rows of a numpy table, to verify thousands of blocks at once. Pure.

`find_intact_run` verifies for a part of the log what `Batch.decode` verifies for one block, in one
or two microseconds per block. It does not report what is wrong: a run ends before the first block
that is not certainly intact, and `Batch.decode` on that block reports the reason.
"""

import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.commitlog.format.batch_header import (
    ALIGNMENT,
    BORN,
    ENVELOPES,
    EXPIRES,
    FIELD_NAMES,
    FORMAT_VERSION,
    HEADER_FIELDS,
    HEADER_SIZE,
    KEYS,
    MAGIC,
    PRODUCERS,
    PROPERTIES,
    REBUILT,
    REQUEST_SEQUENCE,
    TAGS,
    BatchHeader,
    Buffer,
    align,
    known_flags,
)
from holdfast.commitlog.format.chained_check import SMALL_BYTES, have_valid_checksums
from holdfast.commitlog.format.checksum import crc32c_each, crc32c_of_ranges

_NUMPY_CODES = {"4s": "S4", "H": "<u2", "I": "<u4", "Q": "<u8", "q": "<i8"}
HEADER_DTYPE = np.dtype([(name, _NUMPY_CODES[code]) for name, code in HEADER_FIELDS.items()])
assert HEADER_DTYPE.itemsize == HEADER_SIZE

Headers = npt.NDArray[np.void]
Bools = npt.NDArray[np.bool_]
Int64s = npt.NDArray[np.int64]
UInt32s = npt.NDArray[np.uint32]
UInt64s = npt.NDArray[np.uint64]

NO_HEADERS: Headers = np.zeros(0, HEADER_DTYPE)

_MAGIC_AND_SIZE = struct.Struct("<4s4xI")
_MAGIC_WORD = int.from_bytes(MAGIC, "little")
_WORD = 4
#: Index of the total size in a header, in words of 4 bytes.
_SIZE_WORD = 2


@dataclass(frozen=True, slots=True, eq=False)
class Run:
    """Adjacent intact blocks."""

    headers: Headers
    publishes: Headers
    """The publishes that producers may retry, oldest first: for each block the rows that
    `BatchHeader.idempotent` would contain. Each row has the physical offset of its block; its
    header CRC is meaningless."""


NO_RUN = Run(NO_HEADERS, NO_HEADERS)


def find_intact_run(data: bytes, position: int, physical_offset: int, most: int) -> Run:
    """Return the adjacent intact blocks in `data`, at most `most`. The first block starts at
    `position`, which is the log's `physical_offset`.

    The run ends before the first block that is damaged, truncated by the end of `data`, of a newer
    format, or has another physical offset than its place. The run may be empty.
    """
    starts = _find_starts(data, position, most)
    table = gather_headers(data, starts)
    places = np.array(starts, np.int64) + (physical_offset - position)
    table = _well_placed(table, places)
    if not _are_small_and_intact(data, starts, table):
        table = _with_valid_crc(table)  # the next step trusts the sizes in the headers
        table = table[: _count_of_payloads(data, starts[: len(table)], table)]
    return Run(table, _publishes(data, starts, table))


def find_intact_headers(data: bytes, position: int, physical_offset: int) -> Headers:
    """Return the headers of adjacent blocks in `data`. The first block starts at `position`, which
    is the log's `physical_offset`.

    The result ends where `find_intact_run` would end, but payloads are not verified, and the last
    block may extend beyond `data`.
    """
    starts = _find_starts(data, position, len(data), is_whole=False)
    places = np.array(starts, np.int64) + (physical_offset - position)
    return _with_valid_crc(_well_placed(gather_headers(data, starts), places))


def find_split_headers(
    read: Callable[[int, int], bytes], start: int, end: int, most: int
) -> Headers:
    """Return the headers of adjacent blocks that start at physical offsets from `start` to before
    `end`, at most `most`.

    `read(physical_offset, size)` is called once for each header, which is cheaper than reading
    large payloads too. The headers end where those of `find_intact_headers` would end.
    """
    found: list[bytes] = []
    places: list[int] = []
    while start < end and len(found) < most:
        header = read(start, HEADER_SIZE)
        if len(header) < HEADER_SIZE:
            break
        magic, size = _MAGIC_AND_SIZE.unpack_from(header)
        if magic != MAGIC or size < HEADER_SIZE:
            break
        found.append(header)
        places.append(start)
        start += size
    table: Headers = np.frombuffer(b"".join(found), HEADER_DTYPE)
    return _with_valid_crc(_well_placed(table, np.array(places, np.int64)))


def count_intact_payloads(data: Buffer, starts: Sequence[int], headers: Headers) -> int:
    """Return the number of blocks before the first one whose payload CRC does not match. The blocks
    of these intact headers are adjacent, start at `starts`, and are completely in `data`."""
    if _are_small_and_intact(data, starts, headers):
        return len(headers)
    return _count_of_payloads(data, starts, headers)


def _well_placed(table: Headers, places: Int64s) -> Headers:
    """Return the headers before the first one that is not well formed or has another physical
    offset than its entry in `places`. Checksums are costly, so they are verified afterwards."""
    is_here = table["physical_offset"] == places.astype(np.uint64)
    return table[: count_leading_true(is_here & are_well_formed(table, section_sizes(table)))]


def _with_valid_crc(table: Headers) -> Headers:
    """Return the headers before the first one whose CRC does not match."""
    return table[: count_leading_true(header_crcs(table) == table["header_crc"])]


def _are_small_and_intact(data: Buffer, starts: Sequence[int], table: Headers) -> bool:
    """Return True if all blocks of `table` are small and their checksums match. The blocks are
    adjacent, and each is completely in `data`."""
    if not len(table):
        return False
    begin, end = starts[0], starts[len(table) - 1] + int(table["total_size"][-1])
    if end - begin > SMALL_BYTES * len(table):
        return False
    at = np.array(starts[: len(table)], np.int64) - begin
    blocks = memoryview(data)[begin:end]
    return have_valid_checksums(blocks, at, table["header_crc"], table["payload_crc"])


def _find_starts(data: bytes, position: int, most: int, *, is_whole: bool = True) -> list[int]:
    """Return the positions of at most `most` blocks in `data`, where each block starts at the end
    of the block before it. Only magic and size are checked.

    With `is_whole` every block is completely in `data`; otherwise the last block may have only its
    header in `data`."""
    starts: list[int] = []
    whole = (len(data) - position) // _WORD * _WORD
    words = memoryview(data)[position : position + whole].cast("I")
    at, last = 0, whole - HEADER_SIZE
    while at <= last and len(starts) < most:
        word = at // _WORD
        size = words[word + _SIZE_WORD]
        if words[word] != _MAGIC_WORD or size < HEADER_SIZE or size % ALIGNMENT:
            break
        if at + size > whole and is_whole:
            break
        starts.append(position + at)
        at += size
    return starts


def find_small_blocks(data: Buffer) -> Int64s:
    """Return the positions of adjacent complete blocks in `data`. The first block starts at
    position 0, and each other block starts at the end of the block before it. Only magic and size
    are checked.

    This is a search for magics, so it is fast only for small blocks. If a block contains the magic
    at a multiple of 8 bytes, the blocks after it are not found."""
    words = np.frombuffer(data, "<u4", len(data) // ALIGNMENT * ALIGNMENT // _WORD)
    starts = np.flatnonzero(words[:-2:2] == _MAGIC_WORD) * ALIGNMENT
    sizes = words[starts // _WORD + _SIZE_WORD].astype(np.int64)
    ends = starts + sizes
    is_next = (sizes >= HEADER_SIZE) & (ends <= len(data))
    is_next[:1] &= starts[:1] == 0
    is_next[1:] &= starts[1:] == ends[:-1]
    return starts[: count_leading_true(is_next)]


def _count_of_payloads(data: Buffer, starts: Sequence[int], table: Headers) -> int:
    """Return the number of blocks before the first one whose payload CRC does not match."""
    begins = [start + HEADER_SIZE for start in starts]
    ends = (np.array(starts, np.int64) + table["total_size"]).tolist()
    crcs = np.array(crc32c_of_ranges(data, begins, ends), np.uint32)
    return count_leading_true(crcs == table["payload_crc"])


def _publishes(data: bytes, starts: Sequence[int], headers: Headers) -> Headers:
    """Return `Run.publishes` for the complete blocks that start at `starts` in `data`."""
    is_alone = headers["producer_id"] != 0
    alone: Headers = headers[is_alone]
    shared = np.flatnonzero(has_flag(headers, PRODUCERS) & ~is_alone)
    if not len(shared):
        return alone
    counts = headers["message_count"][shared].astype(np.int64)
    # Only envelopes follow the columns of the producers: ids, sequences, epochs.
    sizes = section_sizes(headers[shared])
    ends = np.array(starts, np.int64)[shared] + headers["total_size"][shared]
    ends -= align(sizes["envelope_offsets"]) + align(sizes["envelopes"])
    columns = []
    for count, end in zip(counts.tolist(), ends.tolist(), strict=True):
        epochs_at = end - align(4 * count)
        columns.append(
            (
                np.frombuffer(data, "<u8", count, epochs_at - 16 * count),
                np.frombuffer(data, "<i8", count, epochs_at - 8 * count),
                np.frombuffer(data, "<u4", count, epochs_at),
            )
        )
    producers, sequences, epochs = (np.concatenate(each) for each in zip(*columns, strict=True))
    blocks = np.repeat(shared, counts)
    rows = np.arange(len(blocks)) - np.repeat(np.cumsum(counts) - counts, counts)
    is_other = rows == 0
    for column in (producers, sequences, epochs):
        is_other[1:] |= column[1:] != column[:-1]
    firsts = np.flatnonzero(is_other)
    found = headers[blocks[firsts]]
    found["flags"] = REQUEST_SEQUENCE
    found["base_offset"] += rows[firsts]
    found["message_count"] = np.diff(np.append(firsts, len(blocks)))
    found["producer_id"] = producers[firsts]
    found["sequence"] = sequences[firsts]
    found["producer_epoch"] = epochs[firsts]
    together = np.concatenate([alone, found[found["producer_id"] != 0]])
    in_order: Headers = together[np.argsort(together["physical_offset"], kind="stable")]
    return in_order


def count_leading_true(values: Bools) -> int:
    """Return the number of True values before the first False."""
    return len(values) if bool(values.all()) else int(values.argmin())


def gather_headers(data: Buffer, starts: Sequence[int] | Int64s) -> Headers:
    """Return the headers at these positions of `data`, unverified. Each must be completely in
    `data`."""
    if not len(starts):
        return NO_HEADERS
    places = len(data) - HEADER_SIZE + 1
    everywhere = np.ndarray((places,), f"V{HEADER_SIZE}", data, strides=(1,))
    table: Headers = everywhere[np.asarray(starts)].view(HEADER_DTYPE)
    return table


def are_well_formed(
    headers: Headers, sizes: Mapping[str, Int64s], *, rebuilt: bool = False
) -> Bools:
    """Return which headers have valid field values in this format version. `sizes` are their
    `section_sizes`. With `rebuilt` they may have the flag REBUILT. Checksums are not verified."""
    well_formed: Bools = (
        (headers["magic"] == MAGIC)
        & (headers["version"] == FORMAT_VERSION)
        & (headers["flags"] & ~np.uint16(known_flags(rebuilt=rebuilt)) == 0)
        & ((headers["envelope_bytes"] == 0) | has_flag(headers, ENVELOPES))
        & (headers["message_count"] >= 1)
        & (headers["base_offset"] >= 0)
        & (headers["total_size"] == _column_ends(sizes))
    )
    return well_formed


def _column_ends(sizes: Mapping[str, Int64s]) -> Int64s:
    """Return the end of each batch's columns, as `layout_of` computes it for one batch."""
    end = np.full(len(sizes["bodies"]), HEADER_SIZE, np.int64)
    for size in sizes.values():
        if size.any():
            end += align(size)
    return end


def section_sizes(headers: Headers) -> dict[str, Int64s]:
    """Return the size of each section in each batch, without padding, by the section's name in
    Layout, in the order of the sections. A section that a batch does not have has size 0."""

    def field(name: str) -> Int64s:
        return headers[name].astype(np.int64)

    count = field("message_count")
    offsets, hashes, times = 4 * (count + 1), 4 * count, 8 * count
    sizes = {"body_offsets": offsets, "bodies": field("body_bytes")}
    nothing = np.zeros_like(count)
    flags = np.ascontiguousarray(headers["flags"])
    used = int(np.bitwise_or.reduce(flags))

    def add(flag: int, **sections: Int64s | str) -> None:
        """Add sections, each by its size or by the field that has its size."""
        if not used & flag:
            sizes.update(dict.fromkeys(sections, nothing))
            return
        present = flags & np.uint16(flag) != 0
        for name, size in sections.items():
            sizes[name] = np.where(present, field(size) if isinstance(size, str) else size, 0)

    add(KEYS, key_hashes=hashes, key_offsets=offsets, keys="key_bytes")
    add(TAGS, tag_codes=hashes, tag_offsets=offsets, tags="tag_bytes")
    entries = 4 * (field("property_count") + 1) if used & PROPERTIES else nothing
    add(
        PROPERTIES,
        property_list=offsets,
        name_offsets=entries,
        names="property_name_bytes",
        value_offsets=entries,
        values="property_value_bytes",
    )
    add(BORN, born=times)
    add(EXPIRES, expires=times)
    add(PRODUCERS, producer_ids=times, sequences=times, epochs=hashes)
    add(ENVELOPES, envelope_offsets=offsets, envelopes="envelope_bytes")
    add(REBUILT, stored=times)
    return sizes


def has_flag(headers: Headers, flag: int) -> Bools:
    """Return which batches have the column of `flag`."""
    present: Bools = headers["flags"] & np.uint16(flag) != 0
    return present


def header_crcs(headers: Headers) -> UInt32s:
    """Return the computed CRC of each header, with the CRC field as zero."""
    without = headers.copy()
    without["header_crc"] = 0
    return np.array(crc32c_each(without.view(f"V{HEADER_SIZE}").tolist()), np.uint32)


def block_ends(headers: Headers) -> UInt64s:
    """Return the physical offset after each block."""
    ends: UInt64s = headers["physical_offset"] + headers["total_size"]
    return ends


def keyed_message_count(headers: Headers) -> int:
    """Return the largest number of entries that these batches can add to a footer's key table."""
    keyed = headers["message_count"][has_flag(headers, KEYS)]
    return int(keyed.sum(dtype=np.int64))


def run_of(header: BatchHeader) -> Run:
    """Return a run that contains only the block of this header."""
    publishes = [_row(publish) for publish in header.idempotent]
    return Run(_row(header), np.concatenate([NO_HEADERS, *publishes]))


def _row(header: BatchHeader) -> Headers:
    return np.frombuffer(header.encode(), HEADER_DTYPE)


def headers_in(run: Run) -> Iterator[BatchHeader]:
    """Yield a run's headers one by one, with their publishes in `requests`."""
    places = run.publishes["physical_offset"]
    firsts = np.searchsorted(places, run.headers["physical_offset"], side="left")
    ends = np.searchsorted(places, run.headers["physical_offset"], side="right")
    for row, first, end in zip(run.headers, firsts, ends, strict=True):
        publishes = run.publishes[first:end] if not row["producer_id"] else NO_HEADERS
        yield _header(row, tuple(_header(each) for each in publishes))


def _header(row: np.void, requests: tuple[BatchHeader, ...] = ()) -> BatchHeader:
    values: list[Any] = [*(int(row[name]) for name in FIELD_NAMES), requests]
    return BatchHeader(*values)
