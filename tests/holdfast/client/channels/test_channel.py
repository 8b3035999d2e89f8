"""Channels against a broker in a process of its own."""

import threading
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

import holdfast
from holdfast.client import Channel, ChannelMessage
from holdfast.client.errors import ApiError, ChannelClosed, UnknownGroup
from tests.holdfast.client.channels.conftest import Setting
from tests.holdfast.client.channels.until import until

FAR_S = 120.0


def append_offset(offsets: list[int], message: ChannelMessage) -> None:
    offsets.append(message.offset)


def is_closed(channel: Channel) -> bool:
    try:
        channel.get("unknown")
    except ChannelClosed:
        return True
    except UnknownGroup:
        return False
    raise AssertionError("the group exists")


def test_get_returns_none_when_the_group_is_empty(setting: Setting) -> None:
    # T9
    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        assert channel.get(setting.name) is None
        assert channel.get(setting.name, timeout_s=0.05) is None
        channel.publish(setting.name, "tea", key="k", tag="t", properties={"p": "1"})
        message = channel.get(setting.name)
        assert message is not None
        assert (message.text, message.key, message.tag) == ("tea", "k", "t")
        assert (message.properties, message.offset, message.attempt) == ({"p": "1"}, 0, 1)
        message.ack()
        message.ack()  # no effect
        until(lambda: setting.in_flight() == 0)
        with pytest.raises(ValueError, match="timeout"):
            channel.get(setting.name, timeout_s=-1)
        with pytest.raises(UnknownGroup):
            channel.get("unknown")
        assert channel.get(setting.name) is None


def test_closing_the_channel_ends_a_get_without_end(setting: Setting) -> None:
    # T9
    with (
        holdfast.connect(setting.broker.url) as connection,
        ThreadPoolExecutor() as threads,
    ):
        channel = connection.channel()
        assert channel.get(setting.name) is None
        getting = threads.submit(channel.get, setting.name, timeout_s=None)
        until(lambda: setting.client.describe_group(setting.name).members)
        channel.close()
        with pytest.raises(ChannelClosed):
            getting.result(FAR_S)
        with pytest.raises(ChannelClosed):
            channel.get(setting.name)
        with pytest.raises(ChannelClosed):
            channel.publish(setting.name, "x")
        channel.close()


def test_a_get_that_waits_gets_the_next_message(setting: Setting) -> None:
    with (
        holdfast.connect(setting.broker.url) as connection,
        ThreadPoolExecutor() as threads,
    ):
        channel = connection.channel()
        getting = threads.submit(channel.get, setting.name, timeout_s=None)
        until(lambda: setting.client.describe_group(setting.name).members)
        setting.publish(1)
        message = getting.result(FAR_S)
        assert message is not None and message.offset == 0


def test_calls_of_one_channel_wait_and_calls_of_two_overlap(setting: Setting) -> None:
    # T15
    with (
        holdfast.connect(setting.broker.url) as connection,
        ThreadPoolExecutor() as threads,
    ):
        one, two = connection.channel(), connection.channel()
        other = setting.add_group()
        first = threads.submit(one.get, setting.name, timeout_s=None)
        until(lambda: setting.client.describe_group(setting.name).members)
        second = threads.submit(one.get, other)
        assert two.get(other) is None  # overlaps with the call of the other channel
        assert not second.done()
        setting.publish(1)
        assert first.result(FAR_S) is not None
        assert second.result(FAR_S) is None


@pytest.mark.parametrize(("channels", "threads"), [(2, 8), (8, 2), (5, 5)])
def test_channels_and_threads_limit_how_many_callbacks_run_at_once(
    setting: Setting, channels: int, threads: int
) -> None:
    # T12, T13
    expected = min(channels, threads)
    barrier = threading.Barrier(expected)
    lock = threading.Lock()
    running: dict[int, int] = {}
    peak, count = 0, 0

    def callback(number: int, _: ChannelMessage) -> None:
        nonlocal peak, count
        with lock:
            running[number] = running.get(number, 0) + 1
            assert running[number] == 1, "two callbacks of one channel overlap"
            peak = max(peak, sum(running.values()))
        barrier.wait(FAR_S)
        with lock:
            running[number] -= 1
            count += 1

    with (
        ThreadPoolExecutor(threads) as executor,
        holdfast.connect(setting.broker.url, executor=executor) as connection,
    ):
        for number in range(channels):
            connection.channel().consume(partial(callback, number), topic=setting.name)
        setting.publish(10)
        until(lambda: count >= 10 * channels, FAR_S)
    assert peak == expected


def test_callbacks_keep_the_order_of_their_channel(setting: Setting) -> None:
    # T12
    seen: dict[int, list[int]] = {}
    with (
        ThreadPoolExecutor(8) as executor,
        holdfast.connect(setting.broker.url, executor=executor) as connection,
    ):
        for number in range(20):
            seen[number] = []
            callback = partial(append_offset, seen[number])
            connection.channel().consume(callback, topic=setting.name, credit=7)
        setting.publish(300)
        until(lambda: all(len(each) >= 300 for each in seen.values()), FAR_S)
    assert all(each == list(range(300)) for each in seen.values())


