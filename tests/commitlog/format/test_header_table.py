"""Headers decoded by table and one by one: on valid, cut, flipped and newer bytes."""

import random

import numpy as np
import pytest

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch, encode_rows, with_requests
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchHeader, layout_of
from holdfast.commitlog.format.header_table import (
    HEADER_DTYPE,
    block_ends,
    find_intact_headers,
    find_intact_run,
    find_small_blocks,
    find_split_headers,
    headers_in,
    keyed_message_count,
    run_of,
)
from tests.commitlog.format.test_batch_header import resealed
from tests.support.storage.batches import stamped

AT = 8_192
MOST = 1_000


def _stretch() -> bytes:
    """Return blocks with every kind of column, as a log has them from AT on."""
    sharing = [
        Rows(0, [b"1", b"2"], 1, producer_id=8, sequence=4),
        Rows(0, [b"3"], 1, producer_id=8, sequence=5),
        Rows(0, [b"4"], 1),
        Rows(0, [b"5", b"6", b"7"], 1, producer_id=9, producer_epoch=2, sequence=7),
    ]
    header, payload = encode_rows(sharing)
    raws = [
        encode_batch([b"x"]),
        encode_batch([b"a", b""], keys=["k", None], tags=[None, "red"]),
        encode_batch([b"p"], properties=[{"a": "1", "bc": ""}], expires_timestamps_us=[5]),
        encode_batch([b"b" * 100] * 3, born_timestamps_us=[1, 2, 3], tags=["t", "u", "v"]),
        encode_batch([b""]),
        bytes(header.encode()) + payload,
        encode_batch([b"i"], producer_id=5, producer_epoch=1, sequence=3),
    ]
    data = b""
    for raw in raws:
        data += bytes(stamped(raw, physical_offset=AT + len(data), topic_id=7).block)
    return data


DATA = _stretch()


def _one_by_one(data: bytes, position: int = 0) -> list[BatchHeader]:
    """Return the expected result of find_intact_run, from the reference decoder."""
    found = []
    while position < len(data):
        try:
            header = with_requests(Batch.decode(data, position))
        except Exception:
            break
        if header.physical_offset != AT + position:
            break
        found.append(header)
        position += header.total_size
    return found


def _run(data: bytes, position: int = 0, most: int = MOST) -> list[BatchHeader]:
    return list(headers_in(find_intact_run(data, position, AT + position, most)))


def _headers_one_by_one(data: bytes) -> list[bytes]:
    """Return the expected result of find_intact_headers: payloads may be damaged or missing."""
    found: list[bytes] = []
    position = 0
    while True:
        try:
            header = BatchHeader.decode(data, position)
            fits = layout_of(header).total_size == header.total_size
        except Exception:
            return found
        if header.physical_offset != AT + position or not fits:
            return found
        found.append(data[position : position + HEADER_SIZE])
        position += header.total_size


def _headers(data: bytes) -> list[bytes]:
    """Return the result of find_intact_headers, after comparing it with reads one by one."""
    at_once = find_intact_headers(data, 0, AT)

    def read(physical_offset: int, size: int) -> bytes:
        return data[physical_offset - AT :][:size]

    apart = find_split_headers(read, AT, AT + len(DATA), MOST)
    assert at_once.tobytes() == apart.tobytes()
    return [each.tobytes() for each in apart]


def test_the_table_has_the_fields_of_the_header() -> None:
    header = BatchHeader(*range(1, 23))
    table = run_of(header).headers
    assert table.itemsize == HEADER_SIZE
    names = {*BatchHeader.__slots__} - {"requests"}
    for name in names:
        assert int(table[name][0]) == getattr(header, name), name
    others = {"magic", "version", "header_crc"}
    assert set(HEADER_DTYPE.names or ()) == names | others


def test_a_run_has_every_block_from_its_position_on() -> None:
    headers = _one_by_one(DATA)
    assert len(headers) == 7
    assert _run(DATA) == headers
    # The comparison of headers ignores fields that are not in the bytes.
    assert [found.requests for found in _run(DATA)] == [each.requests for each in headers]
    assert [len(each.idempotent) for each in headers] == [0, 0, 0, 0, 0, 3, 1]
    publishes = find_intact_run(DATA, 0, AT, MOST).publishes
    assert publishes["producer_id"].tolist() == [8, 8, 9, 5]
    second = headers[1].physical_offset - AT
    assert _run(DATA, second) == headers[1:]
    assert _run(DATA, most=2) == headers[:2]
    assert _run(DATA, len(DATA)) == []
    assert _run(b"") == []


def test_the_publishes_of_a_shared_batch_with_envelopes_are_found() -> None:
    """A message of AMQP has an envelope, and may share a batch with an idempotent publish."""
    runs = [
        [
            Rows(0, [b"1", b"2"], 1, producer_id=8, sequence=4),
            Rows(0, [b"3"], 1, envelopes=[b"e" * size]),
            Rows(0, [b"4"], 1, producer_id=9, producer_epoch=2, sequence=7),
        ]
        for size in (1, 8, 1_000)
    ]
    data = b""
    for header, payload in map(encode_rows, [*runs, runs[0][:1] + runs[0][2:]]):
        block = bytes(header.encode()) + payload
        data += bytes(stamped(block, physical_offset=AT + len(data), topic_id=7).block)
    found = find_intact_run(data, 0, AT, MOST)
    assert list(headers_in(found)) == _one_by_one(data)
    columns = ("producer_id", "producer_epoch", "sequence", "message_count")
    expected = [(8, 0, 4, 2), (9, 2, 7, 1)] * 4
    assert list(zip(*(found.publishes[each].tolist() for each in columns), strict=True)) == expected


