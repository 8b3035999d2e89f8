"""BatchRun decodes the same as commitlog.format.batch, and rejects the same batches with the same
errors."""

import dataclasses
import struct
from collections.abc import Callable

from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.commitlog.errors import LogError
from holdfast.commitlog.format.batch import Batch, iter_batches
from holdfast.commitlog.format.batch_header import MAGIC, BatchFlag, BatchHeader
from holdfast.commitlog.format.batch_run import BatchRun
from holdfast.commitlog.format.header_table import HEADER_DTYPE
from tests.spark.stored import ANY_COLUMNS, join_batches, store
from tests.support.storage.batches import Columns

FULL = Columns(
    bodies=[b"a", b"bc"],
    keys=["k", None],
    tags=[None, "t"],
    properties=[{"n": "v"}, None],
    born_timestamps_us=[1, 2],
    expires_timestamps_us=[3, 4],
)


@settings(deadline=None)  # the machine may be busy
@given(st.lists(ANY_COLUMNS, max_size=5), st.integers(0, 2**40))
def test_headers_and_sections_are_those_of_the_format(batches: list[Columns], base: int) -> None:
    stored = store(batches, base)
    blocks = BatchRun(join_batches(stored))
    assert len(blocks) == len(stored)
    for index, batch in enumerate(stored):
        for field in dataclasses.fields(BatchHeader):
            if field.name == "requests":  # not part of the bytes
                continue
            assert blocks.field(field.name)[index] == getattr(batch.header, field.name), field.name
        for name, starts in blocks.starts.items():
            if (section := getattr(batch.layout, name)) is not None:
                assert starts[index] - blocks.positions[index] == section.start, name


def test_every_section_has_its_position() -> None:
    names = {
        field.name for field in dataclasses.fields(Batch.decode(join_batches(store([FULL]))).layout)
    }
    assert set(BatchRun(b"").starts) == names - {"total_size"}


def test_a_run_may_be_empty() -> None:
    assert len(BatchRun(b"")) == 0


def test_a_run_reports_which_blocks_have_a_column() -> None:
    blocks = BatchRun(join_batches(store([FULL, Columns([b"x"])])))
    assert blocks.has(BatchFlag.KEYS).tolist() == [True, False]


def refusal(read: Callable[[bytes], object], data: bytes) -> str | None:
    try:
        read(data)
    except LogError as error:
        return f"{type(error).__name__}: {error}"
    return None


def test_every_truncation_is_refused_like_a_single_batch() -> None:
    whole, first = join_batches(store([FULL, FULL])), join_batches(store([FULL]))
    for kept in range(0, len(whole), 4):
        expected = refusal(lambda data: list(iter_batches(data)), whole[:kept])
        assert refusal(BatchRun, whole[:kept]) == expected, kept
        assert (expected is None) == (kept in {0, len(first)}), kept


def test_every_flipped_bit_is_refused_like_a_single_batch() -> None:
    first, second = join_batches(store([FULL])), join_batches(store([FULL], 2))
    for position in range(len(second)):
        data = bytearray(first + second)
        data[len(first) + position] ^= 1 << (position % 8)
        expected = refusal(lambda data: list(iter_batches(data)), bytes(data))
        assert expected is not None, position
        assert refusal(BatchRun, bytes(data)) == expected, position


def test_a_header_with_wrong_column_sizes_is_refused() -> None:
    (batch,) = store([FULL])
    header = dataclasses.replace(batch.header, body_bytes=batch.header.body_bytes + 8)
    data = bytes(header.encode()) + bytes(batch.block[128:])
    expected = refusal(Batch.decode, data)
    assert expected is not None
    assert refusal(BatchRun, data) == expected


def test_a_newer_format_has_its_own_error() -> None:
    data = bytearray(join_batches(store([FULL])))
    offset = HEADER_DTYPE.fields["version"][1]  # type: ignore[index]
    struct.pack_into("<H", data, offset, 2)
    expected = refusal(Batch.decode, bytes(data))
    assert refusal(BatchRun, bytes(data)) == expected


def test_a_magic_inside_a_message_is_ignored() -> None:
    # The blocks are so small that they are found by their magic, at any position and before any
    # bytes.
    for before in range(8):
        body = bytes(before) + (MAGIC + bytes(4) + (136).to_bytes(4, "little") + bytes(4)) * 40
        stored = store([Columns([b"a"]), Columns([body]), Columns([b"b", b""])])
        run = BatchRun(join_batches(stored))
        assert run.base_offsets.tolist() == [0, 1, 2]
        assert run.total_sizes.tolist() == [len(batch.block) for batch in stored]
