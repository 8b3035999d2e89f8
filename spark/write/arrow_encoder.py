"""Encode checked rows as a batch in the format of FORMAT.md, whole columns at a time.

Arrow stores the offsets and data of a column in the same form as the format, so Arrow and numpy do
the work per message. The result has the same bytes as that of `commitlog.format.batch_encoding`.
"""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from holdfast.commitlog.format.batch import tag_summary
from holdfast.commitlog.format.batch_encoding import Sections
from holdfast.commitlog.format.batch_header import HEADER_SIZE, BatchFlag, BatchHeader, Buffer
from holdfast.commitlog.format.checksum import crc32c, crc32c_each
from holdfast.spark.write.partitioner import UInt32s
from holdfast.spark.write.rows import property_entries

Int32s = npt.NDArray[np.int32]


def encode_rows(
    rows: pa.RecordBatch,
    hashes: UInt32s | None,
    *,
    topic_id: int,
    queue: int,
    born_timestamp_us: int,
) -> tuple[BatchHeader, bytes]:
    """Return the header and the payload of a batch of one or more checked rows. The header has no
    producer yet. `hashes` are the hashes of the key column, if there is one."""
    columns = _Columns()
    flags = 0
    fields: dict[str, Any] = {"body_bytes": columns.add_texts(rows.column("body"))}
    if (keys := _present(rows, "key")) is not None:
        assert hashes is not None
        flags |= BatchFlag.KEYS
        columns.add_numbers(hashes, "<u4")
        fields["key_bytes"] = columns.add_texts(pc.fill_null(keys, ""))
    if (tags := _present(rows, "tag")) is not None:
        flags |= BatchFlag.TAGS
        codes, distinct = _tag_codes(tags)
        columns.add_numbers(codes, "<u4")
        fields["tag_summary"] = tag_summary(distinct)
        fields["tag_bytes"] = columns.add_texts(pc.fill_null(tags, ""))
    if "properties" in rows.schema.names:
        offsets, names, values = property_entries(rows.column("properties"))
        if len(names):
            flags |= BatchFlag.PROPERTIES
            columns.add_numbers(offsets, "<i4")
            fields["property_count"] = len(names)
            fields["property_name_bytes"] = columns.add_texts(names)
            fields["property_value_bytes"] = columns.add_texts(values)
    if "born_timestamp" in rows.schema.names:
        flags |= BatchFlag.BORN
        columns.add_numbers(_times(rows, "born_timestamp"), "<i8")
    if _present(rows, "expires_timestamp") is not None:
        flags |= BatchFlag.EXPIRES
        columns.add_numbers(_times(rows, "expires_timestamp"), "<i8")
    payload = columns.join()
    header = BatchHeader(
        flags=int(flags),
        total_size=HEADER_SIZE + len(payload),
        payload_crc=crc32c(payload),
        message_count=len(rows),
        topic_id=topic_id,
        queue_id=queue,
        born_timestamp_us=born_timestamp_us,
        **fields,
    )
    return header, payload


class _Columns(Sections):
    """Sections built from Arrow and numpy arrays."""

    def add_numbers(self, values: npt.NDArray[np.generic], kind: str) -> None:
        self.add(np.ascontiguousarray(values, kind).tobytes())

    def add_texts(self, array: pa.Array) -> int:
        """Add the offsets and the data of an array without nulls. Return the size of the data."""
        offsets, data = _buffers(array)
        self.add_numbers(offsets, "<i4")
        self.add(data)
        return len(data)


def _buffers(array: pa.Array) -> tuple[Int32s, Buffer]:
    """Return (offsets, data) of an array of bytes or texts. The offsets begin at 0."""
    _, ends, octets = array.buffers()
    if not len(array):
        return np.zeros(1, np.int32), b""
    offsets = np.frombuffer(ends, np.int32, len(array) + 1, array.offset * 4)
    start, end = int(offsets[0]), int(offsets[-1])
    return offsets - offsets[0], b"" if octets is None else memoryview(octets)[start:end]


def _present(rows: pa.RecordBatch, name: str) -> pa.Array | None:
    """Return the column, or None if it is missing or null in every row."""
    if name not in rows.schema.names:
        return None
    array = rows.column(name)
    return array if array.null_count < len(array) else None


def _tag_codes(tags: pa.Array) -> tuple[UInt32s, Sequence[int]]:
    """Return the code of each tag (0 for null), and the codes of the distinct tags."""
    coded = tags.dictionary_encode()
    distinct = crc32c_each(coded.dictionary.cast(pa.binary()).to_pylist())
    table = np.array([*distinct, 0], np.uint32)
    return table[pc.fill_null(coded.indices, len(distinct)).to_numpy()], distinct


def _times(rows: pa.RecordBatch, name: str) -> npt.NDArray[np.int64]:
    times: npt.NDArray[np.int64] = pc.fill_null(rows.column(name), 0).to_numpy()
    return times
