"""A broker that is killed while a link publishes keeps what it accepted, in order and unchanged."""

import threading
import time
from itertools import count
from pathlib import Path

import pytest

from holdfast.amqp.messages.sections import Sections
from holdfast.amqp.wire.performatives import Accepted, Properties, encode_composite
from holdfast.client import Client
from holdfast.free_port import free_port
from holdfast.testing import TEST_ARGUMENTS, RunningBroker
from tests.support.clients.amqp_client import AmqpClient, data_message, section, value_message
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.crash, pytest.mark.timeout(300)]

TOPIC = "crash"
ENOUGH = 500
DEADLINE_S = 60.0


def message(number: int) -> bytes:
    """Return a message; every second one has an envelope with sections."""
    text = str(number)
    if number % 2:
        return data_message(text.encode())
    properties = encode_composite(Properties(text, reply_to="elsewhere"))
    return properties + section(0x74, {"number": number}) + value_message(text)


class Sender(threading.Thread):
    """Publishes numbers as fast as its credit allows, until the connection breaks."""

    def __init__(self, port: int) -> None:
        super().__init__(name="sender", daemon=True)
        self._client = AmqpClient(port)
        self._link = self._client.sender(TOPIC)

    @property
    def accepted(self) -> list[int]:
        """The numbers that were accepted. They are the delivery-ids."""
        states = dict(self._client.states)
        return [number for number, state in states.items() if type(state) is Accepted]

    def run(self) -> None:
        try:
            for number in count():
                assert self._client.send(self._link, message(number)) == number
        except (AssertionError, OSError):  # the broker was killed
            self._client.cut()


def test_a_kill_loses_nothing_that_was_accepted(tmp_path: Path) -> None:
    port = free_port()
    arguments = (*TEST_ARGUMENTS, "--amqp-port", str(port), "--topics-default-durability", "fsync")
    broker = RunningBroker(tmp_path / "data", arguments)
    broker.start()
    try:
        sender = Sender(port)
        sender.start()
        deadline = time.monotonic() + DEADLINE_S
        while len(sender.accepted) < ENOUGH:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        broker.kill()
        sender.join(DEADLINE_S)
        assert_sound(broker.data_dir)
        broker.start()
        with Client(broker.url) as client:
            stored = [int(each.body) for each in client.pull(TOPIC, start="earliest", follow=False)]
        assert stored == list(range(len(stored)))
        assert set(sender.accepted) <= set(stored)
        with AmqpClient(port) as receiver:
            receiver.receiver(TOPIC, credit=len(stored))
            for number, delivery in zip(stored, receiver.take(len(stored)), strict=True):
                assert Sections(delivery.message).bare().endswith(message(number))
    finally:
        broker.stop()
