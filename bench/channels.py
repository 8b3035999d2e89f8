"""How much the channels of a connection slow down when the callback of one channel is stuck.

    python -m bench.channels [--json] [--seconds 3] [--rounds 3]

One connection consumes the same topic on several channels, so each channel gets every message. The
rate counts the callbacks of eight channels. First there is no other channel; then the callback of
a ninth channel blocks at its first message. A producer publishes all the time.
"""

import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import holdfast
from bench.harness import arguments, broker
from bench.rows import TIMES, Row, report
from holdfast.client import ChannelMessage
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 100
_OTHERS = 8
_WARM_UP_S = 1.0
_BAR = 0.95


def main() -> None:
    """Measure and print."""
    options = arguments(__doc__ or "", seconds=3, rounds=3)
    report(rows(options.seconds, options.rounds), as_json=options.json)


def rows(seconds: int, rounds: int) -> Iterator[Row]:
    """Measure; yield both rates, and their ratio."""
    free, stuck = [], []
    with broker() as running:
        for round_ in range(rounds):
            free.append(others_rate(running, f"free{round_}", seconds, has_stuck=False))
            stuck.append(others_rate(running, f"stuck{round_}", seconds, has_stuck=True))
    name = f"{_OTHERS} channels"
    yield Row("", f"{name}: none stuck", "written", "messages/s", free, _BODY_BYTES)
    yield Row("", f"{name}: 1 more is stuck", "written", "messages/s", stuck, _BODY_BYTES)
    ratios = [a / b for a, b in zip(stuck, free, strict=True)]
    yield Row("", f"{name}: beside none", "-", TIMES, ratios, at_least=_BAR)


def others_rate(running: RunningBroker, topic: str, seconds: float, *, has_stuck: bool) -> float:
    """Return the callbacks per second of the channels that are not stuck."""
    count = 0
    for_good, is_over = threading.Event(), threading.Event()

    def handle(_: ChannelMessage) -> None:
        nonlocal count
        count += 1  # two threads may lose a count, equally often in both measurements

    def publish() -> None:
        with running.client() as client, client.producer(topic) as producer:
            while not is_over.is_set():
                producer.send(b"x" * _BODY_BYTES)

    with running.client() as client:
        client.create_topic(topic, queues=1, durability="written")
    with ThreadPoolExecutor(_OTHERS + 1) as executor:
        publisher = threading.Thread(target=publish)
        with holdfast.connect(running.url, executor=executor) as connection:
            for _ in range(_OTHERS):
                connection.channel().consume(handle, topic=topic)
            if has_stuck:
                connection.channel().consume(lambda _: for_good.wait(), topic=topic)
            publisher.start()
            time.sleep(_WARM_UP_S)
            before, began_s = count, time.perf_counter()
            time.sleep(seconds)
            rate = (count - before) / (time.perf_counter() - began_s)
            for_good.set()
        is_over.set()
        publisher.join()
    return rate


if __name__ == "__main__":
    main()
