"""One connection publishes to a slow topic and consumes another topic.

    python -m bench.amqp_sender_receiver [--json] [--seconds 3] [--rounds 5]

Each sync of the log takes 5 ms longer, as on a slow disk. The client publishes batches of 10,000
messages to a topic that is acknowledged after the sync, and waits for the outcomes of a batch
before it begins the next. It consumes a group over a topic that is acknowledged after the write,
with a prefetch of 200: it accepts messages, and renews its credit, when half of them have arrived.
`alone` only consumes. In the control `coupled`, the client accepts nothing as long as messages of a
batch have no outcome: so it accepts once between two batches. All run without sockets: see
`amqp_local.py`.
"""

import argparse
import asyncio
import time
from collections.abc import Iterator

import uvloop

from bench.amqp_local import (
    LocalBroker,
    LocalLink,
    LocalReceiver,
    fill_group,
    local_parts,
    make_topics,
    slow_down_syncs,
)
from bench.rows import RATE, TIMES, Row, report
from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.wire.performatives import Source
from holdfast.amqp.wire.types import Described, ULong, encode

_BODY_BYTES = 100
_MESSAGE = encode(Described(ULong(0x75), bytes(_BODY_BYTES)))
_SYNC_S = 0.005
_PREFETCH = 200
_PUBLISHED_BATCH = 10_000
#: More than the link sends in a second.
_PUBLISHED_A_SECOND = 100_000
#: More than the link receives in a second: without messages, the client would wait for ever.
_CONSUMED_A_SECOND = 300_000
_MODES = ("alone", "beside the publisher", "coupled")
_DURABILITY = {"consumer": "written", "publisher": "fsync"}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="A consumer beside a slow publisher.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    if options.seconds < 2:
        parser.error("--seconds must be at least 2: the control must store several batches")
    slow_down_syncs(_SYNC_S)
    report(rows(options.seconds, options.rounds), as_json=options.json)


def rows(seconds: float, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield the rates and their ratios."""
    found = [{mode: uvloop.run(_measure(mode, seconds)) for mode in _MODES} for _ in range(rounds)]
    for mode in _MODES:
        for link in found[0][mode]:
            rates = [each[mode][link] for each in found]
            yield Row("", f"{link}, {mode}", _DURABILITY[link], RATE, rates, _BODY_BYTES)
    alone, beside, coupled = ([each[mode] for each in found] for mode in _MODES)
    shares = [ours["consumer"] / solo["consumer"] for ours, solo in zip(beside, alone, strict=True)]
    yield Row("", "consumer, compared with alone", "-", TIMES, shares, at_least=0.9)
    totals = [
        sum(ours.values()) / sum(control.values())
        for ours, control in zip(beside, coupled, strict=True)
    ]
    times = [
        ours["consumer"] / control["consumer"]
        for ours, control in zip(beside, coupled, strict=True)
    ]
    yield Row("", "consumer, compared with coupled", "-", TIMES, times)
    yield Row("", "both links, compared with coupled", "-", TIMES, totals, at_least=4.0)


async def _measure(mode: str, seconds: float) -> dict[str, float]:
    """Consume and publish for some seconds; return the messages per second of each link."""
    links = {}
    if mode != "alone":
        publisher = LocalLink(0, _MESSAGE, int(seconds * _PUBLISHED_A_SECOND))
        links["publisher"] = (_DURABILITY["publisher"], publisher)
    async with local_parts(AmqpConfig()) as parts:
        await fill_group(parts, int(seconds * _CONSUMED_A_SECOND), _BODY_BYTES)
        receiver = LocalReceiver(1, Source("/groups/g"))
        broker = LocalBroker(parts, await make_topics(parts, links), receiver)
        await receiver.start(broker)
        client = _Client(broker, receiver, publisher if links else None, mode == "coupled")
        start_s = time.monotonic()
        while time.monotonic() < start_s + seconds:
            broker.changed.clear()
            if client.step():
                await asyncio.sleep(0)
            else:
                await broker.changed.wait()
        passed_s = time.monotonic() - start_s
        found = {"consumer": receiver.accepted / passed_s}
        if links:
            found["publisher"] = publisher.stored / passed_s
            assert publisher.target is not None
            await publisher.target.finish()
        await receiver.stop()
        return found


class _Client:
    """What the client sends."""

    def __init__(
        self,
        broker: LocalBroker,
        receiver: LocalReceiver,
        publisher: LocalLink | None,
        is_coupled: bool,
    ) -> None:
        self._broker, self._receiver, self._publisher = broker, receiver, publisher
        self._is_coupled = is_coupled
        self._sent_in_batch = 0
        broker.receive(receiver.grant(_PREFETCH))

    def step(self) -> bool:
        """Send what can be sent now. Return False if nothing could."""
        # The acknowledgement comes first: in the control, a batch that ends makes room for one.
        is_consuming = self._consume()
        return self._publish() or is_consuming

    def _consume(self) -> bool:
        receiver, publisher = self._receiver, self._publisher
        if receiver.received - receiver.accepted < _PREFETCH // 2:
            return False
        if self._is_coupled and not self._is_batch_stored():
            return False
        sent = 0 if publisher is None else publisher.sent
        self._broker.receive(receiver.accept() + receiver.grant(_PREFETCH, sent))
        return True

    def _publish(self) -> bool:
        publisher = self._publisher
        if publisher is None:
            return False
        if self._is_batch_stored():
            self._sent_in_batch = 0
        count = min(publisher.credit, _PUBLISHED_BATCH - self._sent_in_batch)
        if not count:
            return False
        self._sent_in_batch += count
        self._broker.receive(publisher.take(count))
        return True

    def _is_batch_stored(self) -> bool:
        publisher = self._publisher
        assert publisher is not None
        return self._sent_in_batch == _PUBLISHED_BATCH and publisher.stored == publisher.sent


if __name__ == "__main__":
    main()
