import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.amqp.nodes.addresses import Address, Kind, parse_address, valid_name
from holdfast.amqp.wire.conditions import LinkFailed
from holdfast.consumequeue.topics import check_name


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("orders", Address(Kind.QUEUE, "orders")),
        ("queue://orders", Address(Kind.QUEUE, "orders")),
        ("topic://orders", Address(Kind.TOPIC, "orders")),
        ("/queues/orders", Address(Kind.QUEUE, "orders")),
        ("/topics/orders", Address(Kind.TOPIC, "orders")),
        ("/topics/orders/queues/0", Address(Kind.TOPIC, "orders", queue=0)),
        ("/topics/orders/queues/17", Address(Kind.TOPIC, "orders", queue=17)),
        ("/groups/billing", Address(Kind.GROUP, "billing")),
        ("/groups/billing/topics/orders", Address(Kind.GROUP, "billing", topic="orders")),
        ("/exchanges/orders", Address(Kind.EXCHANGE, "orders")),
        ("/exchanges/orders/red", Address(Kind.EXCHANGE, "orders", tag="red")),
        ("/exchanges/orders/a%2Fb", Address(Kind.EXCHANGE, "orders", tag="a/b")),
        ("/topics/or%64ers", Address(Kind.TOPIC, "orders")),
        ("/temp/x7", Address(Kind.TEMP, "x7")),
        ("/management", Address(Kind.MANAGER)),
        ("orders/new", Address(Kind.QUEUE, "amqp-orders-new-vgcxcktqac4t2ec7")),
    ],
)
def test_an_address_names_a_node(text: str, address: Address) -> None:
    assert parse_address(text) == address


@pytest.mark.parametrize(
    "text",
    [
        "", "/", "//", "queue://", "topic://", "/topics", "/topics/", "/topics/a/queues/x",
        "/topics/a/queues/-1", "/topics/a/queues/1234567890", "/topics/a/b", "/groups//topics/t",
        "/groups/g/topics/", "/exchanges/x/", "/queues/a/b", "/temp/", "/else/x", "/management/x",
    ],
)  # fmt: skip
def test_a_path_that_names_nothing_is_refused(text: str) -> None:
    with pytest.raises(LinkFailed, match="is not an address: use NAME") as caught:
        parse_address(text)
    assert caught.value.condition == "amqp:invalid-field"


@pytest.mark.parametrize("text", ["$cbs", "$management", "orders/$management"])
def test_the_nodes_of_azure_are_refused(text: str) -> None:
    # As topics they would keep the clients' tokens, and the clients would wait for replies.
    with pytest.raises(LinkFailed, match="SASL PLAIN") as caught:
        parse_address(text)
    assert caught.value.condition == "amqp:not-implemented"


@given(st.text(min_size=1, max_size=300))
def test_every_name_has_a_valid_one(name: str) -> None:
    found = valid_name(name)
    assert check_name("topic", found) == found
    assert valid_name(found) == found
    assert valid_name(name) == found


@pytest.mark.parametrize("name", ["a b", "a  b", "A B", "__own", ".", "..", "x" * 300, "ü"])
def test_names_that_look_alike_stay_different(name: str) -> None:
    assert valid_name(name).startswith("amqp-")
    assert valid_name(name) != valid_name(name + " ")
