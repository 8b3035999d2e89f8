"""The examples whose bytes pin the format: `python -m tests.commitlog.golden.make` writes them.

They were written once. A change of the code that changes them breaks every log there is, so
running this again is right only together with a new format version (FORMAT.md).
"""

from collections.abc import Mapping
from pathlib import Path

import numpy as np

from holdfast.commitlog.format.batch import Batch, key_hash
from holdfast.commitlog.format.batch_encoding import Rows, encode_batch, encode_rows
from holdfast.commitlog.format.batch_header import HEADER_SIZE
from holdfast.commitlog.format.segment_format import (
    BLOCK_DTYPE,
    KEY_DTYPE,
    SegmentHeader,
    encode_end_mark,
    encode_footer,
)

FOLDER = Path(__file__).parent

BORN_US = 1_700_000_000_000_000
STORED_US = 1_700_000_001_000_000
#: Where the stored example lies: the first block of a segment that begins at 1 MiB.
SEGMENT_START = 0x10_0000
SEGMENT_SIZE = 0x10_0000
PHYSICAL_OFFSET = SEGMENT_START + 4096


def lone() -> bytes:
    """Return one message without anything, as a producer sends it."""
    return encode_batch([b"hello"], born_timestamp_us=BORN_US)


def full() -> bytes:
    """Return three messages with every column, as a producer sends them. FORMAT.md draws it."""
    return encode_batch(
        [b"one", b"", b"\x00\xff three"],
        keys=["k1", None, "ключ"],
        tags=["red", "blue", None],
        properties=[{"a": "1", "bc": ""}, None, {"a": "é"}],
        born_timestamp_us=BORN_US,
        born_timestamps_us=[BORN_US, BORN_US + 1, BORN_US + 2],
        expires_timestamps_us=[0, BORN_US + 60_000_000, 0],
        queue_id=2,
        producer_id=0x0102_0304_0506_0708,
        producer_epoch=3,
        sequence=41,
    )


def stored() -> bytes:
    """Return `full` as the broker stores it."""
    sent = Batch.decode(full())
    header = sent.header.stamp(
        physical_offset=PHYSICAL_OFFSET,
        durable_offset=SEGMENT_START - 4096,
        base_offset=1000,
        topic_id=7,
        queue_id=2,
        store_timestamp_us=STORED_US,
        tag_summary=sent.header.tag_summary,
    )
    return bytes(header.encode()) + full()[HEADER_SIZE:]


def with_envelopes() -> bytes:
    """Return three messages with a key column and envelopes, as the broker encodes them."""
    header, payload = encode_rows(
        [
            Rows(
                2,
                [b"one", b"", b"three"],
                BORN_US,
                keys=["k1", None, None],
                envelopes=[bytes.fromhex("110419036f72"), b"", bytes(range(30))],
            )
        ]
    )
    return bytes(header.encode()) + payload


def segment_header() -> bytes:
    """Return the part of a header page that is not zero."""
    return SegmentHeader(SEGMENT_START, SEGMENT_SIZE, STORED_US).encode()[:64]


def end_mark() -> bytes:
    """Return the end mark right after the stored example."""
    return encode_end_mark(PHYSICAL_OFFSET + len(stored()))


def footer() -> bytes:
    """Return the footer of a segment that holds the stored example alone."""
    header = Batch.decode(stored()).header
    block = (
        header.topic_id,
        header.queue_id,
        header.base_offset,
        header.physical_offset,
        header.total_size,
        header.message_count,
        header.store_timestamp_us,
        header.tag_summary,
        header.body_bytes,
        header.flags,
    )
    keys = sorted((key_hash(key), 0) for key in ("k1", "ключ"))
    return encode_footer(SEGMENT_START, np.array([block], BLOCK_DTYPE), np.array(keys, KEY_DTYPE))


def examples() -> Mapping[str, bytes]:
    """Return every example by its file name, as the code encodes it now."""
    return {
        "batch_lone.bin": lone(),
        "batch_full.bin": full(),
        "batch_stored.bin": stored(),
        "batch_envelopes.bin": with_envelopes(),
        "segment_header.bin": segment_header(),
        "end_mark.bin": end_mark(),
        "footer.bin": footer(),
    }


def golden(name: str) -> bytes:
    """Return an example's bytes as they were pinned."""
    return (FOLDER / name).read_bytes()


if __name__ == "__main__":
    for name, data in examples().items():
        (FOLDER / name).write_bytes(data)