def test_several_consumers_share_a_channel(setting: Setting) -> None:
    # T7, T11
    groups = [setting.name, setting.add_group(), setting.add_group()]
    seen: dict[str, list[str]] = {}
    busy = threading.Lock()

    def callback(message: ChannelMessage) -> None:
        assert busy.acquire(blocking=False), "callbacks of one channel overlap"
        seen.setdefault(message.consumer_tag, []).append(message.text)
        message.ack()
        busy.release()

    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        tags = [channel.consume(callback, group=each, credit=5) for each in groups]
        assert len(set(tags)) == 3
        for each in groups:
            setting.publish(40, each)
        until(lambda: sum(map(len, seen.values())) == 120)
        assert seen == {tag: [str(number) for number in range(40)] for tag in tags}
        until(lambda: all(setting.in_flight(each) == 0 for each in groups))


def test_three_consumers_of_a_channel_all_receive_and_never_at_once(setting: Setting) -> None:
    # T11: two consumers share one queue, and one consumer has another queue
    groups = [setting.name, setting.name, setting.add_group()]
    seen: dict[str, list[str]] = {}
    overlaps: list[str] = []
    busy = threading.Lock()

    def callback(message: ChannelMessage) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(message.text)
            return
        seen.setdefault(message.consumer_tag, []).append(message.text)
        time.sleep(0.0005)  # an overlap would show
        message.ack()
        busy.release()

    with (
        ThreadPoolExecutor(8) as executor,
        holdfast.connect(setting.broker.url, executor=executor) as connection,
    ):
        channel = connection.channel()
        tags = [channel.consume(callback, group=each, credit=5) for each in groups]
        for each in {*groups}:
            setting.publish(200, each)
        until(lambda: sum(map(len, seen.values())) + len(overlaps) >= 400)
        assert overlaps == []
        until(lambda: all(setting.in_flight(each) == 0 for each in {*groups}))
    one, two, three = (seen[tag] for tag in tags)
    numbers = [str(number) for number in range(200)]
    assert one and two
    assert sorted(one + two, key=int) == three == numbers
    for part in (one, two):
        assert part == sorted(part, key=int)


def test_a_stuck_executor_stops_no_reading_and_no_acknowledgement(setting: Setting) -> None:
    # T10
    other = setting.add_group()
    is_stuck, go_on = threading.Event(), threading.Event()

    def callback(message: ChannelMessage) -> None:
        message.ack()
        is_stuck.set()
        go_on.wait(FAR_S)

    with (
        ThreadPoolExecutor(1) as executor,
        holdfast.connect(setting.broker.url, executor=executor) as connection,
    ):
        connection.channel().consume(callback, group=setting.name)
        setting.publish(1)
        assert is_stuck.wait(FAR_S)
        until(lambda: setting.in_flight() == 0)
        channel = connection.channel()
        channel.publish(other, "x")
        message = channel.get(other, timeout_s=FAR_S)
        assert message is not None
        message.ack()
        until(lambda: setting.in_flight(other) == 0)
        go_on.set()


def test_a_stuck_callback_holds_back_only_its_channel(setting: Setting) -> None:
    # T14
    other = setting.add_group()
    go_on = threading.Event()
    count = 0

    def callback(message: ChannelMessage) -> None:
        nonlocal count
        count += 1
        message.ack()

    with holdfast.connect(setting.broker.url) as connection:
        connection.channel().consume(lambda _: go_on.wait(FAR_S), group=other, credit=10)
        connection.channel().consume(callback, group=setting.name, credit=10)
        setting.publish(50, other)
        setting.publish(500)
        until(lambda: count == 500)
        assert setting.in_flight(other) == 10  # its credit is withheld
        go_on.set()


def test_a_callback_may_use_its_own_channel(setting: Setting) -> None:
    # T16
    other = setting.add_group()
    seen: list[str] = []
    failed: list[Exception] = []

    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()

        def callback(message: ChannelMessage) -> None:
            try:
                channel.publish(other, "from the callback")
                fetched = channel.get(other, timeout_s=None)
                assert fetched is not None
                fetched.ack()
                message.ack()
                channel.consume(lambda each: seen.append(each.text), topic=other, start="first")
                channel.cancel(message.consumer_tag)
            except Exception as error:
                failed.append(error)

        channel.consume(callback, group=setting.name)
        setting.publish(1)
        until(lambda: seen or failed)
        assert (seen, failed) == (["from the callback"], [])
        channel.consume(lambda _: channel.close(), group=other)
        connection.channel().publish(other, "last")
        until(lambda: is_closed(channel))


