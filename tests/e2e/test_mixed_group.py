"""A group whose members come over HTTP and over AMQP."""

from pathlib import Path
from typing import Any

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.messages.sections import Sections
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.amqp_client import AmqpClient
from tests.support.broker_calls import Calls
from tests.support.free_port import free_port


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [Sections(each.message).body_value().decode() for each in deliveries]


def receive(calls: Calls, most: int) -> Any:
    asked = {"member": "http", "max_messages": most, "wait_ms": 10_000}
    return calls("POST", "/v1/groups/g/receive", asked).json["messages"]


def test_limits_and_returned_messages_hold_across_protocols(tmp_path: Path) -> None:
    port = free_port()
    with (
        RunningBroker(tmp_path / "data", (*TEST_ARGUMENTS, "--amqp-port", str(port))) as broker,
        broker.client() as client,
    ):
        client.create_topic("t", queues=1)
        client.create_group("g", "t", start="earliest", max_in_flight_per_member=10)
        calls = Calls(broker.url)

        # T33: a link gets ten messages, however large its credit, and one more per outcome.
        for number in range(100):
            client.publish("t", f"{number}", durability="written")
        with AmqpClient(port) as amqp:
            amqp.receiver("/groups/g", credit=50)
            first = amqp.take(10)
            assert bodies(first) == [str(number) for number in range(10)]
            amqp.expect_nothing()
            for each in first[:3]:
                amqp.settle(each)
            more = amqp.take(3)
            assert bodies(more) == ["10", "11", "12"]
            amqp.expect_nothing()

            # The member over HTTP has a limit of its own.
            held = receive(calls, 50)
            assert [each["body"] for each in held] == [str(number) for number in range(13, 23)]

            # What the link did not settle returns to its place, at once, for the others.
            receipts = [each["receipt"] for each in held]
            acknowledged = calls("POST", "/v1/groups/g/ack", {"receipts": receipts}).json["results"]
            assert [each["status"] for each in acknowledged] == ["done"] * 10
            amqp.cut()
        again = receive(calls, 10)
        assert [each["body"] for each in again] == [str(number) for number in range(3, 13)]

        # The other way: a member over HTTP leaves, and a link gets its messages in order.
        with AmqpClient(port) as amqp:
            calls("POST", "/v1/groups/g/leave", {"member": "http"})
            amqp.receiver("/groups/g", credit=10)
            assert bodies(amqp.take(10)) == [str(number) for number in range(3, 13)]
