"""Checked rows -> a batch as FORMAT.md has it, whole columns at a time.

Arrow's offsets and data are the format's own columns, so what is done for each message is done
by Arrow and numpy. The bytes are those of `commitlog.batch_encoding`, given the same messages.
"""

from collections.abc import Sequence

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.batch import tag_summary
from holdfast.commitlog.batch_encoding import Sections
from holdfast.commitlog.batch_header import HEADER_SIZE, BatchFlag, BatchHeader, Buffer
from holdfast.commitlog.checksum import crc32c, crc32c_each
from holdfast.spark.routing import UInt32s
from holdfast.spark.write_rows import entries

Int32s = npt.NDArray[np.int32]


def encode_rows(
    rows: pa.RecordBatch,
    hashes: UInt32s | None,
    *,
    topic_id: int,
    queue: int,
    born_timestamp_us: int,
) -> tuple[BatchHeader, bytes]:
    """Return the header, which names no producer yet, and the payload of a batch of checked rows,
    one or more. `hashes` are those of the key column, if there is one."""
    columns = _Columns()
    body_bytes = columns.texts(rows.column("body"))
    flags = 0
    key_bytes = tag_bytes = summary = property_count = name_bytes = value_bytes = 0
    if (keys := _present(rows, "key")) is not None:
        assert hashes is not None
        flags |= BatchFlag.KEYS
        columns.numbers(hashes, "<u4")
        key_bytes = columns.texts(pc.fill_null(keys, ""))
    if (tags := _present(rows, "tag")) is not None:
        flags |= BatchFlag.TAGS
        codes, distinct = _tag_codes(tags)
        summary = tag_summary(distinct)
        columns.numbers(codes, "<u4")
        tag_bytes = columns.texts(pc.fill_null(tags, ""))
    if "properties" in rows.schema.names:
        listed, names, values = entries(rows.column("properties"))
        property_count = len(names)
        if property_count:
            flags |= BatchFlag.PROPERTIES
            columns.numbers(listed, "<i4")
            name_bytes = columns.texts(names)
            value_bytes = columns.texts(values)
    if "born_timestamp" in rows.schema.names:
        flags |= BatchFlag.BORN
        columns.numbers(_times(rows, "born_timestamp"), "<i8")
    if _present(rows, "expires_timestamp") is not None:
        flags |= BatchFlag.EXPIRES
        columns.numbers(_times(rows, "expires_timestamp"), "<i8")
    payload = columns.join()
    header = BatchHeader(
        flags=int(flags),
        total_size=HEADER_SIZE + len(payload),
        payload_crc=crc32c(payload),
        message_count=len(rows),
        body_bytes=body_bytes,
        topic_id=topic_id,
        queue_id=queue,
        born_timestamp_us=born_timestamp_us,
        tag_summary=summary,
        key_bytes=key_bytes,
        tag_bytes=tag_bytes,
        property_count=property_count,
        property_name_bytes=name_bytes,
        property_value_bytes=value_bytes,
    )
    return header, payload


class _Columns(Sections):
    """Sections written from Arrow's and numpy's arrays."""

    def numbers(self, values: npt.NDArray[np.generic], kind: str) -> None:
        self.add(np.ascontiguousarray(values, kind).tobytes())

    def texts(self, array: pa.Array) -> int:
        """Add the offsets and the data of an array without nulls; return the data's size."""
        offsets, data = _buffers(array)
        self.numbers(offsets, "<i4")
        self.add(data)
        return len(data)


def _buffers(array: pa.Array) -> tuple[Int32s, Buffer]:
    """Return the offsets of an array of bytes or texts, from 0 on, and what they point into."""
    _, ends, octets = array.buffers()
    if not len(array):
        return np.zeros(1, np.int32), b""
    offsets = np.frombuffer(ends, np.int32, len(array) + 1, array.offset * 4)
    start, end = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], b"" if octets is None else memoryview(octets)[start:end]


def _present(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return a column that is there and in which some row has something."""
    if name not in rows.schema.names:
        return None
    array = rows.column(name)
    return array if array.null_count < len(array) else None


def _tag_codes(tags: pa.Array) -> tuple[UInt32s, Sequence[int]]:
    """Return each tag's code, 0 for none, and those of the tags that there are."""
    coded = tags.dictionary_encode()
    distinct = crc32c_each(coded.dictionary.cast(pa.binary()).to_pylist())
    table = np.array([*distinct, 0], np.uint32)
    return table[pc.fill_null(coded.indices, len(distinct)).to_numpy()], distinct


def _times(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    times: npt.NDArray[np.int64] = pc.fill_null(rows.column(name), 0).to_numpy()
    return times
