"""Topics and stored offsets in memory, as read from the records."""

import pytest

from holdfast.consumequeue.errors import InvalidName, UnknownGroup, UnknownTopic
from holdfast.consumequeue.state.records import (
    INCOMPLETE,
    NEXT_TOPIC_ID,
    StoredOffsets,
    encode_kept,
    encode_number,
    encode_offsets,
    encode_topic,
    kept_key,
    offsets_key,
    topic_key,
)
from holdfast.consumequeue.state.topic_table import TopicTable
from holdfast.consumequeue.topics import Topic, TopicConfig

CONFIG = TopicConfig("fsync", None, None, 1024)
ORDERS = Topic("orders", 3, 4, CONFIG, 0)
BILLS = Topic("bills", 5, 1, CONFIG, 0)


def test_an_empty_table_starts_topic_ids_at_1() -> None:
    table = TopicTable({})
    assert (len(table), table.all(), table.groups(), table.next_topic_id) == (0, [], [], 1)


def test_the_table_is_read_from_its_records() -> None:
    table = TopicTable(
        {
            topic_key("orders"): encode_topic(ORDERS),
            topic_key("bills"): encode_topic(BILLS),
            NEXT_TOPIC_ID: encode_number(9),
            INCOMPLETE: b"",
            kept_key(3): encode_kept({1: 70}),
            offsets_key("g", 3): encode_offsets(StoredOffsets({0: 5}, 2)),
        }
    )
    assert table.all() == [BILLS, ORDERS]
    assert table.get("orders") == table.find("orders") == table.by_id(3) == ORDERS
    assert table.next_topic_id == 9
    assert table.kept == {3: {1: 70}}
    assert table.offsets("g", 3) == StoredOffsets({0: 5}, 2)


def test_an_id_is_never_reused() -> None:
    assert TopicTable({topic_key("bills"): encode_topic(BILLS)}).next_topic_id == 6


def test_unknown_and_invalid_names_are_refused() -> None:
    table = TopicTable({})
    with pytest.raises(UnknownTopic):
        table.get("orders")
    with pytest.raises(InvalidName):
        table.get("a/b")
    with pytest.raises(UnknownGroup):
        table.group_offsets("billing")
    with pytest.raises(InvalidName):
        table.group_offsets("..")
    assert table.find("orders") is None
    assert table.by_id(3) is None
    assert table.offsets("billing", 3) == StoredOffsets()


def test_a_changed_topic_is_found_by_name_and_id() -> None:
    table = TopicTable({})
    table.put(ORDERS)
    changed = Topic("orders", 3, 8, CONFIG, 0)
    table.put(changed)
    assert table.get("orders") == table.by_id(3) == changed
    assert len(table) == 1


def test_removing_a_topic_removes_its_offsets() -> None:
    table = TopicTable({})
    for topic in (ORDERS, BILLS):
        table.put(topic)
    table.kept[3] = {0: 1}
    table.put_offsets("both", 3, StoredOffsets({0: 1}, 1))
    table.put_offsets("both", 5, StoredOffsets({0: 2}, 1))
    table.put_offsets("one", 3, StoredOffsets({0: 3}, 1))
    table.remove(ORDERS)
    assert table.all() == [BILLS]
    assert table.kept == {}
    assert table.groups() == ["both"]
    assert table.group_offsets("both") == {5: StoredOffsets({0: 2}, 1)}
    assert (table.has_group("both"), table.has_group("one"), table.group_count) == (True, False, 1)
