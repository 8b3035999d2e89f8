from typing import Any

import pytest

from holdfast.amqp.nodes.addresses import parse_address
from holdfast.amqp.nodes.filters import End, Start, read_filters
from holdfast.amqp.nodes.terminus import OUTCOMES, FromGroup, FromTopic, read_source
from holdfast.amqp.wire.conditions import INVALID_FIELD, NOT_IMPLEMENTED, LinkFailed
from holdfast.amqp.wire.performatives import Error, Modified, Released, Source
from holdfast.amqp.wire.types import Described, Symbol, Timestamp, ULong

SELECTOR = "apache.org:selector-filter:string"


def read(address: str, **fields: Any) -> FromGroup | FromTopic:
    return read_source(Source(address, **fields), parse_address(address))


@pytest.mark.parametrize(
    ("address", "fields", "expected"),
    [
        ("orders", {}, ("orders", None, True, False, None)),
        ("/queues/orders", {"distribution_mode": "move"}, ("orders", None, True, False, None)),
        ("orders", {"distribution_mode": "copy"}, ("orders", None, True, True, None)),
        ("/groups/g", {}, ("g", None, False, False, None)),
        ("/groups/g", {"distribution_mode": "copy"}, ("g", None, False, True, None)),
        ("/groups/g/topics/t", {}, ("g", ("t",), False, False, None)),
        ("/exchanges/x/it's", {}, ("x", None, True, False, "TAGS = 'it''s'")),
        (
            "orders",
            {"filter": {"f": Described(ULong(0x468C00000004), "a > 1")}},
            ("orders", None, True, False, "a > 1"),
        ),
        (
            "/exchanges/x/k",
            {"filter": {"f": Described(Symbol("holdfast:tags"), "a, b")}},
            ("x", None, True, False, "((TAGS = 'a') OR (TAGS = 'b')) AND (TAGS = 'k')"),
        ),
    ],
)
def test_a_name_or_group_asks_for_messages_of_a_group(
    address: str, fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    # A1, Q12
    wanted = read(address, **fields)
    assert isinstance(wanted, FromGroup)
    found = (
        wanted.group, wanted.topics, wanted.is_made_by_need, wanted.is_browsed, wanted.condition
    )  # fmt: skip
    assert found == expected
    assert wanted.answer.distribution_mode == ("copy" if wanted.is_browsed else "move")
    assert wanted.answer.capabilities == ("queue",)


@pytest.mark.parametrize(
    ("address", "fields", "expected"),
    [
        ("/topics/t", {}, ("t", None, False, Start())),
        ("/topics/t", {"distribution_mode": "move"}, ("t", None, False, Start())),
        ("/topics/t/queues/3", {}, ("t", 3, False, Start())),
        ("topic://t", {}, ("t", None, True, Start())),
        ("t", {"capabilities": ("topic",)}, ("t", None, True, Start())),
        (
            "/topics/t",
            {"filter": {"rabbitmq:stream-offset-spec": "first"}},
            ("t", None, False, Start(End.FIRST)),
        ),
    ],
)
def test_a_topic_asks_for_copies(
    address: str, fields: dict[str, Any], expected: tuple[Any, ...]
) -> None:
    # A1
    wanted = read(address, **fields)
    assert isinstance(wanted, FromTopic)
    assert (wanted.topic, wanted.queue, wanted.is_made_by_need, wanted.start) == expected
    assert wanted.answer.distribution_mode == "copy"
    assert wanted.answer.capabilities == ("topic",)


def test_the_answer_has_the_values_in_force() -> None:
    unknown = Described(Symbol("other:filter"), "x")
    selector = Described(Symbol(SELECTOR), "a = 1")
    outcome = Modified(delivery_failed=True)
    answer = read(
        "orders",
        durable=1,
        expiry_policy="session-end",
        filter={"one": selector, "two": unknown},
        default_outcome=outcome,
    ).answer
    assert answer == Source(
        "orders",
        expiry_policy="link-detach",
        distribution_mode="move",
        filter={"one": selector},
        default_outcome=outcome,
        outcomes=OUTCOMES,
        capabilities=("queue",),
    )
    assert read("orders").default_outcome == Released()
    assert read("orders", filter={"two": unknown}).answer.filter is None


@pytest.mark.parametrize(
    ("address", "fields", "condition"),
    [
        ("/temp/x", {}, NOT_IMPLEMENTED),
        ("/management", {}, NOT_IMPLEMENTED),
        ("orders", {"default_outcome": Error("x:y")}, INVALID_FIELD),
    ],
)
def test_what_is_not_supported_is_refused(
    address: str, fields: dict[str, Any], condition: str
) -> None:
    with pytest.raises(LinkFailed) as refused:
        read(address, **fields)
    assert refused.value.condition == condition


@pytest.mark.parametrize(
    ("given", "start"),
    [
        ("first", Start(End.FIRST)),
        ("last", Start(End.LAST)),
        ("next", Start(End.NEXT)),
        (ULong(0), Start(offset=0)),
        (17, Start(offset=17)),
        (Timestamp(1_700_000_000_000), Start(timestamp_ms=1_700_000_000_000)),
        ("later", None),
        (-1, None),
        (Timestamp(-1), None),
        (True, None),
        (None, None),
        (1.5, None),
    ],
)
def test_a_stream_begins_where_its_filter_says(given: Any, start: Start | None) -> None:
    filters = {"start": Described(Symbol("rabbitmq:stream-offset-spec"), given)}
    if start is None:
        with pytest.raises(LinkFailed):
            read_filters(filters, is_copied=True)
    else:
        assert read_filters(filters, is_copied=True).start == start
    # A group has its own place: the filter is not in force.
    assert read_filters(filters, is_copied=False).in_force == {}


@pytest.mark.parametrize(
    "given",
    [
        {"f": Described(ULong(0x120), 5)},
        {"f": Described(ULong(0x120), " ")},
        {"f": Described(Symbol("amqp:sql-filter"), "a = 1"), SELECTOR: "b = 2"},
    ],
)
def test_a_known_filter_that_is_not_valid_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(LinkFailed) as refused:
        read_filters(given, is_copied=True)
    assert refused.value.condition == INVALID_FIELD


@pytest.mark.parametrize(
    "filters",
    [
        {"no-local": Described(ULong(0x468C00000003), [])},
        {"f": Described(Symbol("apache.org:no-local-filter:list"), "NoLocalFilter{}")},
    ],
)
def test_a_client_may_leave_out_its_own_messages(filters: dict[str, Any]) -> None:
    # T28
    assert read("orders", filter=filters).is_no_local
    assert read("/topics/t", filter=filters).is_no_local
    assert read("orders", filter=filters).answer.filter == filters
    assert not read("orders").is_no_local
