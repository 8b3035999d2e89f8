"""Stored blocks and their messages, for the tests of code that reads them."""

from collections.abc import Sequence

from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from tests.support.storage.batches import Columns, columns, stamped

TOPIC_ID = 7
QUEUE = 3
STORED_US = 1_700_000_000_123_456


#: Batches with any columns and few different tags.
ANY_COLUMNS = columns(6, 20, st.sampled_from(["200", "404", "é"]))


def store(
    batches: Sequence[Columns],
    base_offset: int = 0,
    *,
    topic_id: int = TOPIC_ID,
    queue: int = QUEUE,
) -> list[Batch]:
    """Return the batches as the broker stores them, consecutive in a queue."""
    stored = []
    for each in batches:
        batch = stamped(
            each.encode(),
            physical_offset=0,
            base_offset=base_offset,
            topic_id=topic_id,
            queue_id=queue,
            store_timestamp_us=STORED_US,
        )
        stored.append(batch)
        base_offset += len(each.bodies)
    return stored


def join_batches(batches: Sequence[Batch]) -> bytes:
    """Return the blocks as in the reply to a pull."""
    return b"".join(batch.block for batch in batches)
