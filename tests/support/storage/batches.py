"""Batches for tests: random batches of a producer, and batches as the broker stores them."""

from collections.abc import Sequence
from dataclasses import dataclass

from hypothesis import strategies as st

from holdfast.commitlog.format.batch import Batch
from holdfast.commitlog.format.batch_encoding import encode_columns
from holdfast.commitlog.format.batch_header import HEADER_SIZE

_NAMES = st.text(min_size=1, max_size=6)
_TIMES = st.integers(0, 2**53)


@dataclass(frozen=True)
class Columns:
    """The columns of one batch. A producer has no envelopes: the broker adds them."""

    bodies: Sequence[bytes]
    keys: Sequence[str | None] | None = None
    tags: Sequence[str | None] | None = None
    properties: Sequence[dict[str, str] | None] | None = None
    born_timestamp_us: int = 0
    born_timestamps_us: Sequence[int] | None = None
    expires_timestamps_us: Sequence[int] | None = None
    envelopes: Sequence[bytes] | None = None

    def encode(self) -> bytes:
        """Return the encoded batch."""
        header, payload = encode_columns(
            self.bodies,
            keys=self.keys,
            tags=self.tags,
            properties=self.properties,
            born_timestamp_us=self.born_timestamp_us,
            born_timestamps_us=self.born_timestamps_us,
            expires_timestamps_us=self.expires_timestamps_us,
            envelopes=self.envelopes,
        )
        return bytes(header.encode()) + payload


@st.composite
def columns(
    draw: st.DrawFn,
    max_messages: int = 8,
    max_body_bytes: int = 40,
    tags: st.SearchStrategy[str] = _NAMES,
) -> Columns:
    """Draw the columns of a batch. Each optional column may be missing."""
    n = draw(st.integers(1, max_messages))

    def each(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[object]]:
        return st.lists(values, min_size=n, max_size=n)

    def column(values: st.SearchStrategy[object]) -> st.SearchStrategy[list[object] | None]:
        return st.none() | each(values)

    return draw(
        st.builds(
            Columns,
            bodies=each(st.binary(max_size=max_body_bytes)),
            keys=column(st.none() | _NAMES),
            tags=column(st.none() | tags),
            properties=column(st.none() | st.dictionaries(_NAMES, st.text(max_size=6), max_size=3)),
            born_timestamp_us=_TIMES,
            born_timestamps_us=column(_TIMES),
            expires_timestamps_us=column(_TIMES),
            envelopes=column(st.binary(max_size=9)),
        )
    )


def stamped(
    raw: bytes,
    *,
    physical_offset: int,
    durable_offset: int = 0,
    base_offset: int = 0,
    topic_id: int = 1,
    queue_id: int = 0,
    store_timestamp_us: int = 1,
) -> Batch:
    """Return an encoded batch as the broker stores it at this place."""
    header = Batch.decode(raw).header
    placed = header.stamp(
        physical_offset=physical_offset,
        durable_offset=durable_offset,
        base_offset=base_offset,
        topic_id=topic_id,
        queue_id=queue_id,
        store_timestamp_us=store_timestamp_us,
        tag_summary=header.tag_summary,
    )
    return Batch.decode(bytes(placed.encode()) + raw[HEADER_SIZE:])
