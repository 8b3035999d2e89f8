"""A file system that turns read-only under a broker stops only publishing, with the reason."""

from collections.abc import Iterator

import pytest

from holdfast.client.errors import ApiError
from holdfast.running_broker import BrokerDidNotStart, RunningBroker
from tests.support.clients.broker_calls import fetch
from tests.support.damage.loop_volume import LoopVolume, loop_volume
from tests.support.storage.sound import assert_sound

pytestmark = [pytest.mark.fault, pytest.mark.crash, pytest.mark.timeout(120)]


@pytest.fixture
def ext4() -> Iterator[LoopVolume]:
    with loop_volume("ext4", "errors=remount-ro") as volume:
        yield volume


def test_a_disk_that_turns_read_only_stops_publishers_alone(ext4: LoopVolume) -> None:
    broker = RunningBroker(
        ext4.path, ("--commitlog-segment-bytes", "1MiB", "--commitlog-reserve-bytes", "0")
    )
    bodies = [f"before-{n}".encode() for n in range(50)]
    try:
        broker.start()
        with broker.client(timeout_ms=3000) as client:
            for body in bodies:
                assert client.publish("t", body, queue=0).durable
            client.store_offsets("g", "t", {0: 7})
            ext4.become_read_only()
            with pytest.raises(ApiError) as refused:
                client.publish("t", b"after", queue=0)
            assert refused.value.status == 503
            with pytest.raises(ApiError) as refused:
                client.store_offsets("g", "t", {0: 8})
            assert refused.value.status == 503
            found = [bytes(message.body) for message in client.pull("t", queue=0, follow=False)]
            assert found == bodies
            assert client.stored_offsets("g", "t").offsets == {0: 7}
            assert client.describe_topic("t")["queues"][0]["max_offset"] == len(bodies)
        ready = fetch(f"{broker.url}/readyz")
        assert ready.status == 200
        assert "Read-only file system" in ready.json["read_only"]
        assert broker.stop() == 1, "it ended as if nothing had been wrong"
        with pytest.raises(BrokerDidNotStart, match="Read-only file system"):
            broker.start()
        ext4.restore_power()  # the mount replays ext4's journal, so the file system is sound again
        assert_sound(broker.data_dir)
        broker.start()
        with broker.client() as client:
            found = [bytes(message.body) for message in client.pull("t", queue=0, follow=False)]
            assert found[: len(bodies)] == bodies
            assert client.publish("t", b"again", queue=0).durable
    finally:
        broker.kill()