def test_a_run_at_another_offset_is_empty() -> None:
    assert len(find_intact_run(DATA, 0, AT + 8, MOST).headers) == 0


def test_every_truncation_ends_a_run() -> None:
    for size in range(len(DATA)):
        assert _run(DATA[:size]) == _one_by_one(DATA[:size]), size


def test_every_flipped_byte_ends_a_run_before_it() -> None:
    rng = random.Random(1)
    for at in range(0, len(DATA), 1):
        changed = bytearray(DATA)
        changed[at] ^= 1 << rng.randrange(8)
        assert _run(bytes(changed)) == _one_by_one(bytes(changed)), at


def test_headers_are_found_without_intact_payloads() -> None:
    assert len(_headers(DATA)) == 7
    rng = random.Random(2)
    for size in range(len(DATA)):
        assert _headers(DATA[:size]) == _headers_one_by_one(DATA[:size]), size
        changed = bytearray(DATA)
        changed[size] ^= 1 << rng.randrange(8)
        assert _headers(bytes(changed)) == _headers_one_by_one(bytes(changed)), size


def test_split_headers_end_at_the_given_count_or_offset() -> None:
    ends = [each.end_physical_offset for each in _one_by_one(DATA)]

    def found(end: int, most: int) -> int:
        def read(physical_offset: int, size: int) -> bytes:
            return DATA[physical_offset - AT :][:size]

        return len(find_split_headers(read, AT, end, most))

    assert [found(ends[-1], most) for most in (0, 1, 6, 7, 8)] == [0, 1, 6, 7, 7]
    assert [found(ends[2] + by, MOST) for by in (-1, 0, 1)] == [3, 3, 4]
    assert found(AT, MOST) == 0


@pytest.mark.parametrize(
    ("offset", "form", "value"),
    [
        (4, "<H", 2),  # a newer version
        (6, "<H", 0x8000),  # an unknown flag
        (20, "<I", 0),  # no message
        (20, "<I", 2**32 - 1),  # more than there is room for
        (40, "<q", -1),
        (8, "<I", HEADER_SIZE),  # shorter than its columns
        (92, "<I", 2**32 - 1),
        (124, "<I", 1),
    ],
)
def test_a_wrong_header_ends_a_run(offset: int, form: str, value: int) -> None:
    first = _one_by_one(DATA)[0]
    at = first.total_size
    lying = DATA[:at] + resealed(DATA[at : at + HEADER_SIZE], offset, form, value)
    data = lying + DATA[at + HEADER_SIZE :]
    assert _run(data) == [first] == _one_by_one(data)
    assert len(_headers(data)) == 1


def test_ends_and_keyed_messages_of_a_table() -> None:
    run = find_intact_run(DATA, 0, AT, MOST)
    table = run.headers
    assert block_ends(table).tolist() == [h.end_physical_offset for h in headers_in(run)]
    assert keyed_message_count(table) == 2
    assert keyed_message_count(table[:0]) == 0
    assert isinstance(block_ends(table)[0], np.uint64)


def _starts_one_by_one(data: bytes) -> list[int]:
    found = []
    position = 0
    while len(data) - position >= HEADER_SIZE and data[position : position + 4] == b"HFBT":
        size = int.from_bytes(data[position + 8 : position + 12], "little")
        if size < HEADER_SIZE or position + size > len(data):
            break
        found.append(position)
        position += size
    return found


def test_small_blocks_are_found_in_data_of_every_length() -> None:
    for end in range(len(DATA) + 1):
        data = DATA[:end]
        assert find_small_blocks(data).tolist() == _starts_one_by_one(data), end
    assert find_small_blocks(b"x" * 8 + DATA).tolist() == []
    assert find_small_blocks(DATA + bytes(500)).tolist() == _starts_one_by_one(DATA)


@pytest.mark.parametrize("at", [0, 9])
def test_small_blocks_end_where_magic_or_size_is_damaged(at: int) -> None:
    starts = _starts_one_by_one(DATA)
    for block, start in enumerate(starts):
        damaged = bytearray(DATA)
        damaged[start + at] ^= 1
        found = find_small_blocks(bytes(damaged)).tolist()
        # The block whose size is damaged may be found, because its checksum is not verified.
        assert found in (starts[:block], starts[: block + 1])


def test_small_blocks_end_at_a_block_that_contains_the_magic() -> None:
    inner = encode_batch([b"x" * 8 + b"HFBT" * 4])
    data = encode_batch([b"a"]) + inner + encode_batch([b"b"])
    starts = _starts_one_by_one(data)
    assert find_small_blocks(data).tolist() == starts[:2]
