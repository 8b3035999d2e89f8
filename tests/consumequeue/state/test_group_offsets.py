import pytest

from holdfast.consumequeue.index.consume_queue import ConsumeQueue
from holdfast.consumequeue.state.group_offsets import offsets_beyond_end
from holdfast.consumequeue.state.records import StoredOffsets
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, TopicConfig


def _table(durability: str, offset: int) -> TopicTable:
    table = TopicTable({})
    table.put(Topic("t", 5, 2, TopicConfig(durability, None, None, 1000), 0))
    table.put_offsets("g", 5, StoredOffsets({0: offset, 1: 0}, 7))
    return table


@pytest.mark.parametrize(("offset", "kept"), [(9, 9), (10, 10), (11, 10), (10**15, 10)])
def test_an_offset_beyond_the_end_is_set_back_to_it(offset: int, kept: int) -> None:
    queues = {(5, 0): ConsumeQueue(None, 10, 0)}
    found = offsets_beyond_end(_table("written", offset), queues)
    if kept == offset:
        assert found == {}
    else:
        assert found == {("g", 5): StoredOffsets({0: kept, 1: 0}, 8)}


def test_an_unknown_queue_ends_at_0() -> None:
    assert offsets_beyond_end(_table("written", 3), {}) == {
        ("g", 5): StoredOffsets({0: 0, 1: 0}, 8)
    }


def test_offsets_on_durable_topics_are_set_back_too() -> None:
    # R10: an offset that never existed made the group skip messages
    assert offsets_beyond_end(_table("fsync", 10**15), {(5, 0): ConsumeQueue(None, 3, 0)}) == {
        ("g", 5): StoredOffsets({0: 3, 1: 0}, 8)
    }