def test_acknowledging_multiple_covers_only_its_channel(setting: Setting) -> None:
    # T25
    setting.publish(10)
    with holdfast.connect(setting.broker.url) as connection:
        one, two = connection.channel(), connection.channel()
        mine = [one.get(setting.name, timeout_s=FAR_S) for _ in range(5)]
        theirs = [two.get(setting.name, timeout_s=FAR_S) for _ in range(5)]
        assert mine[3] is not None and all(mine) and all(theirs)
        mine[3].ack(multiple=True)
        until(lambda: setting.in_flight() == 6)
        mine[3].ack(multiple=True)
        two.close()
        until(lambda: setting.in_flight() == 1)
        again = [one.get(setting.name, timeout_s=FAR_S) for _ in range(5)]
        assert sorted(each.offset for each in again if each) == [5, 6, 7, 8, 9]


def test_outcomes(setting: Setting) -> None:
    setting.publish(3)
    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        first, second, third = (channel.get(setting.name, timeout_s=FAR_S) for _ in range(3))
        assert first and second and third
        first.reject()
        second.release()
        third.nack()
        again = [channel.get(setting.name, timeout_s=FAR_S) for _ in range(2)]
        assert sorted((each.offset, each.attempt) for each in again if each) == [(1, 2), (2, 2)]


def test_credit_is_renewed_with_acknowledgements_only_with_auto_flow(setting: Setting) -> None:
    # A20
    other = setting.add_group()
    setting.publish(300)
    setting.publish(300, other)
    renewed: list[ChannelMessage] = []
    fixed: list[ChannelMessage] = []
    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        channel.consume(renewed.append, group=setting.name, credit=100)
        tag = channel.consume(fixed.append, group=other, credit=100, auto_flow=False)
        until(lambda: len(renewed) == len(fixed) == 100)
        fixed[-1].ack(multiple=True)
        until(lambda: setting.in_flight(other) == 0)
        until(lambda: len(renewed) == 200 and setting.in_flight() == 100)
        assert len(fixed) == 100
        channel.add_credit(tag, 30)
        until(lambda: len(fixed) == 130)
        renewed[-1].ack(multiple=True)
        until(lambda: len(renewed) == 300)
        assert len(fixed) == 130


def test_an_acknowledgement_is_sent_without_further_calls(setting: Setting) -> None:
    # T26
    setting.publish(2)
    with holdfast.connect(setting.broker.url, ack_delay_ms=5) as connection:
        channel = connection.channel()
        message = channel.get(setting.name, timeout_s=FAR_S)
        assert message is not None
        message.ack()
        until(lambda: setting.in_flight() == 0)
    with holdfast.connect(setting.broker.url, ack_delay_ms=10_000_000) as connection:
        channel = connection.channel()
        message = channel.get(setting.name, timeout_s=FAR_S)
        assert message is not None
        message.ack()
        channel.close()
        assert setting.in_flight() == 0
        assert connection.channel().get(setting.name) is None  # it did not return to the group


def test_after_cancel_no_callback_starts(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    seen: list[ChannelMessage] = []
    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        tag = channel.consume(seen.append, group=setting.name, credit=10)
        setting.publish(30)
        until(lambda: len(seen) == 10)
        channel.cancel(tag)
        seen[0].ack(multiple=True)
        seen[-1].ack(multiple=True)
        until(lambda: setting.in_flight() == 0)
        assert len(seen) == 10
        channel.cancel(tag)
        rest = [channel.get(setting.name, timeout_s=FAR_S) for _ in range(20)]
        assert sorted(each.offset for each in rest if each) == list(range(10, 30))
    # A link that was detached too early got no confirmations: closing waited 5 s for them.
    assert "did not confirm" not in caplog.text


def test_a_callback_that_fails_gives_its_message_back(
    setting: Setting, caplog: pytest.LogCaptureFixture
) -> None:
    attempts: list[int] = []

    def callback(message: ChannelMessage) -> None:
        attempts.append(message.attempt)
        if message.attempt == 1:
            raise RuntimeError("the first attempt")
        message.ack()

    with holdfast.connect(setting.broker.url) as connection:
        connection.channel().consume(callback, group=setting.name)
        setting.publish(1)
        until(lambda: attempts == [1, 2] and setting.in_flight() == 0)
    assert "the first attempt" in caplog.text


def test_publishing_without_waiting_keeps_the_order(setting: Setting) -> None:
    # T21
    with holdfast.connect(setting.broker.url) as connection:
        channel = connection.channel()
        sent = [channel.publish_nowait(setting.name, b"%d" % number) for number in range(1_500)]
        for each in sent:
            each.wait(FAR_S)
        assert all(each.is_done for each in sent)
        refused = channel.publish_nowait(setting.name, b"x" * (8 << 20))
        with pytest.raises(ApiError, match="message-size-exceeded"):
            refused.wait(FAR_S)
    read = setting.client.pull(setting.name, 0, 0, follow=False)
    assert [each.body for each in read] == [b"%d" % number for number in range(1_500)]


def test_wrong_arguments_are_refused(setting: Setting) -> None:
    with holdfast.connect(setting.broker.url) as connection:
        with pytest.raises(ValueError, match="group or a topic"):
            connection.channel().consume(print)
        for credit in (-1, 0, 2**31):
            with pytest.raises(ValueError, match="credit"):
                connection.channel().consume(print, group=setting.name, credit=credit)
