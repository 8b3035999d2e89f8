"""The processor time of one message received over AMQP and accepted, without sockets.

    python -m bench.amqp_receive [--json] [--messages 100000] [--rounds 5]

The client grants credit and accepts what has arrived with one disposition for each grant. The
engine, the source, a group and a real storage do their work; the output is thrown away. All threads
of the process count: what a broker spends for the message, except for writing its bytes to the
socket.
"""

import argparse
import time
from collections.abc import Iterator

import uvloop

from bench.amqp_local import LocalBroker, LocalReceiver, fill_group, local_parts
from bench.rows import Row, report
from holdfast.amqp.config import AmqpConfig
from holdfast.amqp.wire.performatives import Source
from holdfast.amqp.wire.types import Described, Symbol

_BODY_BYTES = 100
_BAR_US = 14.0
_FIRST = {"s": Described(Symbol("rabbitmq:stream-offset-spec"), "first")}
_CASES: dict[str, tuple[Source, int]] = {
    "leased, accepted": (Source("/groups/g"), 1_000),
    "leased, settled when sent": (Source("/groups/g"), 1_000),
    "copied, accepted": (Source("/topics/bench", filter=_FIRST), 1_000),
    "leased, accepted, credit 100": (Source("/groups/g"), 100),
}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="Processor time a message received over AMQP.")
    parser.add_argument("--json", action="store_true", help="JSON lines in place of a table")
    parser.add_argument("--messages", type=int, default=100_000)
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield a row for each case."""
    found: dict[str, list[float]] = {name: [] for name in _CASES}
    for _ in range(rounds):
        for name, times in found.items():
            times.append(uvloop.run(_measure(name, messages)))
    for name, times in found.items():
        bar = _BAR_US if name == "leased, accepted" else None
        yield Row("B5", f"{name}, over AMQP", "written", "cpu us", times, _BODY_BYTES, at_most=bar)


async def _measure(name: str, messages: int) -> float:
    """Receive; return the processor time in microseconds per message."""
    source, credit = _CASES[name]
    is_settled = name == "leased, settled when sent"
    async with local_parts(AmqpConfig()) as parts:
        await fill_group(parts, messages, _BODY_BYTES)
        receiver = LocalReceiver(0, source, is_settled=is_settled)
        broker = LocalBroker(parts, {}, receiver)
        await receiver.start(broker)
        used_s = await _receive(broker, receiver, messages, credit, is_settled=is_settled)
        await receiver.stop()
        return used_s / messages * 1e6


async def _receive(
    broker: LocalBroker, receiver: LocalReceiver, messages: int, credit: int, *, is_settled: bool
) -> float:
    """Receive and accept; return the processor time in seconds."""
    before_s = time.process_time()
    while receiver.received < messages:
        end = min(receiver.received + credit, messages)
        broker.receive(receiver.grant(credit))
        while receiver.received < end:
            broker.changed.clear()
            await broker.changed.wait()
        if not is_settled:
            broker.receive(receiver.accept())
    return time.process_time() - before_s


if __name__ == "__main__":
    main()
