"""The processor time of one message published over AMQP, without sockets.

    python -m bench.amqp_publish [--json] [--messages 200000] [--rounds 5]

The frames of a client are made before. The engine, the target and a real storage process them in
reads of at most 256 KiB, as far as the credit allows. All threads of the process count: what a
broker spends for the message, except for reading its bytes from the socket.
"""

import asyncio
import time
from collections.abc import Iterator

import uvloop

from bench.amqp_local import LocalBroker, LocalLink, local_broker
from bench.harness import arguments
from bench.rows import Row, report
from holdfast.amqp.wire.performatives import Header, Properties, encode_composite
from holdfast.amqp.wire.types import Byte, Described, Symbol, ULong, encode

_BODY_BYTES = 100
_READ_BYTES = 256 * 1024
_BAR_US = 8.0

_DATA = encode(Described(ULong(0x75), bytes(_BODY_BYTES)))
#: A BytesMessage as qpid-jms sends it.
_JMS = (
    encode_composite(Header(durable=True))
    + encode(
        Described(
            ULong(0x72),
            {Symbol("x-opt-jms-dest"): Byte(0), Symbol("x-opt-jms-msg-type"): Byte(3)},
        )
    )
    + encode_composite(
        Properties(
            "ID:9b2c2d9e-6a0e-4c1c-8f7e-2d3e4f5a6b7c:1:1:1-1",
            to="bench",
            content_type="application/octet-stream",
            creation_time=1_700_000_000_000,
        )
    )
    + _DATA
)


def main() -> None:
    """Measure and print."""
    options = arguments("Processor time a message published over AMQP.", messages=200_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each case in turns; yield a row for each case."""
    cases: dict[tuple[str, str, int], list[float]] = {
        (name, durability, credit): []
        for name, durability, credit in [
            ("data", "written", 170),
            ("data", "written", 1_000),
            ("data", "fsync", 1_000),
            ("JMS", "written", 1_000),
        ]
    }
    for _ in range(rounds):
        for (name, durability, credit), found in cases.items():
            message = _JMS if name == "JMS" else _DATA
            found.append(uvloop.run(_measure(message, messages, durability, credit)))
    for (name, durability, credit), found in cases.items():
        bar = _BAR_US if name == "data" else None
        case = f"{name} over AMQP, credit {credit}"
        yield Row("", case, durability, "cpu us", found, _BODY_BYTES, at_most=bar)


async def _measure(message: bytes, messages: int, durability: str, credit: int) -> float:
    """Publish; return the processor time in microseconds per message."""
    link = LocalLink(0, message, messages)
    async with local_broker({"bench": (durability, link)}, credit=credit) as broker:
        return await _publish(broker, link, messages)


async def _publish(broker: LocalBroker, link: LocalLink, messages: int) -> float:
    before_s = time.process_time()
    while link.left:
        count = min(link.credit, _READ_BYTES // link.frame_bytes)
        if count:
            broker.receive(link.take(count))
            await asyncio.sleep(0)  # one read an iteration
        else:
            broker.changed.clear()
            await broker.changed.wait()
    assert link.target is not None
    await link.target.finish()
    assert link.stored == messages
    return (time.process_time() - before_s) / messages * 1e6


if __name__ == "__main__":
    main()
