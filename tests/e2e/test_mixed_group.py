"""A group whose members come over HTTP and over AMQP."""

from pathlib import Path
from typing import Any

from holdfast.amqp.engine.incoming_link import Delivery
from holdfast.amqp.messages.sections import Sections
from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.amqp_client import AmqpClient
from tests.support.clients.broker_calls import Calls


def bodies(deliveries: list[Delivery]) -> list[str]:
    return [Sections(each.message).body_value().decode() for each in deliveries]


def receive(calls: Calls, most: int, wait_ms: int = 10_000) -> Any:
    asked = {"member": "http", "max_messages": most, "wait_ms": wait_ms}
    return calls("POST", "/v1/groups/g/receive", asked).json["messages"]


def acknowledge(calls: Calls, held: Any) -> None:
    asked = {"receipts": [each["receipt"] for each in held]}
    results = calls("POST", "/v1/groups/g/ack", asked).json["results"]
    assert [each["status"] for each in results] == ["done"] * len(held)


class TwoMembers:
    """A member over HTTP and a link, each with a limit of 10 messages. They share `count` messages.

    `settled` has the bodies that either of them has settled.
    """

    def __init__(self, calls: Calls, port: int, count: int) -> None:
        self._calls = calls
        self._port = port
        self._count = count
        self._held: Any = []
        self._deliveries: list[Delivery] = []
        self.settled: list[str] = []
        self.connect()

    def connect(self) -> None:
        """Attach the link, with more credit than the limit of a member allows."""
        self._amqp = AmqpClient(self._port)
        self._amqp.receiver("/groups/g", credit=1_000)

    @property
    def room(self) -> int:
        """How many messages a member gets that holds none."""
        held = len(self._held) + len(self._deliveries)
        return min(10, self._count - len(self.settled) - held)

    @property
    def held(self) -> tuple[list[str], list[str]]:
        """What the member over HTTP and the link hold."""
        return [each["body"] for each in self._held], bodies(self._deliveries)

    def take_over_http(self) -> None:
        """Acknowledge all, and receive as many messages as the limit allows, and no more."""
        acknowledge(self._calls, self._held)
        self.settled += self.held[0]
        self._held = []
        room = self.room
        self._held = receive(self._calls, 50, wait_ms=10_000 if room else 0)
        assert len(self._held) == room
        assert receive(self._calls, 50, wait_ms=0) == []

    def take_over_amqp(self) -> None:
        """Accept all, and take as many messages as the limit allows."""
        for each in self._deliveries:
            self._amqp.settle(each)
        self.settled += self.held[1]
        self._deliveries = []
        self._deliveries = self._amqp.take(self.room)

    def settle_some_over_amqp(self, count: int) -> None:
        """Accept the first `count`: exactly as many more arrive."""
        for each in self._deliveries[:count]:
            self._amqp.settle(each)
        self.settled += self.held[1][:count]
        self._deliveries = self._deliveries[count:] + self._amqp.take(count)
        self._amqp.expect_nothing()

    def cut(self) -> list[str]:
        """Cut the connection of the link; return what it held."""
        lost = self.held[1]
        self._deliveries = []
        self._amqp.cut()
        return lost

    def leave(self) -> list[str]:
        """Let the member over HTTP leave; return what it held."""
        lost = self.held[0]
        self._held = []
        self._calls("POST", "/v1/groups/g/leave", {"member": "http"})
        return lost

    def close(self) -> None:
        self._amqp.close()


def test_a_thousand_messages_keep_their_invariants_across_protocols(tmp_path: Path) -> None:
    # T33: one owner each (T1), limits (T18) and returned messages (T24)
    port = free_port()
    with (
        RunningBroker(tmp_path / "data", (*TEST_ARGUMENTS, "--amqp-port", str(port))) as broker,
        broker.client() as client,
    ):
        client.create_topic("t", queues=1)
        client.create_group("g", "t", start="earliest", max_in_flight_per_member=10)
        with client.producer("t") as producer:
            for number in range(1_000):
                producer.send(str(number))
        both = TwoMembers(Calls(broker.url), port, 1_000)
        for number in range(60):
            both.take_over_http()
            both.take_over_amqp()
            if number == 7:
                both.settle_some_over_amqp(3)
            elif number == 20:  # the link is lost, and HTTP gets its messages before any other
                lost = both.cut()
                both.take_over_http()
                assert both.held[0] == lost
                both.connect()
            elif number == 35:  # the other way round
                lost = both.leave()
                both.take_over_amqp()
                assert both.held[1] == lost
        assert both.held == ([], [])
        both.close()
        assert sorted(both.settled, key=int) == [str(number) for number in range(1_000)]
        found = client.describe_group("g")
        assert (found.in_flight, found.available, found.lag_messages) == (0, 0, 0)


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
