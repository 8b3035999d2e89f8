"""What every client does with a queue: send, receive, and each outcome."""

from collections.abc import Callable
from typing import Any

import pytest

from tests.interop.amqp.builds import CLIENTS
from tests.interop.amqp.clients import Client

Message = dict[str, Any]


def text(body: str, **properties: Any) -> Message:
    """Return a message with a string as its body."""
    pairs = [[["string", name], value] for name, value in properties.items()]
    return {"body": ["value", ["string", body]], "application_properties": pairs}


def bodies(messages: list[Message]) -> list[Any]:
    """Return the bodies of text messages."""
    assert all(each["body"][0] == "value" for each in messages)
    return [each["body"][1][1] for each in messages]


def counts(messages: list[Message]) -> list[int]:
    """Return how often each message was given back as failed."""
    return [each.get("header", {}).get("delivery_count", 0) for each in messages]


@pytest.fixture(params=sorted(CLIENTS))
def each_client(request: pytest.FixtureRequest, client: Callable[[str], Client]) -> Client:
    return client(request.param)


def only(*names: str) -> pytest.MarkDecorator:
    """Run a test with these clients, since the others lack what it needs."""
    return pytest.mark.parametrize("each_client", names, indirect=True)


def left(client: Client, address: str) -> list[Any]:
    """Return the messages that a drain finds."""
    return bodies(client.receive(address, 0, credit=10, drain=True))


def test_accepted_messages_are_gone(each_client: Client, address: str) -> None:
    sent = [text(f"message {number}") for number in range(20)]
    assert each_client.send(address, sent) == ["accepted"] * 20
    received = each_client.receive(address, 20)
    assert bodies(received) == bodies(sent)
    assert counts(received) == [0] * 20
    assert left(each_client, address) == []


def test_a_drain_gives_what_is_there_and_ends(each_client: Client, address: str) -> None:
    each_client.send(address, [text("one"), text("two"), text("three")])
    assert left(each_client, address) == ["one", "two", "three"]
    assert left(each_client, address) == []


def test_a_rejected_message_is_not_delivered_again(each_client: Client, address: str) -> None:
    each_client.send(address, [text("bad"), text("good")])
    assert bodies(each_client.receive(address, 1, outcome="reject")) == ["bad"]
    assert left(each_client, address) == ["good"]


def test_a_released_message_returns_to_its_place_uncounted(
    each_client: Client, address: str
) -> None:
    each_client.send(address, [text("one"), text("two")])
    assert bodies(each_client.receive(address, 1, outcome="release")) == ["one"]
    again = each_client.receive(address, 2)
    assert bodies(again) == ["one", "two"]
    assert counts(again) == [0, 0]


def test_a_failed_delivery_is_counted(each_client: Client, address: str) -> None:
    each_client.send(address, [text("one"), text("two")])
    for attempt in range(2):
        received = each_client.receive(address, 1, outcome="modify", failed=True)
        assert (bodies(received), counts(received)) == (["one"], [attempt])
    again = each_client.receive(address, 2)
    assert (bodies(again), counts(again)) == (["one", "two"], [2, 0])


@only("go-amqp", "rhea")
def test_the_annotations_of_a_failed_delivery_are_merged(each_client: Client, address: str) -> None:
    def modify(name: str, value: str) -> list[Any]:
        """Give the message back with an annotation; return the annotations that it had."""
        pairs = [[["symbol", name], ["string", value]]]
        (message,) = each_client.receive(
            address, 1, outcome="modify", failed=True, annotations=pairs
        )
        return added(message)

    def added(message: Message) -> list[Any]:
        pairs = message["annotations"]
        return sorted(
            [key[1], value[1]] for key, value in pairs if key[1] in ("x-opt-by", "x-opt-why")
        )

    each_client.send(address, [text("one")])
    assert modify("x-opt-why", "broken") == []
    assert modify("x-opt-by", "me") == [["x-opt-why", "broken"]]
    assert modify("x-opt-why", "late") == [["x-opt-by", "me"], ["x-opt-why", "broken"]]
    (message,) = each_client.receive(address, 1)
    assert added(message) == [["x-opt-by", "me"], ["x-opt-why", "late"]]


def test_a_message_undeliverable_here_is_not_delivered_here_again(
    each_client: Client, address: str
) -> None:
    each_client.send(address, [text("one"), text("two")])
    each_client.receive(address, 1, outcome="modify", failed=True, undeliverable=True)
    assert left(each_client, address) == ["two"]


def test_unsettled_messages_return_when_the_link_ends(each_client: Client, address: str) -> None:
    each_client.send(address, [text("one"), text("two")])
    assert bodies(each_client.receive(address, 2, outcome="none")) == ["one", "two"]
    assert left(each_client, address) == ["one", "two"]


def test_settled_messages_are_delivered_once(each_client: Client, address: str) -> None:
    sent = [text(f"message {number}") for number in range(5)]
    assert each_client.send(address, sent, settled=True) == ["settled"] * 5
    settled = each_client.name != "fe2o3"  # it cannot ask for settled messages
    assert bodies(each_client.receive(address, 5, settled=settled)) == bodies(sent)
    assert left(each_client, address) == []


@pytest.mark.parametrize("size", [2_000, 1_000_000])
def test_a_message_of_many_frames_arrives_whole(
    each_client: Client, address: str, size: int
) -> None:
    content = bytes(number * 7 % 251 for number in range(size)).hex()
    message = {"body": ["data", content]}
    assert each_client.send(address, [message, text("next")], frame_bytes=1024) == ["accepted"] * 2
    large, after = each_client.receive(address, 2, frame_bytes=1024)
    assert large["body"] == ["data", content]
    assert bodies([after]) == ["next"]


def test_a_selector_picks_messages(each_client: Client, address: str) -> None:
    # A queue is made when a link is attached; its consumers' selectors see what comes later.
    assert left(each_client, address) == []
    each_client.send(
        address,
        [
            text(f"{colour} {size}", colour=["string", colour], size=["int", str(size)])
            for size in (1, 2, 3)
            for colour in ("red", "blue")
        ],
    )
    selected = each_client.receive(address, 2, selector="colour = 'red' AND size > 1")
    assert bodies(selected) == ["red 2", "red 3"]
    assert left(each_client, address) == ["red 1", "blue 1", "blue 2", "blue 3"]


@only("go-amqp", "proton", "rhea")  # the others cannot ask for it
def test_a_confirmed_outcome_is_settled_by_the_broker(each_client: Client, address: str) -> None:
    """11.6: with rcv-settle-mode second, the broker settles once the outcome is stored."""
    each_client.send(address, [text("one"), text("two")])
    assert bodies(each_client.receive(address, 2, second=True)) == ["one", "two"]
    assert left(each_client, address) == []


@pytest.mark.parametrize("name", ["protonj2", "qpid-jms", "rhea"])
def test_clients_work_over_web_sockets(
    web_socket_client: Callable[[str], Client], address: str, name: str
) -> None:
    client = web_socket_client(name)
    content = bytes(number % 251 for number in range(300_000)).hex()
    sent = [text("small"), {"body": ["data", content]}, text("last")]
    assert client.send(address, sent) == ["accepted"] * 3
    received = client.receive(address, 3)
    assert [each["body"] for each in received] == [each["body"] for each in sent]
    assert left(client, address) == []
