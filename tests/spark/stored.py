"""Stored blocks and their messages, for the tests of code that reads them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_batch
from holdfast.commitlog.format.batch_header import HEADER_SIZE

TOPIC_ID = 7
QUEUE = 3
STORED_US = 1_700_000_000_123_456
_text = st.text(min_size=1, max_size=5)


@dataclass
class Sent:
    """The columns of one batch, as a producer passes them."""

    bodies: list[bytes]
    keys: list[str | None] | None = None
    tags: list[str | None] | None = None
    properties: list[dict[str, str] | None] | None = None
    born_timestamp_us: int = 0
    born_timestamps_us: list[int] | None = None
    expires_timestamps_us: list[int] | None = None


@st.composite
def sent(draw: st.DrawFn) -> Sent:
    """Return a batch with any columns."""
    n = draw(st.integers(1, 6))

    def column(values: st.SearchStrategy[object]) -> list[object] | None:
        return draw(st.none() | st.lists(values, min_size=n, max_size=n))

    times = st.integers(0, 2**52)
    return Sent(
        bodies=draw(st.lists(st.binary(max_size=20), min_size=n, max_size=n)),
        keys=column(st.none() | _text),  # type: ignore[arg-type]
        tags=column(st.none() | st.sampled_from(["200", "404", "é"])),  # type: ignore[arg-type]
        properties=column(st.none() | st.dictionaries(_text, st.text(max_size=5), max_size=3)),  # type: ignore[arg-type]
        born_timestamp_us=draw(times),
        born_timestamps_us=column(times),  # type: ignore[arg-type]
        expires_timestamps_us=column(times),  # type: ignore[arg-type]
    )


def store(
    batches: Sequence[Sent], base_offset: int = 0, *, topic_id: int = TOPIC_ID, queue: int = QUEUE
) -> list[Batch]:
    """Return the batches as the broker stores them, consecutive in a queue."""
    stored = []
    for each in batches:
        raw = encode_batch(**vars(each))
        header = Batch.decode(raw).header.stamp(
            physical_offset=0,
            durable_offset=0,
            base_offset=base_offset,
            topic_id=topic_id,
            queue_id=queue,
            store_timestamp_us=STORED_US,
            tag_summary=0,
        )
        stored.append(Batch.decode(bytes(header.encode()) + raw[HEADER_SIZE:]))
        base_offset += len(each.bodies)
    return stored


def join_batches(batches: Sequence[Batch]) -> bytes:
    """Return the blocks as in the reply to a pull."""
    return b"".join(batch.block for batch in batches)
