"""Compare a stored batch with the batch of the same sequence number that this attempt sends."""

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_columns
from holdfast.spark.write.outgoing import OutgoingBatch


def agrees_with_stored(batch: OutgoingBatch, stored: Batch) -> bool:
    """Return True if the shorter of the two batches equals the beginning of the longer, byte for
    byte."""
    if len(stored) == len(batch):
        return batch.header.payload_crc == stored.header.payload_crc
    if len(stored) < len(batch):
        return batch.part(0, len(stored)).header.payload_crc == stored.header.payload_crc
    return batch.header.payload_crc == _crc_of_prefix(stored, len(batch))


def _crc_of_prefix(stored: Batch, count: int) -> int:
    """Return the payload CRC of a batch of the first `count` stored messages."""
    rows = range(count)
    born, expires = stored.born_timestamps_us, stored.expires_timestamps_us
    header, _ = encode_columns(
        [stored.body(row) for row in rows],
        keys=[stored.key(row) for row in rows],
        tags=[stored.tag(row) for row in rows],
        properties=[stored.properties(row) for row in rows],
        born_timestamps_us=None if born is None else born[:count].tolist(),
        expires_timestamps_us=None if expires is None else expires[:count].tolist(),
    )
    return header.payload_crc
