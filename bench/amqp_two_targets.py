"""One connection publishes to two targets over a socket, with frames made in advance (B7).

    python -m bench.amqp_two_targets [--json] [--messages 300000] [--rounds 5]

The messages have 100 bytes; the broker accepts them after the write. The client sends runs of 85
frames to the two targets in turns, as its credit and the window of the session allow. It is
measured with the broker's own settings, and with a credit of 1,000 and a window of 4,000 frames.
"""

import asyncio
import time
from collections.abc import Iterator

import uvloop

from bench.amqp_raw import RawClient, handshake
from bench.harness import ARGUMENTS, arguments, broker, process_cpu_s
from bench.hold_http import put_topic
from bench.rows import RATE, Row, report
from holdfast.amqp.wire.fast_transfer import TransferEncoder
from holdfast.amqp.wire.performatives import (
    Attach,
    Close,
    Detach,
    Disposition,
    End,
    Flow,
    Source,
    Target,
)
from holdfast.amqp.wire.types import Described, ULong, encode
from holdfast.free_port import free_port
from holdfast.running_broker import RunningBroker

_BODY_BYTES = 100
_MESSAGE = encode(Described(ULong(0x75), bytes(_BODY_BYTES)))
_MAX_FRAME_BYTES = 65_536
_TARGETS = ("first", "second")
#: The messages of one run. The broker renews a credit of 170 when 85 are left.
_RUN = 85
_BAR = 100_000
_SETTINGS = {
    "the broker's own credit": (),
    "credit 1,000": ("--amqp-publish-credit", "1000", "--amqp-incoming-window", "4000"),
}


def main() -> None:
    """Measure and print."""
    options = arguments("Two targets over one connection.", messages=300_000, rounds=5)
    report(rows(options.messages, options.rounds), as_json=options.json)


def rows(messages: int, rounds: int) -> Iterator[Row]:
    """Measure each setting in turns; yield the rates of both targets together."""
    runs = _runs(messages)
    found = {
        name: Row("B7", f"two targets, {name}", "written", RATE, [], _BODY_BYTES, at_least=_BAR)
        for name in _SETTINGS
    }
    for _ in range(rounds):
        for name, settings in _SETTINGS.items():
            port = free_port()
            with broker((*ARGUMENTS, "--amqp-port", str(port), *settings)) as running:
                for topic in _TARGETS:
                    put_topic(running.url, topic, 1, "written")
                count = len(runs) * _RUN
                seconds, broker_s, client_s = uvloop.run(_measure(running, port, runs))
                row = found[name]
                row.values.append(count / seconds)
                row.broker_us.append(broker_s / count * 1e6)
                row.client_us.append(client_s / count * 1e6)
    yield from found.values()


def _runs(messages: int) -> list[bytes]:
    """Return the frames of each run. The runs belong to the two targets in turns."""
    encoders = [TransferEncoder(0, handle, _MAX_FRAME_BYTES) for handle in range(len(_TARGETS))]
    runs: list[bytes] = []
    for first in range(0, messages, _RUN):
        encoder = encoders[len(runs) % len(encoders)]
        runs.append(
            b"".join(
                each
                for number in range(first, first + _RUN)
                for each in encoder.frames(number, number.to_bytes(4, "big"), False, _MESSAGE)
            )
        )
    return runs


async def _measure(
    running: RunningBroker, port: int, runs: list[bytes]
) -> tuple[float, float, float]:
    """Send all runs, and return when each message is accepted: the seconds, and the processor time
    of the broker and of the client in seconds."""
    sender = _Sender(runs)
    attaches = [
        Attach(name, handle, False, source=Source("here"), target=Target(name))
        for handle, name in enumerate(_TARGETS)
    ]
    octets = handshake(*[each._replace(initial_delivery_count=0) for each in attaches])
    client = await RawClient.connect(port, octets, sender.read)
    await sender.is_ready.wait()
    broker_s, client_s = process_cpu_s(running.pid), time.process_time()
    started_s = time.perf_counter()
    sender.start(client)
    await sender.is_done.wait()
    seconds = time.perf_counter() - started_s
    client.transport.abort()
    return seconds, process_cpu_s(running.pid) - broker_s, time.process_time() - client_s


class _Sender:
    """Sends each run as soon as the credit of its target and the window have room for it."""

    def __init__(self, runs: list[bytes]) -> None:
        self.is_ready, self.is_done = asyncio.Event(), asyncio.Event()
        self._runs = runs
        self._next = 0
        self._is_started = False
        #: How many messages each target may get in total, and how many frames the session.
        self._limits = [0] * len(_TARGETS)
        self._window_end = 0
        self._unconfirmed = len(runs) * _RUN

    def start(self, client: RawClient) -> None:
        self._is_started = True
        self._send(client)

    def read(self, client: RawClient, performative: object) -> None:
        match performative:
            case Flow(next_incoming_id, window, handle=handle):
                self._window_end = (next_incoming_id or 0) + window
                if handle is not None:
                    credit = performative.link_credit or 0
                    self._limits[handle] = (performative.delivery_count or 0) + credit
                if all(self._limits):
                    self.is_ready.set()
                self._send(client)
            case Disposition(_, first, last):
                self._unconfirmed -= (first if last is None else last) - first + 1
                if not self._unconfirmed:
                    self.is_done.set()
            case Detach() | End() | Close():
                raise AssertionError(performative)

    def _send(self, client: RawClient) -> None:
        first = self._next
        while self._is_started and self._next < len(self._runs):
            turn, handle = divmod(self._next, len(_TARGETS))
            if (turn + 1) * _RUN > self._limits[handle]:
                break
            if (self._next + 1) * _RUN > self._window_end:
                break
            self._next += 1
        if self._next > first:
            client.transport.write(b"".join(self._runs[first : self._next]))


if __name__ == "__main__":
    main()
