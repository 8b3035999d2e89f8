import tracemalloc
from typing import Any

import pytest
from msgspec.structs import replace

from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.nodes import modified_annotations
from holdfast.amqp.nodes.modified_annotations import (
    CHECKED_AT_ONCE,
    ENTRY_BYTES,
    MAX_MESSAGE_BYTES,
    ModifiedAnnotations,
)
from holdfast.amqp.wire.types import Symbol, decode, encode
from holdfast.groups.service_types import Receipt

NOTE = {Symbol("note"): "x"}
#: What an entry with NOTE counts.
SIZE = ENTRY_BYTES + len(encode(NOTE))
MANY = AmqpConfig()


def receipt(offset: int, **fields: Any) -> Receipt:
    return replace(Receipt(1, 2, 0, offset, 7, 1, 0, 1, "member"), **fields)


class _Annotations:
    """The annotations under test, and which offsets are settled elsewhere."""

    def __init__(self, **limits: Any) -> None:
        self.kept = ModifiedAnnotations()
        self.settled: set[int] = set()
        self._config = AmqpConfig(**limits)

    def keep(self, *offsets: int, client: str = "a", given: Any = None, **fields: Any) -> None:
        receipts = [receipt(each, **fields) for each in offsets]
        given = NOTE if given is None else given
        self.kept.keep(client, "g", receipts, given, self._config, self._may_return)

    def offsets(self) -> list[int]:
        return [each for each in range(100) if self.kept.find(receipt(each))]

    def found(self, offset: int) -> dict[Any, Any]:
        found: dict[Any, Any] = decode(self.kept.find(receipt(offset)))[0]
        return found

    def _may_return(self, group: str, receipt: Receipt) -> bool:
        assert group == "g"
        return receipt.offset not in self.settled


def test_later_annotations_replace_earlier_ones_key_by_key() -> None:
    all_ = _Annotations()
    all_.keep(0, given={Symbol("a"): 1, Symbol("b"): "x"})
    all_.keep(0, 1, given={Symbol("b"): "y", Symbol("c"): None})
    assert all_.found(0) == {"a": 1, "b": "y", "c": None}
    assert all_.found(1) == {"b": "y", "c": None}
    assert all(type(key) is Symbol for key in all_.found(0))


@pytest.mark.parametrize(
    "fields", [{"group_id": 9}, {"topic_id": 9}, {"queue": 9}, {"epoch": 9}, {"offset": 9}]
)
def test_no_other_message_and_no_delivery_after_a_seek_has_them(fields: dict[str, Any]) -> None:
    all_ = _Annotations()
    all_.keep(0)
    assert all_.kept.find(receipt(0, lease_number=8, attempt=2, member="other"))
    assert not all_.kept.find(replace(receipt(0), **fields))
    all_.keep(0, given={Symbol("new"): 1}, epoch=2)
    assert not all_.kept.find(receipt(0))
    assert decode(all_.kept.find(receipt(0, epoch=2)))[0] == {"new": 1}


@pytest.mark.parametrize(("more", "left"), [(-1, [1, 2]), (0, [0, 1, 2]), (1, [0, 1, 2])])
@pytest.mark.parametrize("of_one_client", [False, True])
def test_over_the_limit_the_oldest_are_dropped_and_counted(
    more: int, left: list[int], of_one_client: bool
) -> None:
    limit = 3 * SIZE + more
    if of_one_client:
        all_ = _Annotations(max_client_modified_bytes=limit)
    else:
        all_ = _Annotations(max_modified_bytes=limit, max_client_modified_bytes=1 << 20)
    for offset in range(3):
        all_.keep(offset, client="a" if of_one_client else f"client {offset}")
    assert all_.offsets() == left
    assert all_.kept.dropped_total == 3 - len(left)
    assert all_.kept.bytes == len(left) * SIZE
    all_.keep(3)
    assert all_.offsets() == [*left[1:], 3]


def test_the_share_of_a_client_leaves_the_annotations_of_others() -> None:
    all_ = _Annotations(max_client_modified_bytes=2 * SIZE)
    all_.keep(0, client="b")
    all_.keep(*range(1, 6), client="a")
    assert all_.offsets() == [0, 4, 5]
    # A change by another client counts for that client.
    all_.keep(4, client="b")
    all_.keep(6, client="a")
    assert all_.offsets() == [0, 4, 5, 6]
    assert (len(all_.kept), all_.kept.dropped_total) == (4, 3)


@pytest.mark.parametrize(("more", "is_kept"), [(-1, False), (0, True), (1, True)])
@pytest.mark.parametrize("name", ["max_modified_bytes", "max_client_modified_bytes"])
def test_annotations_above_a_whole_limit_are_not_kept(name: str, more: int, is_kept: bool) -> None:
    all_ = _Annotations(**{name: SIZE + more})
    all_.keep(0)
    assert (all_.offsets() == [0]) is is_kept
    assert (all_.kept.bytes, all_.kept.dropped_total) == ((SIZE, 0) if is_kept else (0, 1))


def test_a_limit_of_0_keeps_nothing() -> None:
    all_ = _Annotations(max_modified_bytes=0)
    all_.keep(0)
    assert not all_.kept


@pytest.mark.parametrize(("more", "is_kept"), [(-1, True), (0, True), (1, False)])
def test_the_annotations_of_one_message_have_a_limited_size(more: int, is_kept: bool) -> None:
    empty = len(encode({Symbol("note"): "x" * 300})) - 300
    given = {Symbol("note"): "x" * (MAX_MESSAGE_BYTES - empty + more)}
    all_ = _Annotations()
    all_.keep(0, given=given)
    assert (all_.offsets() == [0]) is is_kept


def test_if_merged_annotations_become_too_large_the_earlier_ones_are_dropped() -> None:
    all_ = _Annotations()
    half = "x" * (MAX_MESSAGE_BYTES // 2)
    all_.keep(0, given={Symbol("first"): half})
    all_.keep(0, given={Symbol("second"): half})
    assert all_.found(0) == {"second": half}
    assert all_.kept.dropped_total == 1


def test_annotations_of_settled_messages_are_dropped() -> None:
    all_ = _Annotations()
    all_.keep(*range(10))
    all_.kept.drop([receipt(3), receipt(50)])
    all_.settled = {0, 1, 8}  # over HTTP, without a call of `drop`
    all_.keep(*range(10, 10 + 10 // CHECKED_AT_ONCE + 1))
    assert all_.offsets() == [2, 4, 5, 6, 7, 9, 10, 11, 12]
    all_.kept.drop([receipt(each) for each in all_.offsets()])
    assert (len(all_.kept), all_.kept.bytes, all_.kept.dropped_total) == (0, 0, 0)


def test_repeated_outcomes_of_one_message_need_no_more_memory() -> None:
    all_ = _Annotations()
    all_.keep(*range(10))
    tracemalloc.start()
    try:
        for _ in range(5_000):
            all_.keep(0)
        # Other threads of the test process may allocate too: only what this module has made.
        made = tracemalloc.Filter(True, modified_annotations.__file__)
        traces = tracemalloc.take_snapshot().filter_traces([made]).statistics("filename")
    finally:
        tracemalloc.stop()
    grown = sum(each.size for each in traces)
    assert grown < 20_000  # the list of places to check once had 8 bytes more for each outcome
    assert all_.kept.bytes == 10 * SIZE
