"""Records of groups: golden bytes, round trips, and invalid records."""

from dataclasses import replace
from typing import Any

import msgpack
import pytest

from holdfast.consumequeue.state.records import (
    MalformedRecord,
    decode_number,
    encode_number,
    group_key,
)
from holdfast.groups.config import GroupConfig
from holdfast.groups.settings import Subscription
from holdfast.groups.storage.group_records import GroupRecord, decode_group, encode_group
from holdfast.groups.storage.group_table import GroupTable

GROUP = GroupRecord(
    "workers",
    7,
    GroupConfig("keyed", "dwrr", "bytes", 9_000, 60_000, 50, 20, 4, 3, (1, 2), True, True, 12_000),
    {3: Subscription(4, "red,blue"), 9: Subscription()},
    "latest",
    "orders.dead",
    1_700_000_000_000,
    {"orders": Subscription(4, "red,blue"), "logs.*": Subscription()},
    "token:0123456789ab",
)


def test_a_record_is_pinned() -> None:
    assert msgpack.unpackb(encode_group(GROUP), strict_map_key=False) == {
        "group_id": 7,
        "mode": "keyed",
        "engine": "dwrr",
        "cost": "bytes",
        "lease_ms": 9_000,
        "longest_lease_ms": 60_000,
        "max_in_flight": 50,
        "max_in_flight_per_member": 20,
        "max_in_flight_per_key": 4,
        "max_attempts": 3,
        "backoff_ms": [1, 2],
        "strict_leases": True,
        "member_ttl_ms": 12_000,
        "topics": {3: {"weight": 4, "filter": "red,blue"}, 9: {"weight": 1, "filter": None}},
        "start": "latest",
        "dead_letter_topic": "orders.dead",
        "created_ms": 1_700_000_000_000,
        "subscriptions": {
            "orders": {"weight": 4, "filter": "red,blue"},
            "logs.*": {"weight": 1, "filter": None},
        },
        "owner": "token:0123456789ab",
    }


@pytest.mark.parametrize("group", [GROUP, GroupRecord("plain", 1)])
def test_a_record_is_read_as_it_was_written(group: GroupRecord) -> None:
    assert decode_group(group.name, encode_group(group)) == group


@pytest.mark.parametrize(
    ("name", "value"), [("auto_delete_after_ms", 60_000), ("last_value", True)]
)
def test_a_setting_of_a_later_release_is_one_more_field(name: str, value: Any) -> None:
    group = GroupRecord("brief", 8, replace(GroupConfig(), **{name: value}))
    fields = msgpack.unpackb(encode_group(group), strict_map_key=False)
    assert fields.pop(name) == value
    assert decode_group("brief", encode_group(group)) == group
    plain = msgpack.unpackb(encode_group(GroupRecord("brief", 8)), strict_map_key=False)
    assert fields == plain


def test_unknown_fields_are_ignored_and_missing_ones_have_their_defaults() -> None:
    fields = msgpack.unpackb(encode_group(GROUP), strict_map_key=False)
    fields["of_a_later_version"] = 1
    for name in ("max_attempts", "engine"):
        del fields[name]
    found = decode_group("workers", msgpack.packb(fields))
    assert found.config.max_attempts == 16
    assert found.config.engine == "sfq"
    assert found.config.mode == "keyed"


def test_an_invalid_record_is_malformed() -> None:
    good = encode_group(GROUP)
    for value in [b"", b"\xc0", b"\x01", *(good[:size] for size in range(len(good)))]:
        with pytest.raises(MalformedRecord):
            decode_group("workers", value)


def test_the_table_has_every_group_and_gives_no_id_twice() -> None:
    table = GroupTable({})
    assert (len(table), table.next_group_id, table.receipt_key) == (0, 1, None)
    changes = table.changes_of(GROUP)
    assert set(changes) == {b"group/workers", b"next_group_id", b"receipt_key"}
    assert decode_number(changes[b"next_group_id"]) == 8
    assert table.find("workers") is None, "not before it is stored"
    table.mark_stored(GROUP, changes)
    assert table.find("workers") is table.by_id(7) is GROUP
    assert table.next_group_id == 8
    key = table.receipt_key
    assert key is not None
    assert len(key) == 32
    assert set(table.changes_of(GROUP)) == {b"group/workers"}, "the key is made once"

    other = GroupRecord("another", 8)
    again = GroupTable({**changes, **table.changes_of(other), b"topic/t": b"not looked at"})
    assert again.receipt_key == key
    assert [group.name for group in again.all()] == ["another", "workers"]
    again.remove(other)
    assert again.find("another") is again.by_id(8) is None
    assert again.next_group_id == 9
    assert GroupTable({b"next_group_id": encode_number(4)}).next_group_id == 4
    assert group_key("workers") == b"group/workers"
