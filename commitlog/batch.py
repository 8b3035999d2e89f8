"""The former name of `holdfast.commitlog.format.batch`, for programs and pickles that use it."""

from holdfast.commitlog.format.batch import (
    Batch,
    Int32s,
    Int64s,
    RequestColumns,
    UInt32s,
    UInt64s,
    iter_batches,
    key_hash,
    payload_crc,
    queue_for_key,
    tag_summary,
    tags_code,
)

__all__ = [
    "Int32s",
    "UInt32s",
    "UInt64s",
    "Int64s",
    "key_hash",
    "tags_code",
    "queue_for_key",
    "tag_summary",
    "RequestColumns",
    "Batch",
    "payload_crc",
    "iter_batches",
]
