"""Is what was stored under a sequence what this attempt sends there?"""

from holdfast.commitlog.batch import Batch
from holdfast.commitlog.batch_encoding import encode_columns
from holdfast.spark.outgoing import Outgoing


def is_beginning(batch: Outgoing, stored: Batch) -> bool:
    """Say whether the shorter of the two is what the longer begins with, byte for byte."""
    if len(stored) == len(batch):
        return batch.header.payload_crc == stored.header.payload_crc
    if len(stored) < len(batch):
        return batch.part(0, len(stored)).header.payload_crc == stored.header.payload_crc
    return batch.header.payload_crc == _crc_of_beginning(stored, len(batch))


def _crc_of_beginning(stored: Batch, count: int) -> int:
    """Return the payload CRC that the first messages alone would have had."""
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
