import numpy as np

from holdfast.consumequeue.index.consume_queue import CqUnit
from holdfast.consumequeue.index.entry_columns import UNIT_DTYPE, encode_units, unit_at
from holdfast.consumequeue.index.index import _encode_unit

KEY = (2**32 - 1, 7)
UNIT = CqUnit(
    base_offset=2**40 + 3,
    physical_offset=2**50 + 1,
    size=2**31,
    message_count=9,
    store_timestamp_us=1_700_000_000_000_000,
    tag_summary=2**63 + 5,
    queue_bytes=2**41,
)


def _row(key: tuple[int, int], unit: CqUnit) -> tuple[int, ...]:
    return (
        *key,
        unit.base_offset,
        unit.physical_offset,
        unit.queue_bytes,
        unit.store_timestamp_us,
        unit.tag_summary,
        unit.size,
        unit.message_count,
    )


def test_a_table_is_encoded_as_each_entry_is() -> None:
    others = [UNIT._replace(base_offset=offset) for offset in (0, 1, 255, 256)]
    entries = [(KEY, UNIT), *(((1, 0), unit) for unit in others)]
    table = np.array([_row(*entry) for entry in entries], UNIT_DTYPE)
    assert encode_units(table) == [_encode_unit(*entry) for entry in entries]
    assert encode_units(table[:0]) == []
    assert [unit_at(row) for row in table] == [unit for _, unit in entries]
