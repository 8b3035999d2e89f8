"""Connections with channels: addresses, lost connections, and many channels."""

import threading
import time
import tracemalloc
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from functools import partial
from urllib.parse import urlsplit

import pytest

import holdfast
from holdfast.client import ChannelMessage
from holdfast.client.channels.connection import MAX_CHANNELS
from holdfast.client.errors import (
    ClientClosed,
    ConnectionFailed,
    StaleDelivery,
    TooManyChannels,
)
from holdfast.free_port import free_port
from tests.holdfast.client.channels.conftest import Setting
from tests.holdfast.client.channels.test_channel import FAR_S
from tests.holdfast.client.channels.until import until
from tests.support.damage.tcp_relay import TcpRelay, tcp_relay


@contextmanager
def relayed(setting: Setting) -> Iterator[tuple[TcpRelay, holdfast.Connection]]:
    """Yield a connection through a relay."""
    with (
        tcp_relay(urlsplit(setting.broker.url).port or 0) as relay,
        holdfast.connect(f"http://127.0.0.1:{relay.listening_port}") as connection,
    ):
        yield relay, connection


def test_a_lost_connection_ends_no_get_and_loses_nothing(setting: Setting) -> None:
    # T4
    with relayed(setting) as (relay, connection), ThreadPoolExecutor() as threads:
        channel = connection.channel()
        setting.publish(2)
        first = channel.get(setting.name, timeout_s=FAR_S)
        second = channel.get(setting.name, timeout_s=FAR_S)
        assert first is not None and second is not None
        first.ack()
        until(lambda: setting.in_flight() == 1)
        getting = threads.submit(connection.channel().get, setting.name, timeout_s=None)
        until(lambda: len(setting.client.describe_group(setting.name).members) == 2)
        relay.cut()
        again = getting.result(FAR_S)
        assert again is not None and again.offset == second.offset
        assert again.attempt > 1
        again.ack()
        with pytest.raises(StaleDelivery):
            second.ack()
        until(lambda: setting.in_flight() == 0)
        assert channel.get(setting.name) is None


def test_consumers_are_restored_and_only_unsettled_messages_arrive_again(setting: Setting) -> None:
    # T4
    acknowledged: list[int] = []
    stale: list[int] = []
    go_on = threading.Event()

    def callback(message: ChannelMessage) -> None:
        if message.offset == 50 and message.attempt == 1:
            relay.cut()
            go_on.wait(FAR_S)
        try:
            message.ack()
            acknowledged.append(message.offset)
        except StaleDelivery:
            stale.append(message.offset)

    with relayed(setting) as (relay, connection):
        channel = connection.channel()
        channel.consume(callback, group=setting.name, credit=20)
        setting.publish(100)
        until(lambda: relay.accepted == 2)
        go_on.set()
        until(lambda: {*acknowledged} == {*range(100)})
        until(lambda: setting.in_flight() == 0)
        assert stale == [50]
        assert {each for each in acknowledged if acknowledged.count(each) > 1} <= {*range(1, 50)}


def test_a_consumer_of_a_topic_goes_on_where_it_was(setting: Setting) -> None:
    # T4
    seen: list[int] = []
    with relayed(setting) as (relay, connection):
        channel = connection.channel()
        channel.consume(lambda message: seen.append(message.offset), topic=setting.name)
        setting.publish(20)
        until(lambda: len(seen) == 20)
        relay.cut()
        setting.publish(20)
        until(lambda: len(seen) == 40)
        assert seen == list(range(40))


def test_an_unconfirmed_publish_is_reported_and_later_ones_work(setting: Setting) -> None:
    # T4
    with relayed(setting) as (relay, connection):
        channel = connection.channel()
        channel.publish(setting.name, "first")
        sent = []
        for number in range(2_000):
            sent.append(channel.publish_nowait(setting.name, b"%d" % number))
            if number == 1_000:
                relay.cut()
        lost = 0
        for each in sent:
            try:
                each.wait(FAR_S)
            except ConnectionFailed as error:
                assert error.maybe_executed
                lost += 1
        channel.publish(setting.name, "last")
    stored = [each.text for each in setting.client.pull(setting.name, 0, 0, follow=False)]
    assert stored[0] == "first" and stored[-1] == "last"
    assert len(stored) == len({*stored}), "a publish was repeated"
    assert len(stored) >= 2_002 - lost


def test_the_next_address_is_tried(setting: Setting) -> None:
    # T4
    dead = f"http://127.0.0.1:{free_port()}"
    with holdfast.connect([dead, setting.broker.url]) as connection:
        assert connection.channel().get(setting.name) is None
    with pytest.raises(ConnectionFailed):
        holdfast.connect([dead, f"amqp://127.0.0.1:{free_port()}"])
    for wrong in ([], "amqp://", "ftp://x", ["http://a@b"]):
        with pytest.raises(ValueError, match="address"):
            holdfast.connect(wrong)


def test_calls_end_when_no_address_answers_in_time(setting: Setting) -> None:
    port = urlsplit(setting.broker.url).port or 0
    with (
        tcp_relay(port) as relay,
        holdfast.connect(f"http://127.0.0.1:{relay.listening_port}", timeout_ms=100) as connection,
    ):
        channel = connection.channel()
        channel.publish(setting.name, "x")
        relay.close()
        until(lambda: failed(channel))
        with ThreadPoolExecutor() as threads:
            getting = threads.submit(channel.get, setting.name, timeout_s=None)
            time.sleep(0.2)
            connection.close()
            with pytest.raises(ClientClosed):
                getting.result(FAR_S)


def failed(channel: holdfast.Channel) -> bool:
    try:
        channel.get("unknown")
    except ConnectionFailed:
        return True
    except holdfast.errors.UnknownGroup:
        return False
    return False


def test_a_thousand_channels_deliver_with_bounded_memory(setting: Setting) -> None:
    # T6
    seen: dict[int, list[str]] = {}

    def callback(number: int, message: ChannelMessage) -> None:
        seen.setdefault(number, []).append(message.text)

    with holdfast.connect(setting.broker.url) as connection:
        tracemalloc.start()
        channels = [connection.channel() for _ in range(1_000)]
        opened_bytes, _ = tracemalloc.get_traced_memory()
        for channel in channels[:100]:
            channel.consume(partial(callback, channel.id), topic=setting.name, credit=1)
        used_bytes = tracemalloc.get_traced_memory()[0] - opened_bytes
        tracemalloc.stop()
        for channel in channels[100:]:
            channel.consume(partial(callback, channel.id), topic=setting.name, credit=1)
        setting.publish(1)
        until(lambda: len(seen) == 1_000, FAR_S)
        assert opened_bytes < 1_000 * 8_192
        assert used_bytes < 100 * 65_536
        assert [each.id for each in channels] == list(range(1, 1_001))


def test_a_channel_above_the_limit_is_refused(
    setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    # T6
    assert MAX_CHANNELS == 65_535
    monkeypatch.setattr("holdfast.client.channels.connection.MAX_CHANNELS", 10)
    with holdfast.connect(setting.broker.url) as connection:
        channels = [connection.channel() for _ in range(10)]
        assert [each.id for each in channels] == list(range(1, 11))
        with pytest.raises(TooManyChannels):
            connection.channel()
        channels[6].close()
        assert connection.channel().id == 7
    with pytest.raises(ClientClosed):
        connection.channel()
    connection.close()
